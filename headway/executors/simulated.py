"""An executor that computes nothing: it knows how long a step would take, and moves a clock.

Tokens are a function of position alone (an answer's length is given beforehand), so no schedule can
change them; everything about time comes from a `StepTimer`. Lanes in flight at once slow each other
down where together they want more memory bandwidth than there is:

    seconds of a step = total_s * ((1 - m) + m * max(1, wanted / bandwidth))

with m the share of its time bound by memory, and `wanted` the bytes per second that all lanes in
flight would move if each had the memory to itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headway.core.plan import Capacity, Chunk, Masks, Sampled, StepPlan, StepResult, StepTiming
from headway.core.types import Lane, RequestId
from headway.errors import ExecutorError

END_TOKEN = 0
"""Ends an answer; requests that should end by themselves list it among their stop ids."""

ANSWER_TOKEN = 1
"""Every other token of an answer."""

_ROUNDING = 1e-9
"""A step with less than this part left has ended."""


class VirtualClock:
    """Seconds since the start of a simulation. Call it to read the time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def jump_to(self, when_s: float) -> None:
        """Move forward to a time; a time already past changes nothing."""
        self._now_s = max(self._now_s, when_s)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step costs on its lane's compute units with the memory to itself, seconds and bytes.

    memory_s: the part of compute_s in which memory bandwidth, not arithmetic, is the limit.
    bytes_moved: to and from device memory while computing.
    parts: equal parts of compute_s, between which the step can be interrupted; 0 if it can't be.
    """

    copy_out_s: float
    copy_in_s: float
    compute_s: float
    memory_s: float
    bytes_moved: float
    parts: int = 0

    @property
    def total_s(self) -> float:
        """Copies and compute, one after the other as the contract orders them."""
        return self.copy_out_s + self.copy_in_s + self.compute_s


class StepTimer(Protocol):
    """What a step costs on a modelled device."""

    @property
    def bytes_per_s(self) -> float:
        """Memory bandwidth that all lanes share."""
        ...

    def cost(self, plan: StepPlan) -> StepCost:
        """The plan's cost on its lane's compute units, alone."""
        ...


class SimulatedExecutor:
    """Runs plans in virtual time; see `core.plan.Executor`. Not thread-safe.

    It samples no real tokens, so the part of the conformance suite about tokens doesn't apply.
    """

    def __init__(
        self,
        capacity: Capacity,
        timer: StepTimer,
        clock: VirtualClock,
        lengths: Mapping[RequestId, int],
    ) -> None:
        """`lengths`: tokens of prompt and whole answer (end token included), by request; read when
        a token is sampled."""
        self._capacity = capacity
        self._timer = timer
        self.clock = clock
        self._lengths = lengths
        self._running: dict[Lane, SimulatedStep] = {}
        self._accounted_s = clock()

    @property
    def capacity(self) -> Capacity:
        """Sizes, fixed."""
        return self._capacity

    def submit(self, plan: StepPlan, masks: Masks) -> "SimulatedStep":
        """Start a step. Raises ExecutorError if one is in flight on its lane."""
        self.catch_up()
        if plan.lane in self._running:
            raise ExecutorError(f"a step is in flight on lane {plan.lane.name.lower()}")
        cost = self._timer.cost(plan)
        if cost.total_s <= 0:
            raise ExecutorError(f"step {plan.step} takes no time")
        step = SimulatedStep(self, plan, cost, self.clock())
        self._running[plan.lane] = step
        return step

    def close(self) -> None:
        """Nothing to free."""

    def catch_up(self) -> None:
        """Let the steps in flight make progress up to the clock's time."""
        now_s = self.clock()
        while self._running and self._accounted_s < now_s:
            seconds = self._seconds()
            ends_s = min(step.remaining * seconds[lane] for lane, step in self._running.items())
            span_s = min(now_s - self._accounted_s, ends_s)
            for lane, step in self._running.items():
                step.remaining -= span_s / seconds[lane]
            self._accounted_s += span_s
            self._retire()
        self._accounted_s = now_s

    def end_of(self, step: "SimulatedStep") -> float:
        """When a step in flight will end if nothing else is submitted."""
        seconds = self._seconds()
        own_s = step.remaining * seconds[step.plan.lane]
        others_s = [
            s.remaining * seconds[lane] for lane, s in self._running.items() if s is not step
        ]
        shared_s = min([own_s, *others_s])
        if shared_s == own_s:
            return self._accounted_s + own_s
        left = step.remaining - shared_s / seconds[step.plan.lane]
        return self._accounted_s + shared_s + left * step.cost.total_s

    def wait_for(self, step: "SimulatedStep", limit_s: float) -> None:
        """Move the clock to a step's end. Raises TimeoutError, the clock at the limit, if that
        comes first."""
        while not step.ended:
            end_s = self.end_of(step)
            self.clock.jump_to(min(end_s, limit_s))
            self.catch_up()
            if not step.ended and end_s > limit_s:
                raise TimeoutError(f"step {step.plan.step} goes on")

    def result_of(self, step: "SimulatedStep") -> StepResult:
        """What an ended step gives."""
        out_s, in_s = step.cost.copy_out_s, step.cost.copy_in_s
        compute_s = max(step.ended_s - step.started_s - out_s - in_s, 0.0)
        plan = step.plan
        sampled = tuple(self._sample(plan.computed(step.interrupted)))
        timing = StepTiming(out_s, in_s, compute_s)
        return StepResult(plan.step, sampled, (), timing, step.interrupted)

    def kept_cost(self, plan: StepPlan) -> StepCost:
        """What the plan would cost with the chunks alone that an interrupt leaves."""
        return self._timer.cost(replace(plan, chunks=plan.computed(interrupted=True)))

    def _sample(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        lengths = self._lengths
        return [
            Sampled(
                chunk.request,
                END_TOKEN
                if chunk.start + len(chunk.tokens) + 1 >= lengths[chunk.request]
                else ANSWER_TOKEN,
            )
            for chunk in chunks
            if chunk.sample
        ]

    def _seconds(self) -> dict[Lane, float]:
        """Seconds a whole step like that in flight takes on each lane, as things are now."""
        if len(self._running) == 1:
            return {lane: step.cost.total_s for lane, step in self._running.items()}
        wanted = sum(s.cost.bytes_moved / s.cost.total_s for s in self._running.values())
        crowding = max(wanted / self._timer.bytes_per_s, 1.0)
        return {
            lane: s.cost.total_s + s.cost.memory_s * (crowding - 1)
            for lane, s in self._running.items()
        }

    def _retire(self) -> None:
        """Take ended steps out."""
        for lane, step in list(self._running.items()):
            if step.remaining <= _ROUNDING:
                step.ended = True
                step.ended_s = self._accounted_s
                del self._running[lane]


class SimulatedStep:
    """A step in virtual time; see `core.plan.StepHandle`.

    remaining: the part of it that is still to be done, from 1 to 0.
    ended_s: when it ended, once it has.
    """

    def __init__(
        self, executor: SimulatedExecutor, plan: StepPlan, cost: StepCost, started_s: float
    ) -> None:
        self.plan = plan
        self.cost = cost
        self.started_s = started_s
        self.remaining = 1.0
        self.ended = False
        self.interrupted = False
        self.ended_s = 0.0
        self._executor = executor
        self._result: StepResult | None = None

    @property
    def end_s(self) -> float:
        """When it will end if nothing else is submitted; only while it is in flight."""
        return self._executor.end_of(self)

    def done(self) -> bool:
        """Whether the clock has passed its end."""
        self._executor.catch_up()
        return self.ended

    def result(self, timeout_s: float | None = None) -> StepResult:
        """Move the clock to the step's end. Raises TimeoutError, with the clock moved by
        `timeout_s`, if that comes first."""
        executor = self._executor
        if self._result is None:
            now_s = executor.clock()
            executor.wait_for(self, float("inf") if timeout_s is None else now_s + timeout_s)
            self._result = executor.result_of(self)
        return self._result

    def interrupt(self) -> None:
        """From the next part on, compute what the plan keeps alone, or end there; where the device
        can and another part is left."""
        self._executor.catch_up()
        parts, cost, plan = self.cost.parts, self.cost, self.plan
        if self.ended or self.interrupted or not parts or plan.kept == len(plan.chunks):
            return
        part = cost.compute_s / cost.total_s / parts
        parts_left = int(min(self.remaining, part * parts) / part)
        if parts_left:
            saved = 1.0
            if plan.kept:
                saved -= self._executor.kept_cost(plan).compute_s / cost.compute_s
            self.remaining -= parts_left * part * saved
            self.interrupted = True
