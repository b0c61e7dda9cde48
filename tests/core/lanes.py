"""Drives the two lanes of a split schedule over virtual time."""

from collections.abc import Sequence

from headway.core.invariants import check
from headway.core.plan import StepFailure, StepPlan, StepResult
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.core.types import SPLIT_LANES, FinishReason, Lane, RequestId
from headway.errors import ExecutorError
from headway.testing import ManualClock, PlanFaultError, ScriptedExecutor
from headway.testing.scripted import ScriptedHandle


class TwoLanes:
    """Plans each lane as soon as it is idle; the step that ends first is committed first.

    tokens, token_times_s: emitted so far by request. ends: why each request ended.
    """

    def __init__(
        self, scheduler: Scheduler, executor: ScriptedExecutor, clock: ManualClock
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.tokens: dict[RequestId, list[int]] = {}
        self.token_times_s: dict[RequestId, list[float]] = {}
        self.ends: dict[RequestId, FinishReason] = {}
        self._in_flight: dict[Lane, tuple[StepPlan, ScriptedHandle]] = {}

    def run(
        self,
        requests: Sequence[Request],
        aborts: Sequence[tuple[int, float]] = (),
        lanes: tuple[Lane, ...] = SPLIT_LANES,
    ) -> None:
        """Until all requests have ended. Raises AssertionError if they never do."""
        events: list[tuple[float, int, Request | int]] = [
            *((r.arrival_s, i, r) for i, r in enumerate(requests)),
            *((when_s, -1, request) for request, when_s in aborts),
        ]
        events.sort(key=lambda e: e[:2])
        for _ in range(20_000):
            while events and events[0][0] <= self.clock():
                self._happen(events.pop(0)[2])
            for lane in lanes:
                if lane not in self._in_flight:
                    self._start(lane)
            if len(self.ends) == len(requests):
                return
            self._finish_first()
        raise AssertionError(f"only {len(self.ends)} of {len(requests)} requests ended")

    def _happen(self, event: Request | int) -> None:
        if isinstance(event, Request):
            self.scheduler.add(event)
            self.tokens[event.id] = []
            self.token_times_s[event.id] = []
        else:
            self.scheduler.abort(RequestId(event))

    def _start(self, lane: Lane) -> None:
        plan = self.scheduler.plan(lane, self.clock())
        check(self.scheduler)
        if plan.empty:
            self._commit(plan, StepResult(plan.step))
        else:
            self._in_flight[lane] = (plan, self.executor.submit(plan, {}))

    def _finish_first(self) -> None:
        if not self._in_flight:
            self.clock.advance(0.05)
            return
        lane = min(self._in_flight, key=lambda at: self._in_flight[at][1].end_s)
        plan, handle = self._in_flight.pop(lane)
        try:
            outcome: StepResult | StepFailure = handle.result()
        except PlanFaultError:
            raise
        except ExecutorError as error:
            outcome = StepFailure(plan.step, str(error))
        self._commit(plan, outcome)

    def _commit(self, plan: StepPlan, outcome: StepResult | StepFailure) -> None:
        committed = self.scheduler.commit(plan, outcome, {}, self.clock())
        check(self.scheduler)
        for emitted in committed.emitted:
            assert emitted.request not in self.ends
            self.tokens[emitted.request].append(emitted.token)
            self.token_times_s[emitted.request].append(self.clock())
        for finished in committed.finished:
            assert finished.request not in self.ends
            self.ends[finished.request] = finished.reason
