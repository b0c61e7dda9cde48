"""The loop over whatever lanes the scheduler drives, in one thread over virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.invariants import check
from headway.core.lane_models import StepModels
from headway.core.outlook import Demand
from headway.core.plan import Executor, Masks, StepFailure, StepHandle, StepPlan, StepResult
from headway.core.request import Committed, Request
from headway.core.scheduler import Scheduler
from headway.core.types import Arrangement, Lane, ServiceClass
from headway.errors import ExecutorError
from headway.executors.rules import PlanFaultError
from headway.testing.clock import ManualClock
from headway.testing.driver import DriveOptions, Judge, Simulation, no_verdicts


class TimedHandle(StepHandle, Protocol):
    """A step whose end is known; `result` moves the clock there."""

    @property
    def end_s(self) -> float:
        """When it ends, unless it is interrupted."""
        ...


class TimedExecutor(Executor, Protocol):
    """An executor over virtual time, such as `ScriptedExecutor`."""

    def submit(self, plan: StepPlan, masks: Masks) -> TimedHandle:
        """See `core.plan.Executor`."""
        ...


@dataclass(frozen=True, slots=True)
class LaneFlight:
    """A step in flight on its lane."""

    plan: StepPlan
    handle: TimedHandle


class LaneSimulation(Simulation):
    """A `Simulation` with a step in flight on each lane: idle lanes are planned whenever a request
    arrives or a step is committed; the step that ends first is committed first.

    arrangements: when the scheduler changed how units are divided, from the beginning on.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: TimedExecutor,
        clock: ManualClock,
        judge: Judge = no_verdicts,
        options: DriveOptions | None = None,
    ) -> None:
        """As `Simulation`; the scheduler says which lanes there are."""
        super().__init__(scheduler, executor, clock, judge, options)
        self._timed = executor
        self.arrangements: list[tuple[float, Arrangement]] = []
        self._flights: dict[Lane, LaneFlight] = {}

    def step(self) -> Committed:
        """Plan the idle lanes, then go on to the next end of a step, or to an arrival that an idle
        lane may serve."""
        self._fire_timers()
        committed = [c for lane in self._due() if (c := self._start(lane)) != Committed()]
        if self._next_event_is_arrival():
            self._meet_arrival()
        elif self._flights:
            lane = min(self._flights, key=lambda lane: self._flights[lane].handle.end_s)
            committed.append(self._land(self._flights.pop(lane)))
        return _joined(committed)

    @property
    def in_flight(self) -> frozenset[Lane]:
        """Lanes that have a step in flight."""
        return frozenset(self._flights)

    def _due(self) -> Sequence[Lane]:
        lanes = self.scheduler.due(self.clock())
        arrangement = self.scheduler.snapshot().arrangement
        if not self.arrangements or self.arrangements[-1][1] != arrangement:
            self.arrangements.append((self.clock(), arrangement))
        return lanes

    def _start(self, lane: Lane) -> Committed:
        plan = self.scheduler.plan(lane, self.clock())
        check(self.scheduler)
        if plan.empty:
            return self._commit(plan, StepResult(plan.step))
        self.plans.append(plan)
        try:
            handle = self._timed.submit(plan, {})
        except PlanFaultError:
            raise
        except ExecutorError as error:
            return self._commit(plan, StepFailure(plan.step, str(error)))
        self._flights[lane] = LaneFlight(plan, handle)
        return Committed()

    def _next_event_is_arrival(self) -> bool:
        """Whether an arrival comes before any step ends, and is met before that."""
        if not self._flights or not self._timers:
            return False
        when_s, _, what = self._timers[0]
        first_s = min(flight.handle.end_s for flight in self._flights.values())
        idle = len(self._flights) < len(self.scheduler.snapshot().arrangement.lanes)
        return when_s < first_s and (idle or self._urgent(what))

    def _urgent(self, what: object) -> bool:
        realtime = isinstance(what, Request) and what.service_class is ServiceClass.REALTIME
        return realtime and self._options.interrupt_for_realtime

    def _meet_arrival(self) -> None:
        when_s, _, what = self._timers[0]
        self.clock.jump_to(when_s)
        if self._urgent(what):
            for lane, flight in self._flights.items():
                if lane is not Lane.DECODE:
                    flight.handle.interrupt()
        self._fire_timers()

    def _land(self, flight: LaneFlight) -> Committed:
        try:
            return self._commit(flight.plan, flight.handle.result())
        except PlanFaultError:
            raise
        except ExecutorError as error:
            return self._commit(flight.plan, StepFailure(flight.plan.step, str(error)))


class Restless:
    """A `core.lanes.LaneChooser` that wants the next of some arrangements every `period`
    decisions, whatever there is to do."""

    fixed = False

    def __init__(self, period: int, arrangements: Sequence[Arrangement]) -> None:
        """It begins with the first."""
        self.first = arrangements[0]
        self._period = period
        self._arrangements = arrangements
        self._decisions = 0

    def decide(
        self, present: Arrangement, demand: Demand, models: StepModels, now: float
    ) -> Arrangement:
        """The arrangement whose turn it is."""
        self._decisions += 1
        return self._arrangements[self._decisions // self._period % len(self._arrangements)]


def _joined(parts: Sequence[Committed]) -> Committed:
    return Committed(
        tuple(e for c in parts for e in c.emitted),
        tuple(f for c in parts for f in c.finished),
        tuple(a for c in parts for a in c.admitted),
        tuple(p for c in parts for p in c.preempted),
    )
