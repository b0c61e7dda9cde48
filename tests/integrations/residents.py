"""Steps of vLLM in a line each, without vLLM."""

from collections import Counter
from collections.abc import Iterable, Sequence

from headway.core.types import BlockId, ServiceClass
from headway_vllm.members import Candidate, Decision, Member, Picture, Resident
from headway_vllm.planner import Planner


class CountedPool:
    """Reference counts of whatever the residents hold."""

    def __init__(self, residents: Iterable[Resident]) -> None:
        self._counts = Counter(block for resident in residents for block in resident.blocks)

    @property
    def shared(self) -> int:
        return sum(1 for count in self._counts.values() if count > 1)

    def references(self, block: BlockId) -> int:
        return self._counts[block]


def member(
    number: int, service_class: ServiceClass, arrival_s: float = 0.0, step: int = -1
) -> Member:
    """A request's history; `step` of its admission, if it was admitted."""
    return Member(service_class, number, arrival_s, arrival_s, admission_step=step)


def resident(
    number: int,
    service_class: ServiceClass,
    blocks: Sequence[int],
    growth: int = 0,
    tokens: int = 1,
    freeable: bool = True,
) -> Resident:
    """A running request that was admitted in the order of its number."""
    held = [BlockId(block) for block in blocks]
    return Resident(
        member(number, service_class, step=number),
        growth,
        tokens,
        computed=16 * len(held),
        freeable=freeable,
        hold=lambda: held,
    )


def candidate(
    number: int,
    service_class: ServiceClass,
    need: int,
    tokens: int = 8,
    arrival_s: float = 0.0,
) -> Candidate:
    """A waiting request that has not run."""
    return Candidate(member(number, service_class, arrival_s), need, tokens)


def picture(
    residents: Sequence[Resident],
    waiting: Sequence[Candidate],
    free: int,
    seats: int,
    step_tokens: int = 256,
    now_s: float = 0.5,
) -> Picture:
    """A step; those waiting are put into their lines in the order given."""
    lines: dict[ServiceClass, list[Candidate]] = {c: [] for c in ServiceClass}
    for entry in waiting:
        lines[entry.member.service_class].append(entry)
    return Picture(residents, lines, free, seats, step_tokens, now_s)


def decide(step: Picture, cost_s: dict[int, float] | None = None) -> Decision:
    """What the planner decides. cost_s: by number; else a second a block."""
    costs = cost_s or {}
    pool = CountedPool(step.residents)
    planner = Planner(step, pool, lambda r: costs.get(r.number, float(len(r.blocks))), pass_s=1.0)
    return planner.decide()
