"""The grammar of `headway keys`."""

import argparse

from headway.cli.kinds import CLASSES, COUNTS_BY_CLASS
from headway.cli.numbers import count
from headway.cli.serve_options import KEYS_FILE
from headway.cli.settings import add_options


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their options."""
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=type(parser)
    )
    add = _verb(verbs.add_parser("add", help="make a key; it is shown once"))
    add.add_argument("--tenant", required=True, metavar="NAME", help="whose it is")
    add.add_argument("--default-class", choices=CLASSES, help="of requests that don't say")
    add.add_argument("--top-class", choices=CLASSES, default="realtime", help="403 above it")
    add.add_argument("--downgrade", action="store_true", help="run them in the top class instead")
    add.add_argument("--admin", action="store_true", help="opens metrics and the dashboard too")
    kind = COUNTS_BY_CLASS
    add.add_argument("--requests-per-minute", type=kind.parse, metavar=kind.metavar)
    add.add_argument("--tokens-per-minute", type=kind.parse, metavar=kind.metavar)
    add.add_argument("--concurrent", type=count, metavar="N", help="requests under way at once")
    _verb(verbs.add_parser("list", help="keys, by their ids"))
    revoke = _verb(verbs.add_parser("revoke", help="end a key; servers see it within a second"))
    revoke.add_argument("id", metavar="ID")


def _verb(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--config", metavar="FILE", help="a TOML file that may name keys-file")
    add_options(parser, [KEYS_FILE])
    return parser
