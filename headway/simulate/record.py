"""What happened in a replay, kept small: a few numbers a request, gaps between tokens by class."""

from array import array
from dataclasses import dataclass, field

from headway.core.plan import StepPlan, StepResult
from headway.core.request import Committed, Finished, Request, Throughput
from headway.core.types import FinishReason, Lane, PreemptKind, RequestId, ServiceClass


@dataclass(slots=True)
class Life:
    """One request. Times are the clock's; `tokens` counts those of the answer.

    worst_gap_s: longest time between two of its tokens.
    """

    arrival_s: float
    service_class: ServiceClass
    prompt_tokens: int
    queued_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0
    worst_gap_s: float = 0.0
    finished: Finished | None = None


@dataclass(slots=True)
class ClassRecord:
    """What one class saw.

    gaps_s: time between tokens in a row (ITL), all requests together.
    pauses: times a request that computed in a step was left out of the next with its blocks kept.
    """

    gaps_s: "array[float]" = field(default_factory=lambda: array("f"))
    tokens: int = 0
    pauses: int = 0
    swaps: int = 0
    recomputes: int = 0
    refused: int = 0


@dataclass(slots=True)
class Busy:
    """Where the time went, in seconds of virtual time, and steps that did anything.

    any_s: some lane was busy; computing_s and copying_s add the lanes up.
    prefill_tokens, decode_tokens: computed in chunks of several tokens, and of one.
    interrupted: steps that a realtime arrival took the lower classes out of.
    """

    any_s: float = 0.0
    computing_s: float = 0.0
    copying_s: float = 0.0
    steps: int = 0
    longest_step_s: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    interrupted: int = 0
    swapped_blocks: int = 0


class Recorder:
    """Takes in arrivals and commits.

    lives: by request, in order of arrival. end_s: when everything had ended.
    windows: the scheduler's throughput against its bound, once in 1,000 steps.
    """

    def __init__(self, door_s: float = 0.0) -> None:
        """door_s: a token is with its reader so long after its commit; see `devices.Host`."""
        self._door_s = door_s
        self.lives: dict[RequestId, Life] = {}
        self.classes = {c: ClassRecord() for c in ServiceClass}
        self.busy = Busy()
        self.alive = 0
        self.end_s = 0.0
        self.windows: list[Throughput] = []
        self._counted_s = 0.0
        self._computing: dict[Lane, frozenset[RequestId]] = {}

    def class_of(self, request: RequestId) -> ServiceClass:
        """A request's class."""
        return self.lives[request].service_class

    def arrived(self, request: Request) -> None:
        """A request was handed to the scheduler."""
        self.lives[request.id] = Life(request.arrival_s, request.service_class, len(request.prompt))
        self.alive += 1

    def refused(self, request: RequestId) -> None:
        """The scheduler did not take it."""
        self.classes[self.class_of(request)].refused += 1
        del self.lives[request]
        self.alive -= 1

    def step(
        self,
        plan: StepPlan,
        result: StepResult,
        committed: Committed,
        now_s: float,
    ) -> None:
        """A step was committed."""
        if plan.chunks or plan.swap_in or plan.swap_out:
            self._count_step(plan, result, now_s)
        for admitted in committed.admitted:
            self.lives[admitted.request].queued_s = admitted.queued_s
        for preempted in committed.preempted:
            record = self.classes[self.class_of(preempted.request)]
            if preempted.kind is PreemptKind.SWAP:
                record.swaps += 1
            else:
                record.recomputes += 1
        self._emit(committed, now_s + self._door_s)
        for finished in committed.finished:
            self.lives[finished.request].finished = finished
            self.alive -= 1
        if plan.chunks:
            self._count_pauses(plan, committed)

    def close(self, now_s: float) -> None:
        """The replay is over."""
        self.end_s = now_s

    def _emit(self, committed: Committed, now_s: float) -> None:
        lives, classes = self.lives, self.classes
        for emitted in committed.emitted:
            life = lives[emitted.request]
            record = classes[life.service_class]
            life.tokens += 1
            record.tokens += 1
            if life.first_s is None:
                life.first_s = now_s
            else:
                gap_s = now_s - life.last_s
                record.gaps_s.append(gap_s)
                if gap_s > life.worst_gap_s:
                    life.worst_gap_s = gap_s
            life.last_s = now_s

    def _count_step(self, plan: StepPlan, result: StepResult, now_s: float) -> None:
        busy, timing = self.busy, result.timing
        copying_s = timing.copy_out_s + timing.copy_in_s
        # Steps are committed in order of their ends: what lies before the last one is counted.
        started_s = now_s - timing.compute_s - copying_s
        busy.any_s += now_s - max(started_s, min(self._counted_s, now_s))
        self._counted_s = now_s
        busy.steps += 1
        busy.computing_s += timing.compute_s
        busy.copying_s += copying_s
        busy.longest_step_s = max(busy.longest_step_s, timing.compute_s + copying_s)
        busy.swapped_blocks += len(plan.swap_out)
        busy.interrupted += result.interrupted
        for chunk in plan.computed(result.interrupted):
            size = len(chunk.tokens)
            if size == 1:
                busy.decode_tokens += 1
            else:
                busy.prefill_tokens += size

    def _count_pauses(self, plan: StepPlan, committed: Committed) -> None:
        """Who computed in the lane's last step, neither ended nor lost its blocks nor went on to
        the decode lane, and is left out now."""
        computing = frozenset(chunk.request for chunk in plan.chunks)
        left_out = self._computing.get(plan.lane, frozenset()) - computing
        if left_out:
            preempted = {p.request for p in committed.preempted}
            for request in left_out:
                life = self.lives[request]
                handed_over = plan.lane is Lane.PREFILL and life.first_s is not None
                if life.finished is None and request not in preempted and not handed_over:
                    self.classes[life.service_class].pauses += 1
        self._computing[plan.lane] = computing


def ended_well(life: Life) -> bool:
    """Whether a request ended with its whole answer."""
    finished = life.finished
    return finished is not None and finished.reason in (FinishReason.STOP, FinishReason.LENGTH)
