"""The endpoints."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from headway.core.types import ServiceClass
from headway.engine.types import EngineClient, StopConditions
from headway.server.answer import AnswerContext, StreamedAnswer, WholeAnswer
from headway.server.answer_types import ModelAnswer, ModelsAnswer, StatusAnswer
from headway.server.auth import caller_of
from headway.server.caller import Caller
from headway.server.errors import unavailable
from headway.server.gate import Gate
from headway.server.logs import current_request_id
from headway.server.metrics import Metrics
from headway.server.model import ServedModel
from headway.server.names import RequestNames
from headway.server.openai_types import ChatBody, CompletionBody, GenerationBody
from headway.server.parse import parse_body, read_body
from headway.server.render import BodyWriter, EventWriter, Head
from headway.server.routing import add_get
from headway.server.tiers import CLASS_HEADER, Tier, resolve_tier
from headway.server.translate import Work, chat_work, completion_work

B = TypeVar("B", bound=GenerationBody)
Translate = Callable[[B, ServiceClass, ServedModel], Work]

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
BODIES: dict[str, type[GenerationBody]] = {CHAT_PATH: ChatBody, COMPLETION_PATH: CompletionBody}
"""What is posted where."""

_LOG = logging.getLogger(__name__)
_INLINE_BYTES = 16 * 1024
_GRAMMAR_THREADS = 8


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server behaves.

    default_class: for requests that don't say.
    keep_alive_s: a stream with nothing to say sends a comment this often.
    max_body_bytes: larger bodies get 413.
    log_prompts: whether bodies of requests are logged.
    timeouts_s: time limits of requests that bring none, for the classes that have one.
    """

    default_class: ServiceClass = ServiceClass.STANDARD
    keep_alive_s: float = 10.0
    log_prompts: bool = False
    max_body_bytes: int = 16_000_000
    timeouts_s: Mapping[ServiceClass, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Accepted(Generic[B]):
    """A valid body, the tier it runs in, its size, and who sent it."""

    body: B
    tier: Tier
    size_bytes: int
    caller: Caller


@dataclass(frozen=True, slots=True)
class Service:
    """What the endpoints share.

    grammar_threads: for what may have a grammar, which may take seconds to compile; nothing else
        waits behind it.
    """

    engine: EngineClient
    model: ServedModel
    metrics: Metrics
    gate: Gate
    options: ServerOptions
    names: RequestNames = field(default_factory=RequestNames)
    grammar_threads: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(_GRAMMAR_THREADS, "headway-grammars")
    )

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        accepted = await self._accept(ChatBody, request)
        return self._answer(accepted, await self._translated(chat_work, accepted))

    async def completion(self, request: Request) -> Response:
        """POST /v1/completions."""
        accepted = await self._accept(CompletionBody, request)
        return self._answer(accepted, await self._translated(completion_work, accepted))

    async def _accept(self, kind: type[B], request: Request) -> "_Accepted[B]":
        self.gate.check()
        raw = await read_body(request, self.options.max_body_bytes)
        if self.options.log_prompts:
            _LOG.info("body", extra={"body": raw.decode(errors="replace")})
        body = parse_body(kind, raw, self.engine.max_model_len)
        alias = self.model.names.resolve(body.model)
        header = request.headers.get(CLASS_HEADER)
        caller = caller_of(request.scope)
        default = caller.default_class(self.options.default_class)
        tier = caller.permit(resolve_tier(body.service_tier, header, alias, default))
        caller.begin(tier.service_class)
        return _Accepted(body, tier, len(raw), caller)

    async def _translated(self, translate: Translate[B], accepted: "_Accepted[B]") -> Work:
        body, caller, service_class = accepted.body, accepted.caller, accepted.tier.service_class
        arguments = body, service_class, self.model
        if accepted.size_bytes <= _INLINE_BYTES and not body.constrained:
            work = translate(*arguments)
        else:
            # A long prompt takes many milliseconds to encode, a grammar to compile, during which
            # no stream would move.
            threads = self.grammar_threads if body.constrained else None
            loop = asyncio.get_running_loop()
            work = await loop.run_in_executor(threads, translate, *arguments)
        default_s = self.options.timeouts_s.get(service_class)
        requests = [
            replace(request, tenant=caller.tenant, stop=_timed(request.stop, default_s))
            for request in work.requests
        ]
        return replace(work, requests=requests)

    def _answer(self, accepted: "_Accepted[B]", work: Work) -> Response:
        body, tier, shape = accepted.body, accepted.tier, work.shape
        name = f"{shape.frame.id_prefix}-{secrets.token_hex(12)}"
        head = Head(name, int(time.time()), body.model, tier.word)
        headers = {CLASS_HEADER: tier.service_class.label}
        context = AnswerContext(
            self.engine,
            work.requests,
            self.gate,
            headers,
            self.options.keep_alive_s,
            partial(accepted.caller.charge, tier.service_class),
            partial(self.names.note, current_request_id()),
        )
        n = body.n or 1
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return StreamedAnswer(EventWriter(head, shape, n, usage), context)
        return WholeAnswer(BodyWriter(head, shape, n), context)

    async def models(self) -> Response:
        """GET /v1/models: the model and its aliases, with the length that is enforced."""
        data = [self._model(name) for name in self.model.names.all]
        return JSONResponse({"object": "list", "data": data})

    async def model_card(self, name: str) -> Response:
        """GET /v1/models/NAME. Raises ApiError (404)."""
        self.model.names.resolve(name)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self.model.created,
            "owned_by": "headway",
            "max_model_len": self.engine.max_model_len,
        }

    async def health(self) -> Response:
        """GET /health: 503 once the step loop has died or stalled; draining is healthy."""
        if not self.engine.healthy:
            raise unavailable("The engine has failed or stalled.", "engine_unhealthy")
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """GET /ready: whether new requests are taken."""
        self.gate.check()
        return await self.health()


def _timed(stop: StopConditions, default_s: float | None) -> StopConditions:
    return stop if stop.deadline_s is not None else replace(stop, deadline_s=default_s)


def build_router(service: Service) -> APIRouter:
    """All routes of a service."""
    router = APIRouter()
    router.add_api_route(CHAT_PATH, service.chat, methods=["POST"])
    router.add_api_route(COMPLETION_PATH, service.completion, methods=["POST"])
    for path, endpoint, answer in (
        ("/v1/models", service.models, ModelsAnswer),
        ("/v1/models/{name:path}", service.model_card, ModelAnswer),
        ("/health", service.health, StatusAnswer),
        ("/ready", service.ready, StatusAnswer),
    ):
        add_get(router, path, endpoint, responses={200: {"model": answer}})
    return router
