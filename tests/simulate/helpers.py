"""Small simulations that run in well under a second."""

from headway.simulate.cells import Cell, Sizes
from headway.simulate.devices import find_device
from headway.simulate.figures import parse_objectives
from headway.simulate.shapes import find_model
from headway.simulate.workload import Mix, parse_shares

MIX = {"realtime": 0.2, "standard": 0.5, "batch": 0.3}
OBJECTIVES = "realtime.ttft=0.5,realtime.itl=0.05"


def make_cell(
    policy: str = "tiered",
    device: str = "h100",
    model: str = "llama-3.1-8b",
    sizes: Sizes | None = None,
    shares: dict[str, float] | None = None,
    rate_scale: float = 1.0,
    backlog: int = 0,
    seed: int = 0,
    lanes: str = "unified",
) -> Cell:
    """A cell with everything defaulted that a test is not about."""
    return Cell(
        device=find_device(device),
        model=find_model(model),
        policy=policy,
        sizes=sizes or Sizes(),
        mix=Mix(parse_shares(shares or MIX), rate_scale, backlog, seed),
        lanes=lanes,
        objectives=parse_objectives(OBJECTIVES),
    )
