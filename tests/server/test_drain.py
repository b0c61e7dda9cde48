"""Stopping: new requests are refused, running ones end or are told why they don't."""

import threading
from contextlib import closing

import httpx
import openai
import pytest
from starlette.types import Receive, Scope, Send

from headway.errors import ConfigError
from headway.server.gate import Gate
from headway.server.listen import Listener, bind
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, eventually, live_server

TEXT = {"model": MODEL, "prompt": "x"}


def test_running_answers_end_while_new_ones_are_refused() -> None:
    engine = FakeEngine(Script(b"0123456789", hold_after=3))
    with live_server(engine) as server:
        stream = server.client().completions.create(model=MODEL, prompt="x", stream=True)
        text = next(stream).choices[0].text
        server.call(server.listener.stop)
        http = server.http()
        eventually(lambda: http.get("/ready").status_code == 503)
        refused = http.post("/v1/completions", json=TEXT)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert refused.headers["retry-after"]
        assert http.get("/health").status_code == 200
        server.call(engine.release)
        text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == "0123456789"
    assert engine.aborted == 0


def test_what_is_left_after_the_time_limit_gets_an_explicit_error() -> None:
    engine = FakeEngine(Script(b"0123456789", hold_after=3))
    whole: list[httpx.Response] = []
    with live_server(engine, drain_s=0.2) as server:
        http = server.http()
        waiting = threading.Thread(
            target=lambda: whole.append(http.post("/v1/completions", json=TEXT))
        )
        waiting.start()
        stream = server.client().completions.create(model=MODEL, prompt="x", stream=True)
        next(stream)
        eventually(lambda: len(engine.live) == 2)
        server.call(server.listener.stop)
        with pytest.raises(openai.APIError, match="stopped before this answer was complete"):
            list(stream)
        waiting.join(5)
    assert whole[0].status_code == 503
    assert whole[0].json()["error"]["code"] == "draining"
    assert (engine.live, engine.aborted) == ([], 2)


def test_the_second_stop_cuts_off_what_runs() -> None:
    engine = FakeEngine(Script(b"0123456789", hold_after=3))
    with live_server(engine, drain_s=60) as server:
        stream = server.client().completions.create(model=MODEL, prompt="x", stream=True)
        next(stream)
        server.call(server.listener.stop)
        server.call(server.listener.stop)
        with pytest.raises(openai.APIError, match="stopped before this answer was complete"):
            list(stream)
        eventually(lambda: not server.loop.is_running(), timeout_s=2)
    assert (engine.live, engine.aborted) == ([], 1)


def test_an_idle_server_stops_at_once() -> None:
    with live_server(FakeEngine(), drain_s=60) as server:
        http = server.http()
        assert http.get("/health").status_code == 200
        server.call(server.listener.stop)
        eventually(lambda: not server.loop.is_running(), timeout_s=2)


async def test_of_two_servers_that_bound_a_port_the_second_is_told() -> None:
    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise ConnectionError("the second server took a request")

    first = bind("127.0.0.1", 0)
    with closing(first), closing(bind("127.0.0.1", first.getsockname()[1])) as second:
        first.listen()
        with pytest.raises(ConfigError, match="try another --port"):
            await Listener(nothing, Gate(), [second], drain_s=0).run()
