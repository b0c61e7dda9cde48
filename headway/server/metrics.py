"""Figures for Prometheus: counters and histograms fed by the engine thread.

One writer (the engine thread) and plain integers: recording a token costs no lock and no lookup by
label, and a scrape reads whatever is there. `metrics_families` turns them into what is scraped.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.plan import StepFailure
from headway.core.request import Usage
from headway.core.types import FinishReason, Lane, PreemptKind, ServiceClass
from headway.engine.types import RequestEnd, StepEnd
from headway.server.pauses import Pauses


def _seconds(*milliseconds: float) -> tuple[float, ...]:
    return tuple(ms / 1000 for ms in milliseconds)


TTFT_BOUNDS_S = (
    *_seconds(5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000),
    *(10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0),
)
"""Fine where realtime's targets are, and long enough for batch work that waits for an hour."""

TOKEN_BOUNDS_S = _seconds(
    *(1, 2, 3, 5, 7.5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000),
    *(10_000, 30_000),
)
QUEUE_BOUNDS_S = (
    *_seconds(1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
STEP_BOUNDS_S = _seconds(
    0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000
)
TOKEN_KINDS = ("prompt", "cached", "generated", "recomputed")
PHASES = ("prefill", "decode")
OUTCOMES = ("done", "interrupted", "failed")

MOST_TENANTS = 100
NO_TENANT, OTHER_TENANTS = "(none)", "(other)"
"""Labels: of requests without a tenant, and of tenants beyond the first MOST_TENANTS."""


class Histogram:
    """Counts of observed seconds by upper bound. One thread observes."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count a value into the first bucket whose bound it doesn't exceed."""
        self._counts[bisect_left(self._bounds_s, value_s)] += 1
        self._sum_s += value_s

    @property
    def sum_s(self) -> float:
        """Sum of all observed values."""
        return self._sum_s

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, values up to it) pairs as Prometheus has them, the last being `+Inf`."""
        pairs, total = [], 0
        for bound, count in zip((*self._bounds_s, None), list(self._counts), strict=True):
            total += count
            pairs.append(("+Inf" if bound is None else repr(float(bound)), total))
        return pairs


def _zeros(keys: Iterable[str]) -> Callable[[], dict[str, int]]:
    names = tuple(keys)
    return lambda: dict.fromkeys(names, 0)


@dataclass(slots=True)
class Latencies:
    """Seconds of one service class. tpot: mean time per output token of each request."""

    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    itl: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS_S))
    tpot: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS_S))
    queue: Histogram = field(default_factory=lambda: Histogram(QUEUE_BOUNDS_S))


@dataclass(slots=True)
class ClassFigures:
    """Figures of one service class. pauses: times a resident was left out of a step that followed
    one it was not left out of."""

    latencies: Latencies = field(default_factory=Latencies)
    preemptions: dict[str, int] = field(default_factory=_zeros(k.value for k in PreemptKind))
    finished: dict[str, int] = field(default_factory=_zeros(r.value for r in FinishReason))
    tokens: dict[str, int] = field(default_factory=_zeros(TOKEN_KINDS))
    computed: dict[str, int] = field(default_factory=_zeros(PHASES))
    pauses: int = 0


@dataclass(slots=True)
class LaneFigures:
    """Figures of one lane. predicted_s: sum over the steps in `seconds`."""

    seconds: Histogram = field(default_factory=lambda: Histogram(STEP_BOUNDS_S))
    predicted_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=_zeros(OUTCOMES))


@dataclass(slots=True)
class CopyFigures:
    """Copies between the tiers, by direction."""

    blocks: dict[str, int] = field(default_factory=_zeros(("out", "in")))
    seconds: dict[str, float] = field(default_factory=lambda: {"out": 0.0, "in": 0.0})


class Tenants:
    """Tokens by tenant and class, for a bounded number of tenants."""

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most = most
        self._tokens: dict[tuple[str, ServiceClass], dict[str, int]] = {}
        self._known: set[str] = set()

    def add(self, tenant: str, service_class: ServiceClass, usage: Usage) -> None:
        """Count the tokens of a request that ended."""
        label = tenant or NO_TENANT
        if label not in self._known:
            if len(self._known) >= self._most:
                label = OTHER_TENANTS
            self._known.add(label)
        tokens = self._tokens.setdefault((label, service_class), dict.fromkeys(TOKEN_KINDS, 0))
        _add_usage(tokens, usage)
        tokens["generated"] += usage.generated

    def items(self) -> list[tuple[str, ServiceClass, Mapping[str, int]]]:
        """Tenant, class and tokens by kind."""
        return [(tenant, c, tokens) for (tenant, c), tokens in tuple(self._tokens.items())]


class Metrics:
    """An engine Observer that counts.

    classes, lanes, copies, tenants: what it has counted. Read from any thread.
    """

    def __init__(self) -> None:
        self.classes = {service_class: ClassFigures() for service_class in ServiceClass}
        self.lanes = {lane: LaneFigures() for lane in Lane}
        self.copies = CopyFigures()
        self.tenants = Tenants()
        self._pauses = Pauses()

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """A request left the queue."""
        self.classes[service_class].latencies.queue.observe(queued_s)

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Tokens of one request in one step."""
        figures = self.classes[service_class]
        figures.tokens["generated"] += len(gaps_s)
        histogram = figures.latencies.ttft if first else figures.latencies.itl
        for gap_s in gaps_s:
            histogram.observe(gap_s)

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """A request gave up its blocks."""
        self.classes[service_class].preemptions[kind] += 1

    def on_finished(self, end: RequestEnd) -> None:
        """A request ended. What it generated is counted by class already."""
        figures = self.classes[end.service_class]
        figures.finished[end.reason.value] += 1
        _add_usage(figures.tokens, end.usage)
        self.tenants.add(end.tenant, end.service_class, end.usage)
        if end.usage.generated > 1:
            figures.latencies.tpot.observe(end.decode_s / (end.usage.generated - 1))

    def on_step(self, end: StepEnd) -> None:
        """A step ended."""
        lane, outcome = self.lanes[end.record.lane], end.outcome
        for service_class in self._pauses.begun(end):
            self.classes[service_class].pauses += 1
        if isinstance(outcome, StepFailure):
            lane.outcomes["failed"] += 1
            return
        copies, timing = self.copies, outcome.timing
        copies.blocks["out"] += len(end.plan.swap_out)
        copies.blocks["in"] += len(end.plan.swap_in)
        copies.seconds["out"] += timing.copy_out_s
        copies.seconds["in"] += timing.copy_in_s
        if outcome.interrupted:
            lane.outcomes["interrupted"] += 1
        else:
            lane.outcomes["done"] += 1
            if end.plan.chunks:
                lane.seconds.observe(timing.compute_s)
                lane.predicted_s += end.record.predicted_s
        chunks = end.plan.computed(outcome.interrupted)
        for computed in end.record.computed[: len(chunks)]:
            computed_class = end.classes.get(computed.request)
            if computed_class is not None:
                phase = "decode" if computed.decoding else "prefill"
                self.classes[computed_class].computed[phase] += computed.tokens


def _add_usage(tokens: dict[str, int], usage: Usage) -> None:
    """What is known of a request's tokens when it ends, but for those it generated."""
    tokens["prompt"] += usage.prompt
    tokens["cached"] += usage.cached
    tokens["recomputed"] += usage.recomputed
