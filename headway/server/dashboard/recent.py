"""The last minutes: first tokens, time between tokens, preemptions and pauses, for who comes to
watch. An engine Observer; it keeps a bounded number of small values."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headway.core.types import RequestId, ServiceClass
from headway.engine.types import RequestEnd, StepEnd
from headway.server.pauses import Pauses

MOST_FIRSTS = 2000
MOST_PREEMPTIONS = 200
MOST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A request's first token. number: counts up, over all of them."""

    number: int
    when_s: float
    service_class: ServiceClass
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Preemption:
    """A victim, and for whom it went. Classes are None for requests that have ended since."""

    number: int
    when_s: float
    kind: str
    request: RequestId
    service_class: ServiceClass | None
    wanted_by: RequestId
    wanted_by_class: ServiceClass | None
    blocks: int


@dataclass(frozen=True, slots=True)
class ClassSecond:
    """One class in one second: tokens generated, median and 95th percentile of the time between
    tokens, and how often residents were paused."""

    tokens: int
    itl_p50_s: float
    itl_p95_s: float
    pauses: int


@dataclass(frozen=True, slots=True)
class Second:
    """What happened in about a second in which the engine worked."""

    number: int
    when_s: float
    classes: dict[ServiceClass, ClassSecond]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far somebody has read: the numbers of the last entries."""

    first: int = -1
    preemption: int = -1
    second: int = -1


@dataclass(frozen=True, slots=True)
class News:
    """What is new, and how far that goes. step_s, predicted_s: the last step's time."""

    firsts: Sequence[FirstToken]
    preemptions: Sequence[Preemption]
    seconds: Sequence[Second]
    cursor: Cursor
    step_s: float
    predicted_s: float


@dataclass(slots=True)
class _Gathering:
    """A second that is not over yet."""

    start_s: float = 0.0
    gaps_s: dict[ServiceClass, list[float]] = field(
        default_factory=lambda: {c: [] for c in ServiceClass}
    )
    firsts: Counter[ServiceClass] = field(default_factory=Counter)
    pauses: Counter[ServiceClass] = field(default_factory=Counter)

    @property
    def empty(self) -> bool:
        """Whether nothing happened in it."""
        return not (self.firsts or self.pauses or any(self.gaps_s.values()))

    def summary(self, number: int) -> Second:
        """The second, once it is over."""
        return Second(number, self.start_s, {c: self._of(c) for c in ServiceClass})

    def _of(self, service_class: ServiceClass) -> ClassSecond:
        gaps_s = sorted(self.gaps_s[service_class])
        tokens = len(gaps_s) + self.firsts[service_class]
        pauses = self.pauses[service_class]
        return ClassSecond(tokens, _quantile(gaps_s, 0.5), _quantile(gaps_s, 0.95), pauses)


class Recent:
    """Written by the engine thread, read by any other.

    clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._firsts: deque[FirstToken] = deque(maxlen=MOST_FIRSTS)
        self._preemptions: deque[Preemption] = deque(maxlen=MOST_PREEMPTIONS)
        self._seconds: deque[Second] = deque(maxlen=MOST_SECONDS)
        self._now = _Gathering()
        self._numbers: Counter[str] = Counter()
        self._pauses = Pauses()
        self._step_s = self._predicted_s = 0.0

    def news(self, since: Cursor) -> News:
        """Everything after a cursor, as far as it is kept."""
        with self._lock:
            self._roll(self._clock())
            firsts = _after(self._firsts, since.first)
            preemptions = _after(self._preemptions, since.preemption)
            seconds = _after(self._seconds, since.second)
            last = [self._numbers[kind] - 1 for kind in ("first", "preemption", "second")]
            return News(
                firsts, preemptions, seconds, Cursor(*last), self._step_s, self._predicted_s
            )

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """Not shown."""

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Tokens of one request in one step."""
        now_s = self._clock()
        with self._lock:
            self._roll(now_s)
            if not first:
                self._now.gaps_s[service_class] += gaps_s
                return
            self._now.firsts[service_class] += 1
            number = self._number("first")
            self._firsts.append(FirstToken(number, now_s, service_class, gaps_s[0]))

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """Told with the step, which knows for whom."""

    def on_finished(self, end: RequestEnd) -> None:
        """Not shown."""

    def on_step(self, end: StepEnd) -> None:
        """Who was preempted for whom, and who was paused."""
        record, outcome, now_s = end.record, end.outcome, self._clock()
        with self._lock:
            self._roll(now_s)
            for evicted in record.evicted:
                victim, wanted_by = evicted.request, evicted.wanted_by
                classes = end.classes.get(victim), end.classes.get(wanted_by)
                self._preemptions.append(
                    Preemption(
                        self._number("preemption"),
                        now_s,
                        evicted.kind.value,
                        victim,
                        classes[0],
                        wanted_by,
                        classes[1],
                        evicted.blocks,
                    )
                )
            self._now.pauses.update(self._pauses.begun(end))
            timing = getattr(outcome, "timing", None)
            if timing is not None and end.plan.chunks:
                self._step_s, self._predicted_s = timing.compute_s, record.predicted_s

    def _roll(self, now_s: float) -> None:
        """Close the second if it is over."""
        if now_s - self._now.start_s < 1.0:
            return
        if not self._now.empty:
            self._seconds.append(self._now.summary(self._number("second")))
        self._now = _Gathering(now_s)

    def _number(self, kind: str) -> int:
        self._numbers[kind] += 1
        return self._numbers[kind] - 1


_N = TypeVar("_N", FirstToken, Preemption, Second)


def _after(entries: Iterable[_N], number: int) -> list[_N]:
    return [entry for entry in entries if entry.number > number]


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)] if ascending else 0.0
