"""Clients that go away: their requests end, and nobody else's."""

import json
import socket
import struct

import pytest

from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, LiveServer, eventually, live_server


def send_raw(server: LiveServer, stream: bool, max_tokens: int = 16) -> socket.socket:
    """A completion request on a socket of its own."""
    fields = {"model": MODEL, "prompt": "x", "stream": stream, "max_tokens": max_tokens}
    body = json.dumps(fields)
    return send_bytes(server, len(body), body)


def send_bytes(server: LiveServer, length: int, body: str) -> socket.socket:
    """A request whose body claims to have this length."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    connection = socket.create_connection((server.host, server.port), timeout=5)
    connection.sendall((head + body).encode())
    return connection


def reset(connection: socket.socket) -> None:
    """Close hard, with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold_after", [0, 2])
def test_a_client_that_goes_aborts_its_request(stream: bool, hard: bool, hold_after: int) -> None:
    engine = FakeEngine(Script(b"abcdef", hold_after=hold_after))
    with live_server(engine) as server:
        connection = send_raw(server, stream)
        eventually(lambda: len(engine.live) == 1)
        reset(connection) if hard else connection.close()
        eventually(lambda: engine.live == [])
        assert engine.aborted == 1
        engine.script = Script(b"next")
        answer = server.client().completions.create(model=MODEL, prompt="x")
        assert answer.choices[0].text == "next"
        gauges = server.gauges()
        assert gauges['headway_requests{service_class="standard",state="running"}'] == 0


@pytest.mark.parametrize("hard", [False, True])
def test_the_first_of_pipelined_requests_is_aborted_too(hard: bool) -> None:
    engine = FakeEngine(Script(b"abcdef", hold_after=2))
    body = json.dumps({"model": MODEL, "prompt": "x", "stream": True})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with live_server(engine) as server:
        connection = socket.create_connection((server.host, server.port), timeout=5)
        connection.sendall((head + body).encode() * 3)
        eventually(lambda: len(engine.live) == 1)
        reset(connection) if hard else connection.close()
        eventually(lambda: engine.live == [])
        assert engine.aborted == 1
    assert len(engine.submitted) == 1


def test_all_prompts_of_a_request_are_aborted() -> None:
    engine = FakeEngine(Script(b"abcdef", hold_after=2))
    with live_server(engine) as server:
        client = server.client()
        stream = client.completions.create(model=MODEL, prompt=["a", "b", "c"], stream=True)
        next(stream)
        assert len(engine.live) == 3
        stream.close()
        eventually(lambda: engine.live == [])
        assert engine.aborted == 3


def test_neighbours_of_those_who_go_are_unharmed() -> None:
    engine = FakeEngine(Script(b"0123456789", hold_after=5))
    with live_server(engine) as server:
        client = server.client()
        staying = [
            client.completions.create(model=MODEL, prompt="x", stream=True) for _ in range(5)
        ]
        leaving = [send_raw(server, stream=True) for _ in range(20)]
        eventually(lambda: len(engine.live) == 25)
        for connection in leaving:
            reset(connection)
        eventually(lambda: len(engine.live) == 5)
        server.call(engine.release)
        texts = ["".join(chunk.choices[0].text for chunk in stream) for stream in staying]
    assert texts == ["0123456789"] * 5


def test_a_body_that_ends_early_starts_nothing() -> None:
    engine = FakeEngine()
    with live_server(engine) as server:
        reset(send_bytes(server, 99, "{"))
        assert server.client().completions.create(model=MODEL, prompt="x").choices
    assert len(engine.submitted) == 1


def test_a_reader_that_stalls_holds_up_nobody() -> None:
    engine = FakeEngine(Script(b"x" * 100_000), max_model_len=10**9)
    with live_server(engine) as server:
        with send_raw(server, stream=True, max_tokens=100_000) as stalled:
            eventually(lambda: len(engine.live) == 1)
            answer = server.client().completions.create(model=MODEL, prompt="x", max_tokens=3)
            assert answer.choices[0].text == "xxx"
            reset(stalled)
        eventually(lambda: engine.live == [])
