"""Answers the lines of Batch jobs by the same code as requests over HTTP."""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from threading import Lock

from headway.batches.types import LineAnswer
from headway.core.types import ServiceClass
from headway.engine.types import EngineClient
from headway.errors import HeadwayError
from headway.server.answer import Choices, take_in
from headway.server.errors import (
    ApiError,
    bad_request,
    from_exception,
    internal_error,
    unavailable,
)
from headway.server.model import ServedModel
from headway.server.openai_types import ChatBody, CompletionBody, GenerationBody
from headway.server.parse import parse_body
from headway.server.render import BodyWriter, Head
from headway.server.routes import BODIES, CHAT_PATH
from headway.server.tiers import Tier, parse_tier
from headway.server.translate import Work, chat_work, completion_work

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Line:
    """A valid line: its body, and the work it asks for."""

    body: GenerationBody
    work: Work


class LineAnswerer:
    """Implements `batches.types.Answerer` over an engine."""

    def __init__(self, engine: EngineClient, model: ServedModel) -> None:
        self._engine = engine
        self._model = model
        self._compiling = Lock()

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
            line = await asyncio.to_thread(self._prepare, endpoint, body, tenant)
            return LineAnswer(200, await self._run(line), request_id)
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

    def _prepare(self, endpoint: str, raw: bytes, tenant: str) -> _Line:
        line = self._chat(raw) if endpoint == CHAT_PATH else self._completion(raw)
        if line.body.stream:
            raise bad_request("A batch line can't be streamed.", "stream", "unsupported_field")
        if line.body.timeout is not None:
            raise bad_request(
                "A batch line has no time limit but its job's.", "timeout", "unsupported_field"
            )
        self._model.names.resolve(line.body.model)
        if line.body.service_tier is not None:
            parse_tier(line.body.service_tier, "service_tier")
        requests = [replace(request, tenant=tenant) for request in line.work.requests]
        return _Line(line.body, replace(line.work, requests=requests))

    def _chat(self, raw: bytes) -> _Line:
        body = parse_body(ChatBody, raw)
        with self._turn(body):
            return _Line(body, chat_work(body, ServiceClass.BATCH, self._model))

    def _completion(self, raw: bytes) -> _Line:
        body = parse_body(CompletionBody, raw)
        with self._turn(body):
            return _Line(body, completion_work(body, ServiceClass.BATCH, self._model))

    def _turn(self, body: GenerationBody) -> AbstractContextManager[object]:
        """One line at a time compiles its grammar, so that requests wait for one at most."""
        return self._compiling if body.constrained else nullcontext()

    async def _run(self, line: _Line) -> bytes:
        n, shape = line.body.n or 1, line.work.shape
        name = f"{shape.frame.id_prefix}-{secrets.token_hex(12)}"
        tier = Tier.of(ServiceClass.BATCH)
        writer = BodyWriter(Head(name, int(time.time()), line.body.model, tier.word), shape, n)
        async with aclosing(Choices(n, whole=True)) as choices:
            # A job keeps few lines waiting, and takes what is left over: no limit is for it.
            choices.submit(self._engine, line.work.requests, limited=False)
            async for batch in choices.batches():
                take_in(batch, writer)
        return writer.body()
