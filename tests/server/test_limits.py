"""Limits of time, size and number, over HTTP."""

import json
import socket

import pytest

from headway.core.types import FinishReason, ServiceClass
from headway.errors import OverloadedError
from headway.server.routes import ServerOptions
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, live_server
from tests.server.test_errors import error_of

TEXT = {"model": MODEL, "prompt": "abc"}
TIMES = ServerOptions(timeouts_s={ServiceClass.REALTIME: 5.0})


def test_the_time_limit_is_the_requests_or_its_classs() -> None:
    engine = FakeEngine()
    with live_server(engine, TIMES) as server:
        http = server.http()
        for fields in (
            {"timeout": 2.5},
            {"service_tier": "priority"},
            {"service_tier": "priority", "timeout": 60},
            {"service_tier": "flex"},
        ):
            assert http.post("/v1/completions", json={**TEXT, **fields}).status_code == 200
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "timeout": 3}
        assert http.post("/v1/chat/completions", json=chat).status_code == 200
        for wrong in (0, -1, "5", True):
            refused = http.post("/v1/completions", json={**TEXT, "timeout": wrong})
            assert error_of(refused, 400)["param"] == "timeout"
    assert [r.stop.deadline_s for r in engine.submitted] == [2.5, 5.0, 60, None, 3]


def test_a_request_whose_time_is_up_says_so() -> None:
    engine = FakeEngine(Script(b"abc", fail_after=1, fail_reason=FinishReason.DEADLINE))
    with live_server(engine) as server:
        answer = server.http().post("/v1/completions", json={**TEXT, "timeout": 1})
        assert error_of(answer, 504)["code"] == "deadline_exceeded"


def test_a_body_announced_too_large_is_refused_before_it_comes() -> None:
    options = ServerOptions(max_body_bytes=1000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n"
    with (
        live_server(FakeEngine(), options) as server,
        socket.create_connection((server.host, server.port), timeout=10) as sock,
        sock.makefile("rb") as stream,
    ):
        sock.sendall(head)
        answer = stream.read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer


@pytest.mark.parametrize(
    "body",
    [
        {**TEXT, "logit_bias": {str(i): 1 for i in range(300_000)}},
        {**TEXT, "prompt": [[1]] * 40_000},
        {**TEXT, "metadata": {str(i): "" for i in range(300_000)}},
        {**TEXT, "stop_token_ids": [1] * 300_000},
    ],
    ids=lambda body: next(iter(body.keys() - TEXT.keys()), "prompt"),
)
def test_more_values_than_is_sensible_are_refused_unparsed(body: dict[str, object]) -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().post("/v1/completions", content=json.dumps(body))
        assert error_of(answer, 400)["code"] == "too_many_values"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("prompt", ["x"] * 1025),
        ("prompt", [[1]] * 1025),
        ("stop", ["x"] * 17),
        ("stop", "x" * 1025),
    ],
)
def test_lists_have_limits_of_their_own(field: str, value: object) -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().post("/v1/completions", json={**TEXT, field: value})
        assert error_of(answer, 400)["param"] == field


def test_signs_in_a_text_are_not_values() -> None:
    engine = FakeEngine(max_model_len=600_000)
    with live_server(engine) as server:
        body = {"model": MODEL, "prompt": "," * 300_000 + "{" * 100_000, "max_tokens": 1}
        answer = server.http().post("/v1/completions", json=body)
    # As long a text may fit this engine, though the model's name stands for a shorter one.
    assert error_of(answer, 400)["code"] == "context_length_exceeded"


def test_a_full_queue_says_when_to_come_back() -> None:
    engine = FakeEngine(Script(refuse=OverloadedError("full", 37.4)))
    with live_server(engine) as server:
        answer = server.http().post("/v1/completions", json=TEXT)
        assert error_of(answer, 429)["code"] == "overloaded"
        assert answer.headers["retry-after"] == "38"
