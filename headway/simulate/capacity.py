"""Capacity planning: the largest rate at which objectives are met."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headway.core.types import ServiceClass
from headway.simulate.cells import Cell, run_cells
from headway.simulate.figures import Figures, Objective, Objectives, Spread
from headway.simulate.traces import Trace

_PRECISION = 1.05
_LEAST_SCALE = 1 / 64
_MOST_SCALE = 256.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried. `broken`: what was not met, in words; empty where all was."""

    rate_scale: float
    figures: Figures
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `best`: the largest rate that met everything, if any did.

    probes: all that were tried, by rate.
    """

    best: Probe | None
    probes: tuple[Probe, ...]


def broken(figures: Figures, objectives: Objectives) -> tuple[str, ...]:
    """Which objectives a replay missed: at p99, or p90 with too few requests for that.

    A request that was cut misses too.
    """
    found = []
    for service_class in ServiceClass:
        objective = objectives.get(service_class)
        seen = figures.classes.get(service_class)
        if objective is None or seen is None:
            continue
        if seen.cut:
            found.append(f"{service_class.label}: {seen.cut} requests cut")
        for name, spread, limit_s in (
            ("TTFT", seen.ttft, objective.ttft_s),
            ("ITL", seen.itl, objective.itl_s),
        ):
            tail_s = _tail(spread, seen.tail)
            if tail_s > limit_s:
                found.append(
                    f"{service_class.label} {name} {seen.tail} {tail_s:.3g} s > {limit_s:g} s"
                )
    return tuple(found)


def _tail(spread: Spread, name: str) -> float:
    return spread.p99 if name == "p99" else spread.p90


Tried = Callable[[Probe], None]


def largest_rate(
    cell: Cell,
    trace: Trace,
    objectives: dict[ServiceClass, Objective],
    jobs: int,
    tried: Tried = lambda probe: None,
) -> Plan:
    """The largest rate scale, to 5 %, that meets the objectives; starts at the cell's own.

    Takes it that a higher rate never helps. Rates of one round run in parallel.
    """
    search = _Search(cell, trace, objectives, max(jobs, 1), tried)
    start = cell.mix.rate_scale
    low, high = search.bracket(start)
    while low is not None and high is not None and high / low > _PRECISION:
        step = (high / low) ** (1 / (search.jobs + 1))
        search.run([low * step**i for i in range(1, search.jobs + 1)])
        low, high = search.edges()
    probes = tuple(sorted(search.probes, key=lambda p: p.rate_scale))
    best = next((p for p in probes if p.rate_scale == low), None)
    return Plan(best, probes)


class _Search:
    """Rates tried so far."""

    def __init__(
        self,
        cell: Cell,
        trace: Trace,
        objectives: dict[ServiceClass, Objective],
        jobs: int,
        tried: Tried,
    ) -> None:
        self.jobs = jobs
        self.probes: list[Probe] = []
        self._cell = cell
        self._trace = trace
        self._objectives = objectives
        self._tried = tried

    def run(self, scales: Sequence[float]) -> None:
        """Try some rates."""
        cells = [replace(self._cell, mix=replace(self._cell.mix, rate_scale=s)) for s in scales]
        results = run_cells(cells, self._trace, self.jobs)
        for scale, result in zip(scales, results, strict=True):
            probe = Probe(scale, result, broken(result, self._objectives))
            self.probes.append(probe)
            self._tried(probe)

    def edges(self) -> tuple[float | None, float | None]:
        """The largest rate below the first that failed, and that one."""
        failed = [p.rate_scale for p in self.probes if p.broken]
        high = min(failed, default=None)
        met = [
            p.rate_scale
            for p in self.probes
            if not p.broken and (high is None or p.rate_scale < high)
        ]
        return max(met, default=None), high

    def bracket(self, start: float) -> tuple[float | None, float | None]:
        """Double, or halve, until the answer is between two rates (None where it is not)."""
        self.run([start * 2**i for i in range(self.jobs)])
        low, high = self.edges()
        while high is None and low is not None and low < _MOST_SCALE:
            self.run([low * 2 ** (i + 1) for i in range(self.jobs)])
            low, high = self.edges()
        while low is None and high is not None and high > _LEAST_SCALE:
            self.run([high / 2 ** (i + 1) for i in range(self.jobs)])
            low, high = self.edges()
        return low, high
