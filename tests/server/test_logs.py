"""What is logged, and ids of requests."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headway.server.logs import JsonFormatter, TextFormatter, configure_logs
from headway.server.routes import ServerOptions
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import LiveServer, eventually, live_server

SECRET = "the treasure is under the oak"
CHAT = {"model": "tiny:batch", "messages": [{"role": "user", "content": SECRET}]}


@contextmanager
def logged(formatter: logging.Formatter, level: int = logging.DEBUG) -> Iterator[io.StringIO]:
    """What our loggers write meanwhile, as the server would."""
    text, logger = io.StringIO(), logging.getLogger("headway")
    handler, before = logging.StreamHandler(text), logger.level
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield text
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def access_lines(text: io.StringIO) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    return [line for line in lines if line["logger"] == "headway.access"]


def one_access_line(server: LiveServer, text: io.StringIO) -> dict[str, object]:
    eventually(lambda: len(access_lines(text)) == 1)
    return access_lines(text)[0]


@pytest.mark.parametrize("given", ["abc-123", "a" * 128, "00-4bf92f/x=1:2@3+4._"])
def test_a_good_request_id_comes_back(given: str) -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().get("/v1/models", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "<b>", "\xe9"])
def test_any_other_is_replaced(given: str) -> None:
    with live_server(FakeEngine()) as server:
        headers = {b"X-Request-Id": given.encode("latin-1")}
        answer = server.http().get("/v1/models", headers=headers)
        other = server.http().get("/v1/models")
    ids = [a.headers["x-request-id"] for a in (answer, other)]
    assert all(len(id) == 28 and id.startswith("req_") for id in ids)
    assert ids[0] != ids[1]


def test_every_kind_of_answer_has_one() -> None:
    broken = FakeEngine(Script(refuse=RuntimeError("a bug")))
    with live_server(broken, key="key") as server:
        http = server.http()
        body = {"model": "tiny", "prompt": "x"}
        answers = [
            http.get("/nowhere"),
            http.get("/v1/models", headers={"Authorization": "Bearer wrong"}),
            http.post("/v1/completions", content=b"{"),
            http.post("/v1/completions", json=body),
        ]
    assert [a.status_code for a in answers] == [404, 401, 400, 500]
    assert all(a.headers["x-request-id"].startswith("req_") for a in answers)


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_for_each_request(stream: bool) -> None:
    with logged(JsonFormatter()) as text, live_server(FakeEngine()) as server:
        http = server.http()
        headers = {"X-Request-Id": "mine"}
        http.post("/v1/chat/completions", json={**CHAT, "stream": stream}, headers=headers)
        line = one_access_line(server, text)
    assert float(str(line.pop("seconds"))) >= 0
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "info",
        "logger": "headway.access",
        "message": "request",
        "request_id": "mine",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "service_class": "batch",
    }


def test_a_client_that_leaves_before_the_answer_counts_as_499() -> None:
    engine = FakeEngine(Script(hold_after=0))
    with logged(JsonFormatter()) as text, live_server(engine) as server:
        http = server.http()
        http.timeout = 0.3
        with pytest.raises(Exception, match="timed out"):
            http.post("/v1/chat/completions", json=CHAT)
        assert one_access_line(server, text)["status"] == 499


@pytest.mark.parametrize("asked", [False, True])
def test_prompts_are_logged_only_where_asked_for(asked: bool) -> None:
    options = ServerOptions(log_prompts=asked)
    with logged(JsonFormatter()) as text, live_server(FakeEngine(), options) as server:
        http = server.http()
        http.post("/v1/chat/completions", json=CHAT)
        http.post("/v1/chat/completions", json={**CHAT, "temperature": 99})
        eventually(lambda: len(access_lines(text)) == 2)
    assert (SECRET in text.getvalue()) is asked


def test_a_path_can_not_forge_a_line() -> None:
    with logged(TextFormatter()) as text, live_server(FakeEngine()) as server:
        server.http().get("/x%0Aforged%1b%e2%80%a8line")
        eventually(lambda: "\n" in text.getvalue())
    (line,) = text.getvalue().split("\n")[:-1]
    assert line.isascii() and line.isprintable()
    assert "path=/x\\nforged\\x1b\\u2028line status=404" in line


def test_an_error_is_one_json_line() -> None:
    with logged(JsonFormatter()) as text:
        try:
            raise ValueError("of\ntwo lines")
        except ValueError:
            logging.getLogger("headway.engine").exception("step %d failed", 7, extra={"lane": "x"})
    (line,) = text.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["message"], record["lane"]) == ("error", "step 7 failed", "x")
    assert "ValueError: of\ntwo lines" in record["error"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_configuring(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        configure_logs("info", form)
        extra = {"a": 1, "color_message": "\033[1mhello"}  # which uvicorn adds
        logging.getLogger("headway.x").info("hello", extra=extra)
        logging.getLogger("headway.x").debug("not this")
    finally:
        root.handlers, root.level = handlers, level
    (line,) = capsys.readouterr().err.splitlines()
    if form == "json":
        record = json.loads(line)
        assert record["a"] == 1 and "color_message" not in record
    else:
        assert line.endswith("INFO headway.x: hello a=1")
