"""The grammar of `headway bench`."""

import argparse
from collections.abc import Callable

from headway.cli.load_arguments import TRACE, add_classes
from headway.cli.numbers import count, positive

_ENDPOINTS = ("completions", "chat")
_PRIORITIES = ("service_tier", "priority", "header", "none")


def add_bench(
    parser: argparse.ArgumentParser, add_engine: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Add the measurements. add_engine: adds the options of an engine of our own."""
    whats = parser.add_subparsers(
        dest="what", metavar="WHAT", required=True, parser_class=type(parser)
    )
    speed = whats.add_parser("speed", help="tokens/s of this machine")
    overtake = whats.add_parser(
        "overtake", help="how a realtime request fares among batch streams; sets sizes itself"
    )
    overtake.add_argument("--tries", type=count, default=100, metavar="N")
    for one in (speed, overtake):
        one.add_argument("--model", help="GGUF file, Hugging Face folder, or name")
        add_engine(one)
    _add_serve(whats.add_parser("serve", help="load any OpenAI-compatible server"))


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="http[s]://HOST[:PORT]")
    server = parser.add_argument_group("server")
    server.add_argument("--model", help="its name there; default: the first it lists")
    server.add_argument("--api-key", help="default: $HEADWAY_API_KEY")
    server.add_argument("--endpoint", choices=_ENDPOINTS, default="completions")
    server.add_argument(
        "--priority",
        choices=_PRIORITIES,
        default="service_tier",
        help="how it is told a class: OpenAI's field, vLLM's integer, X-Headway-Class, no way",
    )
    server.add_argument(
        "--no-ignore-eos", action="store_true", help="answers may end early; OpenAI's own API"
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--traffic",
        action="append",
        metavar="CLASS:rate=R[,cv=C]|streams=N,prompt=TOKENS,answer=TOKENS[,shared=TOKENS]",
        help="one class: open loop (Poisson, or gamma with cv) or closed loop; TOKENS is 80, or "
        "quantiles at even levels, 10/80/900; shared: of the prompt, the same for all. Repeatable",
    )
    load.add_argument(
        "--trace",
        metavar=TRACE,
        help="open loop too: Azure's CSV, Mooncake's JSON lines, or synthetic",
    )
    load.add_argument("--rate-scale", type=positive, default=1.0, metavar="X", help="of the trace")
    add_classes(load, "of the trace")
    load.add_argument("--prompt", metavar="TOKENS", help="instead of the trace's lengths")
    load.add_argument("--answer", metavar="TOKENS", help="likewise")
    load.add_argument("--seconds", type=positive, default=60.0, metavar="S")
    load.add_argument(
        "--warmup", type=positive, default=8.0, metavar="S", help="of them, that don't count"
    )
    load.add_argument("--seed", type=int, default=0, metavar="N")
    out = parser.add_argument_group("answers")
    out.add_argument(
        "--objectives",
        default="realtime.ttft=0.5,realtime.itl=0.05",
        metavar="CLASS.ttft|itl=S[,…]",
        help="what a good request sees, for goodput",
    )
    out.add_argument("--json", metavar="OUT.json")
    out.add_argument("--html", metavar="OUT.html")
