"""The step loop over virtual time: arrivals, plan, submit, commit, with the real scheduler."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.interrupts import Interrupts
from headway.core.plan import Capacity, StepPlan, StepResult
from headway.core.request import Committed
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, RequestId, ServiceClass
from headway.errors import HeadwayError, NeverFitsError
from headway.executors.simulated import SimulatedExecutor, SimulatedStep, StepTimer, VirtualClock
from headway.simulate.devices import Host
from headway.simulate.record import Recorder
from headway.simulate.workload import Job, Workload

_IDLE_S = 0.01
"""How far the clock moves where requests wait for nothing but time (a guard time, for example)."""

_MOST_IDLE_S = 600.0

_WINDOW_STEPS = 1000
"""The scheduler meters its throughput over this many steps."""

Progress = Callable[[float], None]
"""Told of the share of the trace that has arrived, now and then."""


class StuckError(HeadwayError):
    """Requests are alive, yet the scheduler does nothing for them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a trace is replayed on: sizes and costs."""

    capacity: Capacity
    timer: StepTimer
    host: Host = Host()


@dataclass(frozen=True, slots=True)
class _Flight:
    plan: StepPlan
    step: SimulatedStep


class Replay:
    """Drives one scheduler with one workload to its end. Use once."""

    def __init__(self, scheduler: Scheduler, machine: Machine, workload: Workload) -> None:
        self.recorder = Recorder(machine.host.door_s)
        self._scheduler = scheduler
        self._workload = workload
        self._clock = VirtualClock()
        self._lengths: dict[RequestId, int] = {}
        self._executor = SimulatedExecutor(
            machine.capacity, machine.timer, self._clock, self._lengths
        )
        self._flights: dict[Lane, _Flight] = {}
        self._arrivals = deque(workload.arrivals())
        self._backlog: set[RequestId] = set()
        self._interrupts = Interrupts(machine.host.interrupt_gain_s)
        self._idle_s = 0.0

    def run(self, progress: Progress = lambda share: None) -> Recorder:
        """Replay until every request has ended. Raises StuckError if they never do.

        Batch requests of the backlog that still run once all others have ended are aborted.
        """
        for job in self._workload.backlog():
            self._add(job, in_backlog=True)
        end_s = max(self._workload.end_s, 1e-9)
        while self._arrivals or self.recorder.alive:
            self._turn()
            progress(min(self._clock() / end_s, 1.0))
        self.recorder.close(self._clock())
        return self.recorder

    def _turn(self) -> None:
        """Arrivals, a plan for each idle lane, then on to whatever happens next."""
        self._admit_due()
        if not self._others_to_come:
            for request in self._backlog:
                self._scheduler.abort(request)
        changed = False
        for lane in self._scheduler.due(self._clock()):
            changed = self._plan(lane) or changed
        if self._flights:
            self._idle_s = 0.0
            self._fly()
        elif not changed:
            self._wait()

    @property
    def _others_to_come(self) -> bool:
        """Whether requests that are not of the backlog still arrive or run."""
        return bool(self._arrivals) or self.recorder.alive > len(self._backlog)

    def _admit_due(self) -> None:
        now_s = self._clock()
        while self._arrivals and self._arrivals[0].request.arrival_s <= now_s:
            self._add(self._arrivals.popleft())

    def _add(self, job: Job, in_backlog: bool = False) -> None:
        request = job.request
        self._lengths[request.id] = len(request.prompt) + job.answer_tokens
        self.recorder.arrived(request)
        try:
            self._scheduler.add(request)
        except NeverFitsError:
            self.recorder.refused(request.id)
            return
        if in_backlog:
            self._backlog.add(request.id)

    def _plan(self, lane: Lane) -> bool:
        """Plan a lane's next step and start it; whether an empty one changed anything."""
        plan = self._scheduler.plan(lane, self._clock())
        if plan.chunks or plan.swap_in or plan.swap_out:
            self._flights[lane] = _Flight(plan, self._executor.submit(plan, {}))
            return False
        return self._commit(plan, StepResult(plan.step)) != _NOTHING

    def _fly(self) -> None:
        """On to the next end of a step, or the next arrival if that could change what runs."""
        until_s = min(flight.step.end_s for flight in self._flights.values())
        if self._arrivals and self._watches_arrivals:
            until_s = min(until_s, max(self._arrivals[0].request.arrival_s, self._clock()))
        self._clock.jump_to(until_s)
        if self._arrivals and self._arrivals[0].request.arrival_s <= until_s:
            self._interrupt_for(self._arrivals[0])
        for lane, flight in list(self._flights.items()):
            if flight.step.done():
                del self._flights[lane]
                self._commit(flight.plan, flight.step.result())

    @property
    def _watches_arrivals(self) -> bool:
        """Whether a lane is idle, or a step can be interrupted."""
        one_idle = len(self._flights) == 1 and Lane.UNIFIED not in self._flights
        return one_idle or any(f.step.cost.parts for f in self._flights.values())

    def _interrupt_for(self, job: Job) -> None:
        """As the engine does: a realtime arrival takes the other classes out of a step."""
        if job.request.service_class is not ServiceClass.REALTIME:
            return
        now_s = self._clock()
        for flight in self._flights.values():
            if self._interrupts.pays(flight.plan, flight.step.end_s - now_s):
                flight.step.interrupt()

    def _commit(self, plan: StepPlan, result: StepResult) -> Committed:
        committed = self._scheduler.commit(plan, result, {}, self._clock())
        self._interrupts.note(plan, result.interrupted)
        self.recorder.step(plan, result, committed, self._clock())
        if plan.chunks and self.recorder.busy.steps % _WINDOW_STEPS == 0:
            self.recorder.windows.append(self._scheduler.snapshot().throughput)
        ended = [finished.request for finished in committed.finished]
        for request in ended:
            self._lengths.pop(request, None)
        gone = self._backlog.intersection(ended)
        self._backlog -= gone
        if self._others_to_come:
            for _ in gone:
                self._add(self._workload.replacement(self._clock()), in_backlog=True)
        return committed

    def _wait(self) -> None:
        """Nothing to do now: on to the next arrival, or a little further."""
        next_s = self._arrivals[0].request.arrival_s if self._arrivals else float("inf")
        if not self.recorder.alive:
            if self._arrivals:
                self._clock.jump_to(next_s)
            return
        self._idle_s += _IDLE_S
        if self._idle_s > _MOST_IDLE_S:
            raise StuckError(f"{self.recorder.alive} requests wait and no plan serves them")
        self._clock.jump_to(min(self._clock() + _IDLE_S, next_s))


_NOTHING = Committed()
