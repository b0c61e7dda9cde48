"""The grammar of `headway batch`."""

import argparse

from headway.config import API_KEY_VARIABLE


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their options."""
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=type(parser)
    )
    submit = _verb(verbs.add_parser("submit", help="upload a file and start a job; prints its id"))
    submit.add_argument("file", metavar="FILE.jsonl", help="one request a line, as OpenAI has it")
    submit.add_argument("--endpoint", metavar="PATH", help="default: the 'url' of the first line")
    submit.add_argument(
        "--completion-window", default="24h", metavar="TIME", help="such as 24h, 90s or 7d"
    )
    _add_wait(submit)
    status = _verb(verbs.add_parser("status", help="how a job is doing, or the newest 20"))
    status.add_argument("id", nargs="?", metavar="ID")
    _add_wait(status)
    cancel = _verb(verbs.add_parser("cancel", help="end a job; what is done stays"))
    cancel.add_argument("id", metavar="ID")
    fetch = _verb(verbs.add_parser("fetch", help="the results of a job that has ended"))
    fetch.add_argument("id", metavar="ID")
    fetch.add_argument("-o", "--output", default="-", metavar="OUT.jsonl", help="default: stdout")
    fetch.add_argument("--errors", metavar="ERR.jsonl", help="where lines with errors go")
    _add_wait(fetch)


def _verb(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--api-key", help=f"default: ${API_KEY_VARIABLE}")
    return parser


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help="until it has ended, with progress")
