"""Classes at the door of vLLM's server, without vLLM: what its application is handed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headway.core.types import ServiceClass
from headway_vllm.classes import PRIORITY, class_of
from headway_vllm.front import BatchByDefault, ClassMiddleware, Message, Receive, Scope, Send


class Upstream:
    """An ASGI application that keeps what it was handed and answers 200."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.after: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = scope["headers"]
        self.body = (await receive())["body"]
        self.after.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    @property
    def priority(self) -> int | None:
        given = [int(v) for k, v in self.headers if k == b"x-vllm-priority"]
        assert len(given) <= 1
        return given[0] if given else None


async def ask(
    body: Any,
    headers: dict[str, str] | None = None,
    path: str = "/v1/chat/completions",
    front: type[ClassMiddleware] = ClassMiddleware,
) -> tuple[Upstream, list[Message]]:
    """One POST in two pieces, and a client that leaves after it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    events: Iterator[Message] = iter(
        [
            {"type": "http.request", "body": raw[:5], "more_body": True},
            {"type": "http.request", "body": raw[5:], "more_body": False},
            {"type": "http.disconnect"},
        ]
    )
    sent: list[Message] = []

    async def receive() -> Message:
        return next(events)

    async def send(message: Message) -> None:
        sent.append(message)

    upstream = Upstream()
    given = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [*given, (b"content-length", str(len(raw)).encode())],
    }
    await front(upstream)(scope, receive, send)
    return upstream, sent


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"model": "m"}, {}, ServiceClass.STANDARD),
        ({"model": "m", "service_tier": "priority"}, {}, ServiceClass.REALTIME),
        ({"model": "m", "service_tier": "flex"}, {}, ServiceClass.BATCH),
        ({"model": "m", "service_tier": "realtime"}, {}, ServiceClass.REALTIME),
        ({"model": "m:batch"}, {}, ServiceClass.BATCH),
        ({"model": "m:batch"}, {"X-Headway-Class": "realtime"}, ServiceClass.REALTIME),
        (
            {"model": "m:batch", "service_tier": "default"},
            {"X-Headway-Class": "realtime"},
            ServiceClass.STANDARD,
        ),
    ],
)
async def test_the_first_that_is_given_decides(
    body: dict[str, str], headers: dict[str, str], expected: ServiceClass
) -> None:
    upstream, sent = await ask(body, {**headers, "X-Vllm-Priority": "7"} if headers else {})
    assert upstream.priority == PRIORITY[expected]
    assert (b"x-headway-class", expected.label.encode()) in sent[0]["headers"]


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        ({"service_tier": "vip"}, {}, "service_tier"),
        ({"service_tier": 3}, {}, "service_tier"),
        ({"service_tier": "flex"}, {"X-Headway-Class": "vip"}, "X-Headway-Class"),
    ],
)
async def test_an_unknown_word_is_refused_as_openai_would(
    body: dict[str, Any], headers: dict[str, str], param: str
) -> None:
    upstream, sent = await ask(body, headers)
    assert upstream.headers == [], "vLLM never saw it"
    assert sent[0]["status"] == 400
    error = json.loads(sent[1]["body"])["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


async def test_a_priority_of_vllms_own_stands_where_no_class_is_given() -> None:
    upstream, sent = await ask({"model": "m"}, {"X-Vllm-Priority": "-250"})
    assert upstream.priority == -250
    assert (b"x-headway-class", b"realtime") in sent[0]["headers"]
    upstream, sent = await ask({"model": "m", "priority": 250})
    assert upstream.priority is None, "vLLM reads its body itself"
    assert (b"x-headway-class", b"batch") in sent[0]["headers"]


async def test_the_default_class_is_the_servers() -> None:
    upstream, _ = await ask({"model": "m"}, front=BatchByDefault)
    assert upstream.priority == PRIORITY[ServiceClass.BATCH]


async def test_vllm_gets_the_body_whole_and_sees_the_client_leave() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "grüß"}]}
    upstream, _ = await ask(body)
    assert json.loads(upstream.body) == body
    assert upstream.after == ["http.disconnect"]


@pytest.mark.parametrize("word", ["batch", "realtime", None])
async def test_a_word_that_vllms_types_lack_is_taken_out_with_the_length_right(
    word: str | None,
) -> None:
    upstream, _ = await ask({"model": "m", "service_tier": word}, path="/v1/responses")
    assert json.loads(upstream.body) == {"model": "m"}
    assert (b"content-length", str(len(upstream.body)).encode()) in upstream.headers


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b"[" * 100_000])
async def test_what_is_no_object_is_left_to_vllm(raw: bytes) -> None:
    upstream, _ = await ask(raw)
    assert upstream.body == raw


async def test_other_paths_are_not_touched() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))

    async def nothing() -> Message:
        return {}

    async def drop(message: Message) -> None:
        del message

    seen: list[tuple[Scope, Receive, Send]] = []
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
    await ClassMiddleware(app)(scope, nothing, drop)
    assert seen == [(scope, nothing, drop)]


@pytest.mark.parametrize("service_class", list(ServiceClass))
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_class_survives_vllms_own_shift_of_its_priority(
    service_class: ServiceClass, shift: int
) -> None:
    assert class_of(PRIORITY[service_class] + shift) is service_class
