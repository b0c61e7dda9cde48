"""What `headway bench serve` and `headway simulate` both say of a trace."""

import argparse

from headway.cli.numbers import assignments

TRACE = "FILE|poisson[:RATE]|gamma[:RATE[:CV]]"
_SHARES = "realtime=0.2,standard=0.5,batch=0.3"


def add_classes(load: argparse._ArgumentGroup, meaning: str) -> None:
    """Add --classes, by default a mix of all three. meaning: for its help."""
    load.add_argument(
        "--classes",
        type=assignments,
        default=_SHARES,
        metavar="CLASS=SHARE[,…]",
        help=f"{meaning}; default: {_SHARES}",
    )
