"""The grammar of `headway vllm`."""

import argparse

from headway.cli.kinds import CLASSES
from headway.cli.numbers import count


def add_vllm(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their options. What `serve` does not know is vLLM's."""
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, parser_class=type(parser)
    )
    serve = verbs.add_parser(
        "serve",
        help="vLLM's OpenAI server with service classes; other options are vLLM's own",
        allow_abbrev=False,
    )
    serve.add_argument("model", metavar="MODEL", help="as vLLM takes it")
    serve.add_argument(
        "--host-kv-gib",
        type=float,
        default=4.0,
        metavar="GIB",
        help="host memory a worker may swap KV into; 0 to recompute always (default: 4)",
    )
    serve.add_argument(
        "--default-class",
        choices=CLASSES,
        default="standard",
        help="service class of requests that don't say",
    )
    serve.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="the model's name in the API; may be given more than once",
    )
    reserve = serve.add_argument_group("what batch keeps (see docs/scheduling.md)")
    reserve.add_argument("--reserve-share", type=float, default=0.05, metavar="SHARE")
    reserve.add_argument("--guard-time", type=float, default=60.0, metavar="S")
    reserve.add_argument("--preemptions", type=count, default=3, metavar="N")
    serve.add_argument(
        "--allow-untested", action="append", default=[], metavar="WHAT", help="by name, one each"
    )
    check = verbs.add_parser("check", help="whether the vLLM installed here will do")
    check.add_argument(
        "--fingerprints", action="store_true", help="print the entry of a version to be added"
    )
