"""The grammar of `headway simulate`."""

import argparse
from collections.abc import Callable
from typing import TypeVar

from headway.cli.load_arguments import TRACE, add_classes
from headway.cli.numbers import count, natural, positive

_T = TypeVar("_T")


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the options. Those in the plural take several values, and every combination is run."""
    load = parser.add_argument_group("load")
    load.add_argument(
        "--trace",
        default="poisson",
        metavar=TRACE,
        help="Azure's CSV, Mooncake's JSON lines, or synthetic; default: poisson",
    )
    load.add_argument("--max-requests", type=count, metavar="N", help="only the first N")
    load.add_argument(
        "--rate-scale",
        type=_several(positive),
        default=(1.0,),
        metavar="X[,X…]",
        help="arrivals this many times as fast",
    )
    add_classes(load, "a request's class is drawn with these")
    load.add_argument(
        "--backlog",
        type=_several(natural),
        default=(0,),
        metavar="N[,N…]",
        help="batch requests always there, waiting or running: also a cap on them",
    )
    load.add_argument("--seed", type=int, default=0, metavar="N")
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--model", default="llama-3.1-8b", metavar="NAME|config.json", help="a known model's name"
    )
    machine.add_argument("--device", default="h100", metavar="h100|h200|a100|cpu")
    machine.add_argument("--kv-blocks", type=count, metavar="N", help="default: what fits")
    machine.add_argument("--host-blocks", type=natural, metavar="N", help="blocks to swap into")
    machine.add_argument("--max-seqs", type=_several(count), default=(256,), metavar="N[,N…]")
    machine.add_argument(
        "--max-step-tokens",
        type=_several(count),
        default=(8192,),
        metavar="N[,N…]",
        help="the chunk size, where no target bounds a step",
    )
    machine.add_argument(
        "--calibrate", metavar="FILE.json", help="fit the device to step timings first"
    )
    machine.add_argument(
        "--layer-group",
        type=natural,
        metavar="N",
        help="realtime stops a step after every N layers; 0: nowhere; default: the device's",
    )
    rules = parser.add_argument_group("scheduling")
    rules.add_argument("--policy", type=_several(str), default=("tiered",), metavar="NAME[,NAME…]")
    rules.add_argument(
        "--lanes",
        type=_several(str),
        default=("unified",),
        metavar="unified|auto|split[:SHARE][,…]",
        help="SHARE: of the units, always the prefill lane's; without it they move as need be",
    )
    rules.add_argument("--itl-target", type=positive, metavar="MS", help="realtime's ITL")
    rules.add_argument("--ttft-target", type=positive, metavar="MS", help="realtime's TTFT")
    out = parser.add_argument_group("answers")
    out.add_argument(
        "--objectives",
        default="realtime.ttft=0.5,realtime.itl=0.05,standard.ttft=2,standard.itl=0.1",
        metavar="CLASS.ttft|itl=S[,…]",
        help="what a good request sees, for goodput",
    )
    out.add_argument(
        "--slo", metavar="CLASS.ttft|itl=S[,…]", help="find the largest rate that meets these"
    )
    out.add_argument("--jobs", type=count, metavar="N", help="processes; default: the cores")
    out.add_argument("--json", metavar="OUT.json")
    out.add_argument("--plot", metavar="OUT.svg")


def _several(one: Callable[[str], _T]) -> Callable[[str], tuple[_T, ...]]:
    """A comma-separated list."""

    def parse(text: str) -> tuple[_T, ...]:
        return tuple(one(part.strip()) for part in text.split(","))

    return parse
