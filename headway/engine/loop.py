"""The engine's turns: plan, submit, verdicts, commit, deliver. No threads here."""

import logging
from collections.abc import Callable, Sequence

from headway.core.interrupts import Interrupts
from headway.core.picture import Picture
from headway.core.plan import Executor, StepFailure, StepPlan, StepResult
from headway.core.request import Committed, Snapshot
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, RequestId
from headway.engine.choices import Choices, Live, News
from headway.engine.flight import Flight, Pace, Planned
from headway.engine.options import LoopOptions
from headway.errors import HeadwayError

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

Watch = Callable[[Flight], None]
"""Sees to it that `StepLoop.land` is called when a step has ended."""


SNAPSHOT_S = 0.05
"""It takes a third as long as planning a step of one row, which waits for it."""


SETTLE_S = 0.005
"""Longest the engine leaves a core to event loops that write out its news. It then waits for the
step, which tells the executor that this core is free."""


class StallError(HeadwayError):
    """A step has lasted longer than the stall limit, while this process ran."""


class StepLoop:
    """Everything the engine thread does. Only `interrupt_for_realtime` and the reading of
    `snapshot` and `failures` are for other threads.

    A turn starts a step on each lane that is due, and delivers the last news while they compute.
    It waits for a step on the unified lane, since nothing else can be done meanwhile. Those of two
    lanes are watched: whoever calls `turn` then calls `land` for each as it ends.

    snapshot: the scheduler's, after the last commit in which requests came, went or moved; where
        they do nothing but decode, at most SNAPSHOT_S old and one step. After `end`: that of one
        whose requests are gone.
    urgent: whether realtime has arrived since the last arrivals were taken in; the engine clears
        it before it takes them in.
    frozen_s: for how long the process has not run; that is no step's fault.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        options: LoopOptions,
        choices: Choices,
        watch: Watch,
        frozen_s: Callable[[], float],
    ) -> None:
        self.snapshot: Snapshot = scheduler.snapshot()
        self.urgent = False
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._options = options
        self._choices = choices
        self._watch = watch
        self._frozen_s = frozen_s
        self._flights: dict[Lane, Flight] = {}
        self._failures = dict.fromkeys(Lane, 0)
        self._pace = {lane: Pace() for lane in Lane}
        self._interrupts = Interrupts(options.interrupt_gain_s)
        self._changed = True
        self._moved = False
        self._snapshot_due_s = 0.0
        self._news: list[News] = []
        self._ended = ""

    @property
    def busy(self) -> bool:
        """Whether any choice is under way, or a step in flight."""
        return bool(self._choices) or bool(self._flights)

    @property
    def failures(self) -> int:
        """Computing steps of a lane that failed in a row, most of any lane."""
        return max(self._failures.values())

    def add(self, lives: Sequence[Live]) -> None:
        """Take in the choices of one request; what the scheduler refuses ends with ERROR."""
        self._changed = self._moved = True
        for live in lives:
            self._choices.add(live)
            if self._ended:
                self._choices.fail(live, self._ended)
                continue
            try:
                self._scheduler.add(live.request)
            except HeadwayError as error:
                self._choices.fail(live, str(error))
        self._choices.flush()

    def abort(self, request: RequestId) -> None:
        """End a choice at the next commit."""
        self._changed = self._moved = True
        if not self._ended:
            self._scheduler.abort(request)

    def note_mask(self) -> None:
        """A mask that a plan did without is there."""
        self._changed = True

    def turn(self) -> bool:
        """Start what is due and deliver the news; whether anything was done.

        Raises StallError, or whatever the scheduler raises: the loop can't go on after either.
        """
        did_something = False
        for lane in self._due():
            did_something = self._start(lane) or did_something
        self._deliver()
        alone = self._flights.get(Lane.UNIFIED)
        if alone is not None:
            self._choices.settle(SETTLE_S)
            self.land(alone, alone.end(self._options.stall_limit_s, self._frozen_s))
        return did_something

    def land(self, flight: Flight, end: StepResult | Exception) -> None:
        """Take in the end of a step that a turn started. Raises as `turn` does."""
        if self._ended:
            return
        plan = flight.plan
        if isinstance(end, TimeoutError):
            limit_s = self._options.stall_limit_s
            raise StallError(f"step {plan.step} has not ended after {limit_s:g} s") from end
        del self._flights[plan.lane]
        if isinstance(end, Exception):
            self._commit(flight.planned, self._failure(plan, end))
            return
        if plan.chunks:
            self._failures[plan.lane] = 0
        self._interrupts.note(plan, end.interrupted)
        self._pace[plan.lane].observe(plan, end)
        self._commit(flight.planned, end)

    def picture(self) -> Picture:
        """Every block and sequence as it is now."""
        return self._scheduler.picture()

    def end(self, message: str) -> None:
        """End every choice with ERROR, those that are still to come too. No turn may follow; steps
        in flight are asked to stop."""
        self._deliver()
        self._ended = message
        self.snapshot = self.snapshot.emptied()
        for flight in self._flights.values():
            flight.handle.interrupt()
        self._choices.fail_all(message)

    def interrupt_for_realtime(self) -> None:
        """Take the lower classes out of steps in flight if a realtime arrival gains by it, or out
        of one about to start. From any thread."""
        self.urgent = True
        for flight in tuple(self._flights.values()):
            self._interrupt(flight)

    def _due(self) -> Sequence[Lane]:
        """Lanes to plan. While one of two is busy, the other has no work unless something has
        changed since it was last planned, or a deadline has passed."""
        now_s = self._clock()
        if self._flights and not self._changed and not self._scheduler.overdue(now_s):
            return ()
        self._changed = False
        return self._scheduler.due(now_s)

    def _start(self, lane: Lane) -> bool:
        """Plan a lane and launch its step; whether that did anything."""
        masks = self._choices.masks
        plan = self._scheduler.plan(lane, self._clock(), masks.unready())
        planned = Planned(plan, self._scheduler.records.latest())
        if plan.empty:
            return self._commit(planned, StepResult(plan.step)) != Committed()
        started_s = self._clock()
        try:
            handle = self._executor.submit(plan, masks.masks(plan))
        except Exception as error:
            self._commit(planned, self._failure(plan, error))
            return True
        flight = Flight(planned, handle, started_s, self._pace[lane].expect(plan))
        self._flights[lane] = flight
        if self.urgent:
            self._interrupt(flight)
        if lane is not Lane.UNIFIED:
            self._watch(flight)
        return True

    def _commit(self, planned: Planned, outcome: StepResult | StepFailure) -> Committed:
        """Verdicts, then the commit; its news are kept for the next delivery."""
        plan = planned.plan
        verdicts = self._choices.judge(outcome)
        now_s = self._clock()
        committed = self._scheduler.commit(plan, outcome, verdicts, now_s)
        if self._moved or _moves(plan, committed) or now_s >= self._snapshot_due_s:
            self._snapshot_due_s, self._moved = now_s + SNAPSHOT_S, False
            self.snapshot = self._scheduler.snapshot()
        if committed != Committed() or not plan.empty:
            step = None if plan.empty else planned
            self._news.append(News(committed, now_s, step, outcome))
        self._changed = self._changed or not plan.empty or bool(self._news)
        return committed

    def _failure(self, plan: StepPlan, error: Exception) -> StepFailure:
        self._failures[plan.lane] += 1
        logger.error("step %d failed", plan.step, exc_info=error)
        return StepFailure(plan.step, str(error) or type(error).__name__)

    def _interrupt(self, flight: Flight) -> None:
        if self._interrupts.pays(flight.plan, flight.left_s(self._clock())):
            flight.handle.interrupt()

    def _deliver(self) -> None:
        """Send out what commits have changed since the last time."""
        news, self._news = self._news, []
        for each in news:
            self._choices.tell(each)
        if news:
            self._choices.flush()


def _moves(plan: StepPlan, committed: Committed) -> bool:
    """Whether a step did more than compute for those who were there before it."""
    copies = plan.empty or plan.swap_in or plan.swap_out
    return bool(copies or committed.admitted or committed.finished or committed.preempted)
