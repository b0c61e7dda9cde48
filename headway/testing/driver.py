"""The step loop in one thread over virtual time, with invariants checked after every step."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headway.core.invariants import check
from headway.core.plan import Executor, StepFailure, StepPlan, StepResult
from headway.core.request import Committed, Finished, Preempted, Request, Verdict
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, RequestId, ServiceClass
from headway.errors import ExecutorError
from headway.executors.rules import PlanFaultError
from headway.testing.clock import ManualClock
from headway.testing.scripted import ScriptedHandle


@dataclass(slots=True)
class Trace:
    """What happened to one request. Steps count submitted plans from 0; times are the clock's.

    tokens: emitted token ids; token_steps and token_times_s, when each was committed.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    token_steps: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    added_step: int = 0
    admitted_step: int | None = None
    preempted: list[Preempted] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def first_token_step(self) -> int | None:
        """The step that gave the first token."""
        return self.token_steps[0] if self.token_steps else None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token."""
        return self.token_times_s[0] - self.request.arrival_s if self.token_times_s else None

    @property
    def largest_gap_steps(self) -> int:
        """Most steps between two tokens in a row; 1 is a token every step."""
        pairs = zip(self.token_steps, self.token_steps[1:], strict=False)
        return max((b - a for a, b in pairs), default=0)


class StuckError(AssertionError):
    """Requests are alive, yet no plan does anything for them."""


Judge = Callable[[StepPlan, StepResult], Mapping[RequestId, Verdict]]


def no_verdicts(plan: StepPlan, result: StepResult) -> Mapping[RequestId, Verdict]:
    """A judge that lets everything continue."""
    return {}


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """How the loop behaves.

    lane: the lane that is driven.
    interrupt_for_realtime: interrupt a scripted step when a realtime request arrives during it.
    idle_step_s: how far the clock moves when a plan is empty and no arrival is due.
    max_idle_steps: empty plans in a row, with requests alive, after which StuckError is raised.
    """

    lane: Lane = Lane.UNIFIED
    interrupt_for_realtime: bool = False
    idle_step_s: float = 0.1
    max_idle_steps: int = 1000


class Simulation:
    """Drives a scheduler: plan, submit, verdicts, commit. A PlanFaultError is raised to the caller;
    any other ExecutorError becomes a StepFailure, as in the engine.

    traces: by request id, in order of arrival. plans: every plan that was submitted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: ManualClock,
        judge: Judge = no_verdicts,
        options: DriveOptions | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.traces: dict[RequestId, Trace] = {}
        self.plans: list[StepPlan] = []
        self.commits: list[Committed] = []
        self._judge = judge
        self._options = options or DriveOptions()
        self._timers: list[tuple[float, int, Request | RequestId]] = []
        self._num_timers = 0

    def add(self, request: Request) -> None:
        """Queue a request at its `arrival_s`; at once if that has passed."""
        if request.arrival_s <= self.clock():
            self._arrive(request)
        else:
            self._at(request.arrival_s, request)

    def add_all(self, requests: Iterable[Request]) -> None:
        """`add` each of them."""
        for request in requests:
            self.add(request)

    def abort(self, request: RequestId, when_s: float | None = None) -> None:
        """Abort now, or when the clock reaches a time."""
        if when_s is None:
            self.scheduler.abort(request)
        else:
            self._at(when_s, request)

    def step(self) -> Committed:
        """One turn of the loop. The clock moves by what the executor says the step took."""
        self._fire_timers()
        plan = self.scheduler.plan(self._options.lane, self.clock())
        outcome: StepResult | StepFailure = StepResult(plan.step)
        if not plan.empty:
            outcome = self._execute(plan)
            self.plans.append(plan)
        return self._commit(plan, outcome)

    def _commit(self, plan: StepPlan, outcome: StepResult | StepFailure) -> Committed:
        verdicts: Mapping[RequestId, Verdict] = {}
        if isinstance(outcome, StepResult):
            verdicts = self._judge(plan, outcome)
        committed = self.scheduler.commit(plan, outcome, verdicts, self.clock())
        self.commits.append(committed)
        self._record(committed)
        check(self.scheduler)
        return committed

    def run(self, max_steps: int = 100_000) -> None:
        """Step until every request that was added has ended. Raises StuckError if they never do."""
        idle_steps = 0
        for _ in range(max_steps):
            if self.finished:
                return
            before, before_s = len(self.plans), self.clock()
            committed = self.step()
            if len(self.plans) > before or self.clock() > before_s or committed != Committed():
                idle_steps = 0
                continue
            idle_steps += 1
            if idle_steps > self._options.max_idle_steps:
                break
            self._wait()
        raise StuckError(f"alive after {len(self.plans)} steps: {self.alive}")

    def run_until(self, condition: Callable[[], bool], max_steps: int = 10_000) -> None:
        """Step until a condition holds. Raises StuckError if it doesn't come true."""
        for _ in range(max_steps):
            if condition():
                return
            if self.step() == Committed() and not self.plans:
                self._wait()
        raise StuckError(f"the condition doesn't hold after {max_steps} steps: {self.alive}")

    @property
    def alive(self) -> list[RequestId]:
        """Requests that have arrived and not ended."""
        return [r for r, trace in self.traces.items() if trace.finished is None]

    @property
    def finished(self) -> bool:
        """Whether nothing is alive and nothing is due."""
        return not self.alive and not self._timers

    def tokens(self, request: int) -> list[int]:
        """Tokens emitted for a request so far."""
        return self.traces[RequestId(request)].tokens

    def _at(self, when_s: float, what: Request | RequestId) -> None:
        self._num_timers += 1
        heapq.heappush(self._timers, (when_s, self._num_timers, what))

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self.clock():
            _, _, what = heapq.heappop(self._timers)
            if isinstance(what, Request):
                self._arrive(what)
            else:
                self.scheduler.abort(what)

    def _arrive(self, request: Request) -> None:
        self.scheduler.add(request)
        self.traces[request.id] = Trace(request, added_step=len(self.plans))

    def _wait(self) -> None:
        """Nothing to do now: go to the next arrival, or a little further."""
        step_s = self._options.idle_step_s
        if self._timers and not self.alive:
            self.clock.jump_to(self._timers[0][0])
        else:
            self.clock.advance(step_s)

    def _execute(self, plan: StepPlan) -> StepResult | StepFailure:
        try:
            handle = self.executor.submit(plan, {})
            if self._options.interrupt_for_realtime and isinstance(handle, ScriptedHandle):
                self._interrupt(handle)
            return handle.result()
        except PlanFaultError:
            raise
        except ExecutorError as error:
            return StepFailure(plan.step, str(error))

    def _interrupt(self, handle: ScriptedHandle) -> None:
        for when_s, _, what in sorted(self._timers, key=lambda timer: timer[:2]):
            urgent = isinstance(what, Request) and what.service_class is ServiceClass.REALTIME
            if urgent and when_s < handle.end_s:
                self.clock.jump_to(when_s)
                handle.interrupt()
                return

    def _record(self, committed: Committed) -> None:
        step, now_s = len(self.plans) - 1, self.clock()
        for admitted in committed.admitted:
            self.traces[admitted.request].admitted_step = step
        for preempted in committed.preempted:
            self.traces[preempted.request].preempted.append(preempted)
        for emitted in committed.emitted:
            trace = self.traces[emitted.request]
            if trace.finished is not None:
                raise AssertionError(f"a token after the end of request {emitted.request}")
            trace.tokens.append(emitted.token)
            trace.token_steps.append(step)
            trace.token_times_s.append(now_s)
        for finished in committed.finished:
            trace = self.traces[finished.request]
            if trace.finished is not None:
                raise AssertionError(f"request {finished.request} ended twice")
            trace.finished = finished
