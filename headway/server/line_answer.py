"""Answers the lines of Batch jobs by the same code as requests over HTTP."""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from headway.batches.types import LineAnswer
from headway.core.types import FinishReason, ServiceClass
from headway.engine.types import Delta, EngineClient, GenerationRequest
from headway.errors import HeadwayError
from headway.server.answer import Choices
from headway.server.errors import (
    ApiError,
    bad_request,
    from_exception,
    from_finish,
    internal_error,
    unavailable,
)
from headway.server.model import ServedModel
from headway.server.openai_types import ChatBody, CompletionBody, GenerationBody
from headway.server.parse import parse_body
from headway.server.render import BodyWriter, Head
from headway.server.routes import BODIES, CHAT_PATH
from headway.server.shapes import ChatShape, CompletionShape, Shape
from headway.server.tiers import Tier, parse_tier
from headway.server.translate import chat_requests, completion_requests

_LOG = logging.getLogger(__name__)
_OPEN_ENDS = (None, FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class _Work:
    """A valid line: its body, the engine's requests, and the answer's shape."""

    body: GenerationBody
    requests: Sequence[GenerationRequest]
    shape: Shape


class LineAnswerer:
    """Implements `batches.types.Answerer` over an engine."""

    def __init__(self, engine: EngineClient, model: ServedModel) -> None:
        self._engine = engine
        self._model = model

    @property
    def endpoints(self) -> Collection[str]:
        """Paths that lines may be meant for."""
        return BODIES.keys()

    async def answer(self, endpoint: str, body: bytes, tenant: str) -> LineAnswer:
        """The answer to a JSON body, or the error that HTTP would have answered with.

        503 also where the engine as a whole failed, so that a line isn't blamed for it.
        """
        request_id = f"req_{secrets.token_hex(12)}"
        try:
            work = self._prepare(endpoint, body, tenant)
            return LineAnswer(200, await self._run(work), request_id)
        except ApiError as error:
            failure = error
        except HeadwayError as error:
            failure = from_exception(error)
        except Exception:
            _LOG.exception("a batch line failed")
            failure = internal_error()
        if failure.status >= 500 and not self._engine.healthy:
            failure = unavailable(failure.message, "engine_unhealthy")
        return LineAnswer(failure.status, failure.body(), request_id)

    def _prepare(self, endpoint: str, raw: bytes, tenant: str) -> _Work:
        work = self._chat(raw) if endpoint == CHAT_PATH else self._completion(raw)
        if work.body.stream:
            raise bad_request("A batch line can't be streamed.", "stream", "unsupported_field")
        self._model.names.resolve(work.body.model)
        if work.body.service_tier is not None:
            parse_tier(work.body.service_tier, "service_tier")
        return replace(work, requests=[replace(r, tenant=tenant) for r in work.requests])

    def _chat(self, raw: bytes) -> _Work:
        body = parse_body(ChatBody, raw)
        requests = chat_requests(body, ServiceClass.BATCH, self._model)
        return _Work(body, requests, ChatShape(self._model.codec, bool(body.logprobs)))

    def _completion(self, raw: bytes) -> _Work:
        body = parse_body(CompletionBody, raw)
        requests = completion_requests(body, ServiceClass.BATCH, self._model)
        return _Work(body, requests, CompletionShape(self._model.codec, body.logprobs is not None))

    async def _run(self, work: _Work) -> bytes:
        n = work.body.n or 1
        name = f"{work.shape.id_prefix}-{secrets.token_hex(12)}"
        tier = Tier.of(ServiceClass.BATCH)
        writer = BodyWriter(Head(name, int(time.time()), work.body.model, tier.word), work.shape, n)
        async with aclosing(Choices(n)) as choices:
            choices.submit(self._engine, work.requests)
            async for batch in choices.batches():
                _take_in(batch, writer.add)
        return writer.body()


def _take_in(deltas: Sequence[Delta], add: Callable[[Delta], None]) -> None:
    """Raises ApiError for a delta that reports a failure."""
    for delta in deltas:
        if delta.finish not in _OPEN_ENDS:
            raise from_finish(delta.finish or FinishReason.ERROR, delta.message)
        add(delta)
