"""Drives the two lanes of a split schedule over a real executor, in an order of its own making."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.invariants import check
from headway.core.plan import Executor, StepHandle, StepPlan, StepResult
from headway.core.request import Emitted, Preempted, Request
from headway.core.scheduler import Scheduler
from headway.core.types import SPLIT_LANES, Lane, RequestId
from headway.testing import ManualClock
from tests.faults.conductor import timing_of


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step under way, when it is said to end, and whether it copies."""

    plan: StepPlan
    handle: StepHandle
    ends_s: float
    copies: bool


class RealLanes:
    """Plans a lane as soon as it is idle, so that both are nearly always under way, and commits
    their steps in the order in which they are said to end: `timing_of`, and `copy_wait_s` more for
    one that copies. So the plans are the same on every machine, and only what the executor does at
    once is not. Requests are due at numbers of turns, of which each commits a step.

    emitted: by request, in order. preempted: in order.
    overtakers: steps that began and ended while the other lane's copies were under way.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, copy_wait_s: float) -> None:
        self.emitted: dict[RequestId, list[Emitted]] = {}
        self.preempted: list[Preempted] = []
        self.overtakers: list[StepPlan] = []
        self._scheduler = scheduler
        self._executor = executor
        self._clock = ManualClock()
        self._copy_wait_s = copy_wait_s
        self._in_flight: dict[Lane, _Flight] = {}

    def run(self, arrivals: Sequence[tuple[int, Request]]) -> None:
        """Until all requests have ended. Raises AssertionError if they do not."""
        due = sorted(arrivals, key=lambda arrival: (arrival[0], arrival[1].id))
        alive = len(due)
        for turn in range(100_000):
            while due and due[0][0] <= turn:
                request = due.pop(0)[1]
                self.emitted[request.id] = []
                self._scheduler.add(request)
            for lane in SPLIT_LANES:
                if lane not in self._in_flight:
                    alive -= self._start(lane)
            if self._in_flight:
                alive -= self._finish(min(SPLIT_LANES, key=self._ends_s))
            if not alive:
                return
        raise AssertionError(f"{alive} requests never ended")

    def _ends_s(self, lane: Lane) -> float:
        return self._in_flight[lane].ends_s if lane in self._in_flight else float("inf")

    def _start(self, lane: Lane) -> int:
        plan = self._scheduler.plan(lane, self._clock())
        check(self._scheduler)
        if plan.empty:
            return self._commit(plan, StepResult(plan.step))
        timing = timing_of(plan)
        ends_s = self._clock() + timing.copy_out_s + timing.copy_in_s + timing.compute_s
        copies = bool(plan.swap_out or plan.swap_in)
        ends_s += self._copy_wait_s if copies else 0.0
        self._in_flight[lane] = _Flight(plan, self._executor.submit(plan, {}), ends_s, copies)
        return 0

    def _finish(self, lane: Lane) -> int:
        flight = self._in_flight.pop(lane)
        self._clock.jump_to(flight.ends_s)
        others = self._in_flight.values()
        if any(other.copies and other.plan.step < flight.plan.step for other in others):
            self.overtakers.append(flight.plan)
        return self._commit(flight.plan, flight.handle.result())

    def _commit(self, plan: StepPlan, result: StepResult) -> int:
        committed = self._scheduler.commit(plan, result, {}, self._clock())
        check(self._scheduler)
        for emitted in committed.emitted:
            self.emitted[emitted.request].append(emitted)
        self.preempted += committed.preempted
        return len(committed.finished)
