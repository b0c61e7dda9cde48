"""Choices under way: judging their tokens, telling readers and observers what happened."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.plan import Sampled, StepFailure, StepResult
from headway.core.request import (
    Committed,
    Emitted,
    Finished,
    Request,
    Usage,
    Verdict,
    VerdictKind,
)
from headway.core.types import FinishReason, RequestId
from headway.engine.flight import Planned
from headway.engine.masks import MaskMaker
from headway.engine.queues import Burden, WaitingRoom
from headway.engine.streams import Mailbox, Outbox, Parcel
from headway.engine.text import ChoiceText
from headway.engine.types import Grammar, Observer, RequestEnd, StepEnd, TokenInfo
from headway.errors import HeadwayError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Live:
    """A choice under way. `text` only where stop strings are watched: then the engine decodes.
    `grammar` only where the answer is not free.

    first_s, last_s: when its first and its last token were committed; None before the first.
    """

    request: Request
    choice: int
    mailbox: Mailbox
    text: ChoiceText | None
    grammar: Grammar | None = None
    first_s: float | None = None
    last_s: float | None = None
    admitted: bool = False

    def end(self, finished: Finished) -> RequestEnd:
        """Its end, for observers."""
        first_s, last_s, request = self.first_s, self.last_s, self.request
        decode_s = 0.0 if first_s is None or last_s is None else last_s - first_s
        return RequestEnd(
            request.service_class, request.tenant, finished.reason, finished.usage, decode_s
        )


@dataclass(frozen=True, slots=True)
class News:
    """What a commit changed, and when.

    planned: the step, unless an executor had nothing to do in it.
    """

    committed: Committed
    when_s: float
    planned: Planned | None
    outcome: StepResult | StepFailure


class Choices:
    """The choices under way. For the engine thread alone, `is_realtime` for any."""

    def __init__(self, waiting: WaitingRoom, observer: Observer, masks: MaskMaker) -> None:
        """masks: of the choices under a grammar."""
        self.masks = masks
        self._waiting = waiting
        self._observer = observer
        self._outbox = Outbox()
        self._live: dict[RequestId, Live] = {}
        self._watched: dict[RequestId, ChoiceText] = {}

    def __len__(self) -> int:
        return len(self._live)

    def add(self, live: Live) -> None:
        """Take one in."""
        self._live[live.request.id] = live
        if live.text is not None:
            self._watched[live.request.id] = live.text
        if live.grammar is not None:
            self.masks.add(live.request.id, live.grammar)

    def judge(self, outcome: StepResult | StepFailure) -> Mapping[RequestId, Verdict]:
        """Verdicts on the tokens of choices whose grammar or stop strings are watched."""
        verdicts: dict[RequestId, Verdict] = {}
        if isinstance(outcome, StepResult):
            for sampled in outcome.sampled:
                verdict = self._judged(sampled)
                if verdict is not None:
                    verdicts[sampled.request] = verdict
        return verdicts

    def _judged(self, sampled: Sampled) -> Verdict | None:
        """What a sampled token means for its choice; None to continue."""
        text = self._watched.get(sampled.request)
        try:
            complete = self.masks.accept(sampled.request, sampled.token)
            if text is not None:
                text.push(TokenInfo(sampled.token, sampled.logprobs))
        except HeadwayError as error:
            return Verdict(VerdictKind.ERROR, message=str(error))
        except Exception as error:
            logger.exception("token %d can't be decoded", sampled.token)
            return Verdict(
                VerdictKind.ERROR, message=f"token {sampled.token} can't be decoded: {error}"
            )
        if text is not None and text.hit:
            return Verdict(VerdictKind.STOP, text.keep_tokens)
        return Verdict(VerdictKind.STOP) if complete else None

    def tell(self, news: News) -> None:
        """Put what a commit changed in the outbox; observers hear of it on the way."""
        for admitted in news.committed.admitted:
            live = self._live.get(admitted.request)
            if live is not None:
                self._leave_queue(live)
                self._observer.on_admitted(live.request.service_class, admitted.queued_s)
        for preempted in news.committed.preempted:
            live = self._live.get(preempted.request)
            if live is not None:
                self._observer.on_preempted(live.request.service_class, preempted.kind.value)
        for emitted in news.committed.emitted:
            self._emit(emitted, news.when_s)
        step = self._step_end(news)
        for finished in news.committed.finished:
            self._finish(finished)
        if step is not None:
            self._observer.on_step(step)

    def flush(self) -> None:
        """Send out what is in the outbox."""
        self._outbox.flush()

    def settle(self, limit_s: float) -> None:
        """Let the readers in event loops take what the last flush brought them."""
        self._outbox.settle(limit_s)

    def fail(self, live: Live, message: str) -> None:
        """End one with ERROR."""
        usage = Usage(prompt=len(live.request.prompt))
        self._finish(Finished(live.request.id, FinishReason.ERROR, usage, message))

    def fail_all(self, message: str) -> None:
        """End every one with ERROR, and send that out."""
        for live in tuple(self._live.values()):
            self.fail(live, message)
        self.flush()

    def _emit(self, emitted: Emitted, when_s: float) -> None:
        live = self._live.get(emitted.request)
        if live is None:
            return
        since_s = live.request.arrival_s if live.last_s is None else live.last_s
        self._observer.on_tokens(
            live.request.service_class, (when_s - since_s,), live.last_s is None
        )
        live.first_s = when_s if live.first_s is None else live.first_s
        live.last_s = when_s
        if live.text is None:
            info = TokenInfo(emitted.token, emitted.logprobs)
            self._outbox.put(live.mailbox, Parcel(live.choice, (info,)))
            return
        released = live.text.take()
        if released.text or released.tokens:
            self._outbox.put(live.mailbox, Parcel(live.choice, released.tokens, released.text))

    def _finish(self, finished: Finished) -> None:
        live = self._live.pop(finished.request, None)
        if live is None:
            return
        self._watched.pop(finished.request, None)
        self.masks.forget(finished.request)
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
        self._observer.on_finished(live.end(finished))

    def _step_end(self, news: News) -> StepEnd | None:
        """The step for observers; made before those that ended in it are forgotten."""
        planned = news.planned
        if planned is None or planned.record is None:
            return None
        record = planned.record
        named = [
            *(computed.request for computed in record.computed),
            *(left.request for left in record.paused),
            *(r for evicted in record.evicted for r in (evicted.request, evicted.wanted_by)),
        ]
        classes = {r: self._live[r].request.service_class for r in named if r in self._live}
        return StepEnd(planned.plan, record, news.outcome, classes, news.when_s)

    def _leave_queue(self, live: Live) -> None:
        if not live.admitted:
            live.admitted = True
            request = live.request
            self._waiting.leave(Burden(request.service_class, 1, len(request.prompt)))
