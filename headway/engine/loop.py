"""One turn of the engine: plan, submit, result, verdicts, commit, deliver. No threads here."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.core.plan import Executor, Sampled, StepFailure, StepPlan, StepResult
from headway.core.request import (
    Committed,
    Emitted,
    Finished,
    Request,
    Snapshot,
    Usage,
    Verdict,
    VerdictKind,
)
from headway.core.scheduler import Scheduler
from headway.core.types import FinishReason, Lane, RequestId, ServiceClass
from headway.engine.flight import Flight, Pace
from headway.engine.options import LoopOptions
from headway.engine.queues import WaitingRoom
from headway.engine.streams import Mailbox, Outbox, Parcel
from headway.engine.text import ChoiceText
from headway.engine.types import Observer, TokenInfo
from headway.errors import HeadwayError

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


class StallError(HeadwayError):
    """A step has lasted longer than the stall limit."""


@dataclass(slots=True)
class Live:
    """A choice under way. `text` only where stop strings are watched: then the engine decodes.

    last_s: when its last token was committed; None before the first.
    """

    request: Request
    choice: int
    mailbox: Mailbox
    text: ChoiceText | None
    last_s: float | None = None
    admitted: bool = False


class StepLoop:
    """Everything the engine thread does. Only `interrupt_for_realtime` and the reading of
    `snapshot` and `failures` are for other threads.

    snapshot: the scheduler's, after the last commit.
    failures: computing steps that failed in a row.
    urgent: whether realtime has arrived since the last arrivals were taken in; the engine clears
        it before it takes them in.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        options: LoopOptions,
        waiting: WaitingRoom,
        observer: Observer,
    ) -> None:
        self.snapshot: Snapshot = scheduler.snapshot()
        self.failures = 0
        self.urgent = False
        self._flight: Flight | None = None
        self._spared = False
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._options = options
        self._waiting = waiting
        self._observer = observer
        self._pace = Pace()
        self._outbox = Outbox()
        self._live: dict[RequestId, Live] = {}
        self._watched: dict[RequestId, ChoiceText] = {}
        self._news = Committed()
        self._news_s = 0.0
        self._ended = ""

    @property
    def busy(self) -> bool:
        """Whether any choice is under way."""
        return bool(self._live)

    def add(self, lives: Sequence[Live]) -> None:
        """Take in the choices of one request; what the scheduler refuses ends with ERROR."""
        for live in lives:
            request = live.request
            self._live[request.id] = live
            if self._ended:
                self._fail(live, self._ended)
                continue
            if live.text is not None:
                self._watched[request.id] = live.text
            try:
                self._scheduler.add(request)
            except HeadwayError as error:
                self._fail(live, str(error))
        self._outbox.flush()

    def abort(self, request: RequestId) -> None:
        """End a choice at the next commit."""
        if not self._ended:
            self._scheduler.abort(request)

    def turn(self) -> bool:
        """One step; whether anything was done. News leave while the next step computes.

        Raises StallError, or whatever the scheduler raises: the loop can't go on after either.
        """
        plan = self._scheduler.plan(Lane.UNIFIED, self._clock())
        launched = self._launch(plan)
        self._deliver()
        outcome = self._land(launched) if isinstance(launched, Flight) else launched
        verdicts = self._judge(outcome)
        self._news_s = self._clock()
        self._news = self._scheduler.commit(plan, outcome, verdicts, self._news_s)
        self.snapshot = self._scheduler.snapshot()
        if plan.empty:
            did_something = self._news != Committed()
            self._deliver()
            return did_something
        return True

    def end(self, message: str) -> None:
        """End every choice with ERROR, those that are still to come too. No turn may follow."""
        self._ended = message
        self._deliver()
        for live in tuple(self._live.values()):
            self._fail(live, message)
        self._outbox.flush()

    def interrupt_for_realtime(self) -> None:
        """Stop the step in flight if a realtime arrival gains by it, or the one about to start.
        From any thread."""
        self.urgent = True
        flight = self._flight
        if flight is not None:
            self._interrupt(flight)

    def _interrupt(self, flight: Flight) -> None:
        # Of lower-class steps at most every other one is lost, however often realtime arrives.
        if not self._spared:
            gain_s = self._options.interrupt_gain_s
            flight.interrupt_if_worth(self._clock(), gain_s, self._is_realtime)

    def _is_realtime(self, request: RequestId) -> bool:
        live = self._live.get(request)
        return live is not None and live.request.service_class is ServiceClass.REALTIME

    def _launch(self, plan: StepPlan) -> Flight | StepResult | StepFailure:
        """Start a step. An outcome at once where there is nothing to do, or it didn't start."""
        if plan.empty:
            return StepResult(plan.step)
        started_s = self._clock()
        try:
            handle = self._executor.submit(plan, {})
        except Exception as error:
            return self._failure(plan, error)
        flight = self._flight = Flight(plan, handle, started_s, self._pace.expect(plan))
        if self.urgent:
            self._interrupt(flight)
        return flight

    def _land(self, flight: Flight) -> StepResult | StepFailure:
        """Wait for a step's end."""
        plan = flight.plan
        try:
            result = flight.handle.result(self._options.stall_limit_s)
        except TimeoutError as error:
            limit_s = self._options.stall_limit_s
            raise StallError(f"step {plan.step} has not ended after {limit_s:g} s") from error
        except Exception as error:
            return self._failure(plan, error)
        finally:
            self._flight = None
        if plan.chunks:
            self.failures = 0
        if result.interrupted:
            self._spared = True
        elif self._spared and plan.chunks:
            self._spared = any(self._is_realtime(chunk.request) for chunk in plan.chunks)
        self._pace.observe(plan, result)
        return result

    def _failure(self, plan: StepPlan, error: Exception) -> StepFailure:
        self.failures += 1
        logger.error("step %d failed", plan.step, exc_info=error)
        return StepFailure(plan.step, str(error) or type(error).__name__)

    def _judge(self, outcome: StepResult | StepFailure) -> Mapping[RequestId, Verdict]:
        """Verdicts on the tokens of choices whose stop strings are watched."""
        verdicts: dict[RequestId, Verdict] = {}
        if self._watched and isinstance(outcome, StepResult):
            for sampled in outcome.sampled:
                text = self._watched.get(sampled.request)
                if text is not None:
                    verdict = _verdict(text, sampled)
                    if verdict is not None:
                        verdicts[sampled.request] = verdict
        return verdicts

    def _deliver(self) -> None:
        """Send out what the last commit changed; observers hear of it on the way."""
        news, self._news = self._news, Committed()
        for admitted in news.admitted:
            live = self._live.get(admitted.request)
            if live is not None:
                self._leave_queue(live)
                self._observer.on_admitted(live.request.service_class, admitted.queued_s)
        for preempted in news.preempted:
            live = self._live.get(preempted.request)
            if live is not None:
                self._observer.on_preempted(live.request.service_class, preempted.kind.value)
        for emitted in news.emitted:
            self._emit(emitted)
        for finished in news.finished:
            self._finish(finished)
        self._outbox.flush()

    def _emit(self, emitted: Emitted) -> None:
        live = self._live.get(emitted.request)
        if live is None:
            return
        since_s = live.request.arrival_s if live.last_s is None else live.last_s
        self._observer.on_tokens(
            live.request.service_class, (self._news_s - since_s,), live.last_s is None
        )
        live.last_s = self._news_s
        if live.text is None:
            info = TokenInfo(emitted.token, emitted.logprobs)
            self._outbox.put(live.mailbox, Parcel(live.choice, (info,)))
            return
        released = live.text.take()
        if released.text or released.tokens:
            self._outbox.put(live.mailbox, Parcel(live.choice, released.tokens, released.text))

    def _fail(self, live: Live, message: str) -> None:
        usage = Usage(prompt=len(live.request.prompt))
        self._finish(Finished(live.request.id, FinishReason.ERROR, usage, message))

    def _finish(self, finished: Finished) -> None:
        live = self._live.pop(finished.request, None)
        if live is None:
            return
        self._watched.pop(finished.request, None)
        self._leave_queue(live)
        parcel = Parcel(
            live.choice,
            finish=finished.reason,
            usage=finished.usage,
            message=finished.message,
        )
        if live.text is not None:
            live.text.finish()
            released = live.text.take()
            parcel.text, parcel.tokens = released.text, released.tokens
        self._outbox.put(live.mailbox, parcel)
        self._observer.on_finished(live.request.service_class, finished.reason, finished.usage)

    def _leave_queue(self, live: Live) -> None:
        if not live.admitted:
            live.admitted = True
            self._waiting.leave(live.request.service_class)


def _verdict(text: ChoiceText, sampled: Sampled) -> Verdict | None:
    """What a sampled token means for its choice; None to continue."""
    try:
        text.push(TokenInfo(sampled.token, sampled.logprobs))
    except Exception as error:
        logger.exception("token %d can't be decoded", sampled.token)
        return Verdict(
            VerdictKind.ERROR, message=f"token {sampled.token} can't be decoded: {error}"
        )
    return Verdict(VerdictKind.STOP, text.keep_tokens) if text.hit else None
