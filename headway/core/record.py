"""What a plan decided and why: who computes, was passed over, is paused, was evicted."""

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from headway.core.sequence import Sequence
from headway.core.types import Lane, PreemptKind, RequestId


@dataclass(frozen=True, slots=True)
class Computed:
    """A request in the step: a decode row if `decoding`, else a prefill chunk."""

    request: RequestId
    tokens: int
    decoding: bool


@dataclass(frozen=True, slots=True)
class Left:
    """A request that did not compute, or did not enter, and the reason in words."""

    request: RequestId
    reason: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """A victim, for whom it went, and what that was expected to cost.

    cost_s: seconds of copying out and in, or of computing again. blocks: held until then.
    """

    request: RequestId
    wanted_by: RequestId
    kind: PreemptKind
    cost_s: float
    blocks: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One plan. limit_s: longest the step was allowed to take, predicted_s: expected to."""

    step: int
    lane: Lane
    limit_s: float
    predicted_s: float
    computed: tuple[Computed, ...] = ()
    entered: tuple[RequestId, ...] = ()
    evicted: tuple[Evicted, ...] = ()
    passed_over: tuple[Left, ...] = ()
    paused: tuple[Left, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A record as it is kept: few are ever read, and `computed` is hundreds of objects.

    computed: request, tokens, decoding of each.
    """

    record: StepRecord
    computed: tuple[tuple[RequestId, int, bool], ...]

    def whole(self) -> StepRecord:
        """The record with all that is in it."""
        return replace(self.record, computed=tuple(Computed(*row) for row in self.computed))


@dataclass(slots=True)
class Notes:
    """Collects reasons while a plan is made. Lives for one plan."""

    evicted: list[Evicted] = field(default_factory=list)
    _passed: dict[Sequence, str] = field(default_factory=dict)
    _paused: dict[Sequence, str] = field(default_factory=dict)

    def passed(self, sequence: Sequence, reason: str) -> None:
        """A waiting or swapped request was looked at and did not enter."""
        self._passed[sequence] = reason

    def paused(self, sequence: Sequence, reason: str) -> None:
        """A resident was looked at and does not compute in this step, as far as is known yet."""
        self._paused[sequence] = reason

    def passed_over(self, entered: Container[Sequence]) -> tuple[Left, ...]:
        """Those that were passed over in the end."""
        return tuple(Left(s.id, why) for s, why in self._passed.items() if s not in entered)

    def left_out(self, residents: Iterable[Sequence], usual: str) -> tuple[Left, ...]:
        """Why each of the residents left out is paused; `usual` where nothing was noted."""
        return tuple(Left(s.id, self._why(s, usual)) for s in residents)

    def _why(self, sequence: Sequence, usual: str) -> str:
        if not sequence.seated:
            return "gave its seat to a higher class"
        if sequence.wanted_by is not None:
            return "is about to be displaced"
        return self._paused.get(sequence, usual)


class Records:
    """The last plans' records, oldest dropped first. Read from any thread."""

    def __init__(self, most: int) -> None:
        """Keep `most` records; 0 keeps none."""
        self._drafts: deque[Draft] = deque(maxlen=most)

    def add(self, draft: Draft) -> None:
        """Keep a record."""
        self._drafts.append(draft)

    def find(self, step: int) -> StepRecord | None:
        """The record of a step, if it is still kept."""
        return next((d.whole() for d in tuple(self._drafts) if d.record.step == step), None)

    def latest(self) -> StepRecord | None:
        """The last record."""
        return self._drafts[-1].whole() if self._drafts else None
