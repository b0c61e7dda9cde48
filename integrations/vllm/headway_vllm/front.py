"""ASGI middleware for vLLM's OpenAI server: a request's service class becomes vLLM's priority.

The first that is given decides: the body's `service_tier`, the header `X-Headway-Class`, the
model alias (`NAME:batch`). Where none is, a priority that the client set in vLLM's own way stands,
and else the server's default class. Every answer names the class in `X-Headway-Class`.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headway.core.types import ServiceClass
from headway.server.errors import ApiError, bad_request
from headway.server.tiers import CLASS_HEADER, parse_tier
from headway_vllm.classes import PRIORITY, class_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Where a class can be asked for: OpenAI's, for which vLLM takes its priority from a header too."""

_PRIORITY_HEADER = b"x-vllm-priority"
_CLASS_HEADER = CLASS_HEADER.lower().encode()
_OPENAI_WORDS = ("auto", "default", "flex", "scale", "priority")
_LABELS = {c.label: c for c in ServiceClass}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of its class. priority: vLLM's own, from the header or else the body."""

    body: dict[str, Any]
    header: str | None
    priority: int | None

    def service_class(self, default: ServiceClass) -> ServiceClass:
        """The class it runs in. Raises ApiError (400) for an unknown word, wherever it stands."""
        tier = self.body.get("service_tier")
        if tier is not None and not isinstance(tier, str):
            raise bad_request("service_tier is not a string.", "service_tier")
        given = [
            parse_tier(word, param).service_class
            for word, param in ((tier, "service_tier"), (self.header, CLASS_HEADER))
            if word is not None
        ]
        if given:
            return given[0]
        if self.alias is not None:
            return self.alias
        return default if self.priority is None else class_of(self.priority)

    @property
    def says_class(self) -> bool:
        """Whether any of our three ways is used; else vLLM's own priority stands."""
        words = (self.alias, self.header, self.body.get("service_tier"))
        return any(word is not None for word in words)

    @property
    def alias(self) -> ServiceClass | None:
        """The class that the model's name ends with."""
        name, _, label = str(self.body.get("model", "")).rpartition(":")
        return _LABELS.get(label) if name else None


class ClassMiddleware:
    """Wraps vLLM's application; the subclasses below differ in the default class, since vLLM makes
    its middleware without arguments."""

    default = ServiceClass.STANDARD

    def __init__(self, app: App) -> None:
        """`app` answers."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["method"] != "POST" or _path(scope) not in PATHS:
            await self._app(scope, receive, send)
            return
        raw = await _read(receive)
        asked = _asked(scope["headers"], raw)
        try:
            service_class = asked.service_class(self.default)
        except ApiError as error:
            await _answer(send, error)
            return
        headers = list(scope["headers"])
        if asked.says_class or asked.priority is None:
            headers = [(k, v) for k, v in headers if k != _PRIORITY_HEADER]
            headers.append((_PRIORITY_HEADER, str(PRIORITY[service_class]).encode()))
        body = _without_our_words(asked.body, raw)
        headers = [(k, v) for k, v in headers if k != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        replay = _Replay(body, receive)
        named = _Named(send, service_class)
        await self._app({**scope, "headers": headers}, replay, named)


class RealtimeByDefault(ClassMiddleware):
    """Requests that say nothing are realtime."""

    default = ServiceClass.REALTIME


class StandardByDefault(ClassMiddleware):
    """Requests that say nothing are standard."""


class BatchByDefault(ClassMiddleware):
    """Requests that say nothing are batch."""

    default = ServiceClass.BATCH


class _Replay:
    """Gives the body that was read, then whatever comes after it (a client that leaves)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Named:
    """Adds the class to an answer's headers."""

    def __init__(self, send: Send, service_class: ServiceClass) -> None:
        self._send = send
        self._header = (_CLASS_HEADER, service_class.label.encode())

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), self._header]}
        await self._send(message)


def _path(scope: Scope) -> str:
    path = str(scope["path"])
    root = str(scope.get("root_path", ""))
    return path.removeprefix(root) if root else path


async def _read(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def _asked(headers: list[tuple[bytes, bytes]], raw: bytes) -> Asked:
    """What the request says; a body that is not an object says nothing, and vLLM refuses it."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        body = {}
    found = {key.lower(): value.decode("latin-1") for key, value in headers}
    header = found.get(_CLASS_HEADER)
    in_body = body.get("priority")
    priority: int | None = in_body if isinstance(in_body, int) else None
    if _PRIORITY_HEADER in found:
        with suppress(ValueError):
            priority = int(found[_PRIORITY_HEADER])
    return Asked(body, header, priority)


def _without_our_words(body: dict[str, Any], raw: bytes) -> bytes:
    """The body, without a tier that vLLM's types do not know, `null` among them."""
    if body.get("service_tier", "auto") in _OPENAI_WORDS:
        return raw
    return json.dumps({k: v for k, v in body.items() if k != "service_tier"}).encode()


async def _answer(send: Send, error: ApiError) -> None:
    body = error.body()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
