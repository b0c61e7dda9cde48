"""Figures of a load by class: latencies, goodput, tokens a second, errors, and whether the client
kept up."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from headway.bench.replay import CUT, Recording, Sample, Strain
from headway.core.types import ServiceClass
from headway.simulate.figures import ENOUGH_FOR_P99, Objective, Objectives, Spread, tail_of

_MOST_LATE_S = 0.01
_MOST_SLIP_S = 0.01
_MOST_CPU = 0.8


@dataclass(frozen=True, slots=True)
class ClassOutcome:
    """One class, over the time that counts; times in seconds.

    requests: answered whole. errors: by kind. itl: between events with tokens. tpot: a request's
    mean a token. good_per_s: requests a second that kept to their objective.
    """

    requests: int
    errors: Mapping[str, int]
    ttft: Spread
    itl: Spread
    tpot: Spread
    e2e: Spread
    tokens_per_s: float
    good_per_s: float

    @property
    def tail(self) -> str:
        """The highest percentile that the number of requests carries."""
        return tail_of(self.requests)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run. seconds: that count, after the warm-up. doubts: why the figures may be the
    client's rather than the server's."""

    seconds: float
    classes: Mapping[ServiceClass, ClassOutcome]
    doubts: tuple[str, ...]


def outcome(recording: Recording, objectives: Objectives) -> Outcome:
    """Sum a run up."""
    seconds = max(recording.end_s - recording.begin_s, 1e-9)
    by_class = {
        c: [s for s in recording.samples if s.service_class is c] for c in sorted(ServiceClass)
    }
    return Outcome(
        seconds,
        {
            c: _class_outcome(samples, objectives.get(c, Objective()), recording)
            for c, samples in by_class.items()
            if samples
        },
        tuple(_doubts(recording.strain)),
    )


def _class_outcome(
    samples: Sequence[Sample], objective: Objective, recording: Recording
) -> ClassOutcome:
    begin_s, end_s = recording.begin_s, recording.end_s
    seconds = max(end_s - begin_s, 1e-9)
    counted = [s for s in samples if begin_s <= s.due_s < end_s]
    whole = [s for s in counted if not s.error and s.answer.times_s]
    good = [s for s in whole if _good(s, objective)]
    tokens = sum(
        _tokens_an_event(s) for s in samples for at_s in s.answer.times_s if begin_s <= at_s < end_s
    )
    errors = Counter(s.error for s in counted if s.error and s.error != CUT)
    errors.update("empty" for s in counted if not s.error and not s.answer.times_s)
    return ClassOutcome(
        requests=len(whole),
        errors=dict(errors),
        ttft=Spread.of([s.answer.ttft_s for s in counted if s.answer.times_s]),
        itl=Spread.of([gap for s in counted for gap in gaps_s(s)]),
        tpot=Spread.of([tpot_s(s) for s in whole if tokens_of(s) > 1]),
        e2e=Spread.of([s.end_s - s.answer.sent_s for s in whole]),
        tokens_per_s=tokens / seconds,
        good_per_s=len(good) / seconds,
    )


def _good(sample: Sample, objective: Objective) -> bool:
    return sample.answer.ttft_s <= objective.ttft_s and tpot_s(sample) <= objective.itl_s


def gaps_s(sample: Sample) -> Iterator[float]:
    """Times between the events of an answer."""
    times_s = sample.answer.times_s
    return (later - earlier for earlier, later in pairwise(times_s))


def tokens_of(sample: Sample) -> int:
    """Tokens of an answer as the server counts them, else its events."""
    usage = sample.answer.usage
    return usage.completion_tokens if usage else len(sample.answer.times_s)


def tpot_s(sample: Sample) -> float:
    """Mean time a token after the first; 0 for a single one."""
    times_s, tokens = sample.answer.times_s, tokens_of(sample)
    return (times_s[-1] - times_s[0]) / (tokens - 1) if tokens > 1 else 0.0


def _tokens_an_event(sample: Sample) -> float:
    """An event may carry several tokens."""
    return tokens_of(sample) / len(sample.answer.times_s)


def _doubts(strain: Strain) -> Iterator[str]:
    late = Spread.of(strain.late_s)
    if late.p99 > _MOST_LATE_S:
        yield f"requests went out late: 1 % of them by {1e3 * late.p99:.0f} ms or more"
    slips = Spread.of(strain.slips_s)
    if slips.p99 > _MOST_SLIP_S:
        yield (
            f"this client was held up: 1 % of its timers by {1e3 * slips.p99:.0f} ms or more, "
            "so much may be added to any latency"
        )
    if strain.cpu_s > _MOST_CPU * strain.elapsed_s:
        share = strain.cpu_s / strain.elapsed_s
        yield f"this client used {share:.0%} of a core, all that it can: it was the bottleneck"


_COLUMNS = (
    ("class", 9),
    ("requests", 9),
    ("errors", 7),
    ("TTFT ms p50/p90/p99", 22),
    ("ITL ms p50/p90/p99", 22),
    ("TPOT ms p50/p90/p99", 22),
    ("end to end s p50/p90/p99", 25),
    ("tok/s", 8),
    ("good/s", 8),
)


def table(result: Outcome) -> Iterator[str]:
    """A row a class, then what is to be said about them."""
    yield "".join(name.rjust(width) for name, width in _COLUMNS)
    for service_class, seen in result.classes.items():
        cells = (service_class.label, *row(seen))
        widths = (width for _, width in _COLUMNS)
        yield "".join(text.rjust(w) for text, w in zip(cells, widths, strict=True))
    for service_class, seen in result.classes.items():
        for kind, times in seen.errors.items():
            yield f"{service_class.label}: {times} x {kind}"
    if any(seen.tail == "p90" for seen in result.classes.values()):
        yield f"no p99 on fewer than {ENOUGH_FOR_P99} requests"
    for doubt in result.doubts:
        yield f"doubtful: {doubt}"


def row(seen: ClassOutcome) -> tuple[str, ...]:
    """Cells of the table after the class's name."""
    enough = seen.tail == "p99"
    return (
        f"{seen.requests}",
        f"{sum(seen.errors.values())}",
        _percentiles(seen.ttft, 1e3, enough),
        _percentiles(seen.itl, 1e3, enough),
        _percentiles(seen.tpot, 1e3, enough),
        _percentiles(seen.e2e, 1, enough),
        f"{seen.tokens_per_s:.0f}",
        f"{seen.good_per_s:.2f}",
    )


def headings() -> tuple[str, ...]:
    """The table's."""
    return tuple(name for name, _ in _COLUMNS)


def _percentiles(spread: Spread, scale: float, enough: bool) -> str:
    if not spread.count:
        return "-"
    values = [v * scale for v in (spread.p50, spread.p90, spread.p99)][: 3 if enough else 2]
    text = "/".join(
        f"{v:.0f}" if v >= 100 else f"{v:.1f}" if v >= 1 else f"{v:.2f}" for v in values
    )
    return text if enough else f"{text}/-"


def document(result: Outcome, settings: Mapping[str, object]) -> dict[str, object]:
    """All figures as JSON values, in seconds; `tail` names the percentile to quote."""
    return {
        "settings": dict(settings),
        "seconds": result.seconds,
        "doubts": list(result.doubts),
        "classes": {
            c.label: {**asdict(seen), "tail": seen.tail} for c, seen in result.classes.items()
        },
    }
