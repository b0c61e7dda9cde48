"""Drives the two lanes of a split schedule over a real executor, each as fast as it goes."""

import time
from collections.abc import Sequence

from headway.core.invariants import check
from headway.core.plan import Executor, StepHandle, StepPlan, StepResult
from headway.core.request import Emitted, Preempted, Request
from headway.core.scheduler import Scheduler
from headway.core.types import SPLIT_LANES, Lane, RequestId
from headway.testing import ManualClock


class RealLanes:
    """Plans a lane as soon as it is idle and commits whichever step has ended, so both are nearly
    always under way. Requests and aborts are due at numbers of plans.

    emitted: by request, in order. preempted: in order.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: ManualClock) -> None:
        self.emitted: dict[RequestId, list[Emitted]] = {}
        self.preempted: list[Preempted] = []
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._in_flight: dict[Lane, tuple[StepPlan, StepHandle]] = {}

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
            alive -= sum(self._finish(lane) for lane in self._ended())
            if not alive:
                return
        raise AssertionError(f"{alive} requests never ended")

    def _ended(self) -> list[Lane]:
        """Lanes whose step has ended; waits for one if any is under way."""
        while self._in_flight:
            ended = [lane for lane, (_, handle) in self._in_flight.items() if handle.done()]
            if ended:
                return ended
            time.sleep(0.00005)
        return []

    def _start(self, lane: Lane) -> int:
        plan = self._scheduler.plan(lane, self._clock())
        check(self._scheduler)
        if plan.empty:
            return self._commit(plan, StepResult(plan.step))
        self._in_flight[lane] = (plan, self._executor.submit(plan, {}))
        return 0

    def _finish(self, lane: Lane) -> int:
        plan, handle = self._in_flight.pop(lane)
        return self._commit(plan, handle.result())

    def _commit(self, plan: StepPlan, result: StepResult) -> int:
        committed = self._scheduler.commit(plan, result, {}, self._clock())
        check(self._scheduler)
        for emitted in committed.emitted:
            self.emitted[emitted.request].append(emitted)
        self.preempted += committed.preempted
        return len(committed.finished)
