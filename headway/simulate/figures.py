"""Figures of a replay by class: latencies, goodput, throughput, and what was preempted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway.simulate.record import ClassRecord, Life, Recorder, ended_well

ENOUGH_FOR_P99 = 500
"""A p99 rests on at least this many requests; below, p90 is quoted."""

_CDF_POINTS = 101
_PARTS = 4


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request of a class should see, in seconds; inf asks for nothing.

    ttft_s: to the first token. itl_s: between tokens; a request's mean (TPOT) must keep to it.
    """

    ttft_s: float = float("inf")
    itl_s: float = float("inf")

    def met_by(self, life: Life) -> bool:
        """Whether a request that ended well kept to it."""
        if life.first_s is None or life.first_s - life.arrival_s > self.ttft_s:
            return False
        return tpot_s(life) <= self.itl_s


Objectives = Mapping[ServiceClass, Objective]


def parse_objectives(text: str) -> dict[ServiceClass, Objective]:
    """`realtime.ttft=0.5,realtime.itl=0.05`. Raises ConfigError for anything else."""
    labels = {c.label: c for c in ServiceClass}
    wanted: dict[ServiceClass, dict[str, float]] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        label, _, what = name.strip().partition(".")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if label not in labels or what not in ("ttft", "itl") or not equals or not seconds > 0:
            raise ConfigError(f"{part.strip()!r} is not CLASS.ttft=SECONDS or CLASS.itl=SECONDS")
        wanted.setdefault(labels[label], {})[f"{what}_s"] = seconds
    return {c: Objective(**values) for c, values in wanted.items()}


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in seconds: count, mean, percentiles, and the values at 101 even levels."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float
    levels: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Percentiles by linear interpolation; all 0 for no values."""
        ordered = sorted(values)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, ())
        levels = tuple(_at(ordered, i / (_CDF_POINTS - 1)) for i in range(_CDF_POINTS))
        mean = sum(ordered) / len(ordered)
        return cls(len(ordered), mean, levels[50], levels[90], levels[99], ordered[-1], levels)


def _at(ordered: Sequence[float], level: float) -> float:
    place = level * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True, slots=True)
class Quartile:
    """Time to first token of a quarter of a class's requests, those next in length of prompt.

    longest: tokens of its longest prompt.
    """

    longest: int
    ttft: Spread

    @property
    def tail(self) -> str:
        """The highest percentile that the number of requests carries."""
        return tail_of(self.ttft.count)


def tail_of(requests: int) -> str:
    """The highest percentile that so many requests carry."""
    return "p99" if requests >= ENOUGH_FOR_P99 else "p90"


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One class. Rates are over the time from the first arrival to the last token of the trace.

    requests: that ended with their whole answer; cut: ended without it (refused ones too).
    good_per_s: requests a second that kept to their objective.
    quartiles: by length of prompt, shortest first; none with fewer than four requests.
    """

    requests: int
    cut: int
    ttft: Spread
    itl: Spread
    tpot: Spread
    requests_per_s: float
    good_per_s: float
    tokens_per_s: float
    pauses: int
    swaps: int
    recomputes: int
    quartiles: tuple[Quartile, ...] = ()

    @property
    def preemptions(self) -> int:
        """Times a request lost its blocks, either way."""
        return self.swaps + self.recomputes

    @property
    def tail(self) -> str:
        """The highest percentile that the number of requests carries."""
        return tail_of(self.requests)


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole replay.

    span_s: virtual time that rates are over. busy, copying: shares of it in which a step ran, and
        in which it copied blocks (lanes added up).
    achieved_tokens_per_s, bound_tokens_per_s, paper_tokens_per_s: of decoding, as the scheduler
        meters them; mean over windows of 1,000 steps.
    """

    span_s: float
    busy: float
    copying: float
    steps: int
    mean_rows: float
    longest_step_s: float
    interrupted: int
    prefill_tokens: int
    recomputed_tokens: int
    cached_tokens: int
    achieved_tokens_per_s: float
    bound_tokens_per_s: float
    paper_tokens_per_s: float
    classes: Mapping[ServiceClass, ClassFigures]


def figures(recorder: Recorder, objectives: Objectives) -> Figures:
    """Sum a replay up. Requests aborted at its end (the backlog) count by their tokens only."""
    span_s = max(recorder.end_s, 1e-9)
    by_class: dict[ServiceClass, list[Life]] = {c: [] for c in ServiceClass}
    for life in recorder.lives.values():
        by_class[life.service_class].append(life)
    busy = recorder.busy
    usages = [life.finished.usage for life in recorder.lives.values() if life.finished]
    return Figures(
        span_s=span_s,
        busy=busy.any_s / span_s,
        copying=busy.copying_s / span_s,
        steps=busy.steps,
        mean_rows=busy.decode_tokens / max(busy.steps, 1),
        longest_step_s=busy.longest_step_s,
        interrupted=busy.interrupted,
        prefill_tokens=busy.prefill_tokens,
        recomputed_tokens=sum(u.recomputed for u in usages),
        cached_tokens=sum(u.cached for u in usages),
        achieved_tokens_per_s=_mean([w.achieved for w in recorder.windows]),
        bound_tokens_per_s=_mean([w.bound for w in recorder.windows]),
        paper_tokens_per_s=_mean([w.paper for w in recorder.windows]),
        classes={
            c: _class_figures(
                by_class[c], recorder.classes[c], objectives.get(c, Objective()), span_s
            )
            for c in ServiceClass
            if by_class[c] or recorder.classes[c].refused
        },
    )


def _class_figures(
    lives: list[Life], record: ClassRecord, objective: Objective, span_s: float
) -> ClassFigures:
    ended = [life for life in lives if ended_well(life)]
    good = sum(1 for life in ended if objective.met_by(life))
    return ClassFigures(
        requests=len(ended),
        cut=len(lives) - len(ended) + record.refused,
        ttft=Spread.of(
            [life.first_s - life.arrival_s for life in ended if life.first_s is not None]
        ),
        itl=Spread.of(record.gaps_s),
        tpot=Spread.of([tpot_s(life) for life in ended if life.tokens > 1]),
        requests_per_s=len(ended) / span_s,
        good_per_s=good / span_s,
        tokens_per_s=record.tokens / span_s,
        pauses=record.pauses,
        swaps=record.swaps,
        recomputes=record.recomputes,
        quartiles=_quartiles(ended),
    )


def _quartiles(lives: list[Life]) -> tuple[Quartile, ...]:
    ordered = sorted(lives, key=lambda life: life.prompt_tokens)
    edges = [len(ordered) * i // _PARTS for i in range(_PARTS + 1)]
    parts = [ordered[start:end] for start, end in pairwise(edges)]
    return tuple(
        Quartile(
            part[-1].prompt_tokens,
            Spread.of([life.first_s - life.arrival_s for life in part if life.first_s is not None]),
        )
        for part in parts
        if all(parts)
    )


def tpot_s(life: Life) -> float:
    """Mean time between a request's tokens; 0 for a single one."""
    if life.first_s is None or life.tokens < 2:
        return 0.0
    return (life.last_s - life.first_s) / (life.tokens - 1)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
