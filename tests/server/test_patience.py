"""Clients that keep the server waiting are not waited for."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headway.server.protocol import Connection
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, LiveServer, eventually, live_server

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Impatient(Connection):
    patience_s = 0.4


@contextmanager
def impatient_server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine, protocol=Impatient) as server:
        yield server


@contextmanager
def connected(server: LiveServer, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(10)
        sock.connect((server.host, server.port))
        yield sock


def everything(sock: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("begun", [HEAD, HEAD + b"X-Slow: "])
def test_a_head_that_does_not_end_is_given_up(begun: bytes) -> None:
    engine = FakeEngine()
    with impatient_server(engine) as server, connected(server) as sock:
        sock.sendall(begun)
        assert everything(sock).startswith(b"HTTP/1.1 408 ")
    assert engine.submitted == []


def test_a_head_that_trickles_is_given_up() -> None:
    with impatient_server(FakeEngine()) as server, connected(server) as sock:
        sock.sendall(HEAD)
        with pytest.raises(OSError):  # the server has closed while we were sending
            for _ in range(1000):
                sock.sendall(b"a: b\r\n")
                time.sleep(0.02)


def test_a_body_that_trickles_is_given_up() -> None:
    with impatient_server(FakeEngine()) as server, connected(server) as sock:
        sock.sendall(HEAD + b"Content-Length: 100000\r\n\r\n{")
        with pytest.raises(OSError):
            for _ in range(1000):
                sock.sendall(b" ")
                time.sleep(0.02)


def test_a_body_that_comes_steadily_is_waited_for() -> None:
    text = b'{"model": "tiny", "prompt": "x"}'
    pieces = 30
    with impatient_server(FakeEngine()) as server, connected(server) as sock:
        length = len(text) + 2048 * pieces
        sock.sendall(HEAD + f"Content-Length: {length}\r\nConnection: close\r\n\r\n".encode())
        for _ in range(pieces):  # 1.5 s, and 16 KiB in the time of patience
            sock.sendall(b" " * 2048)
            time.sleep(0.05)
        sock.sendall(text)
        assert everything(sock).startswith(b"HTTP/1.1 200 ")


def test_a_connection_without_a_request_is_closed() -> None:
    with impatient_server(FakeEngine()) as server, connected(server) as sock:
        assert everything(sock) == b""


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_an_offer_of_another_protocol_costs_no_body(pieces: int) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    request = HEAD + offer + b"Content-Length: %d\r\n\r\n" % len(body) + body
    plain = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with live_server(FakeEngine()) as server, connected(server) as sock:
        size = len(request) // pieces + 1
        for start in range(0, len(request), size):
            sock.sendall(request[start : start + size])
            time.sleep(0.001)
        sock.sendall(plain)
        answers = everything(sock)
    assert answers.startswith(b"HTTP/1.1 200 ") and answers.count(b"HTTP/1.1 200 ") == 2
    assert b'"object":"text_completion"' in answers and b'"status":"ok"' in answers


def test_an_answer_may_take_its_time() -> None:
    engine = FakeEngine(Script(b"0123456789", hold_after=3))
    with impatient_server(engine) as server:
        stream = server.client().completions.create(model=MODEL, prompt="x", stream=True)
        next(stream)
        time.sleep(1.5)
        server.call(engine.release)
        assert list(stream)[-1].choices[0].finish_reason == "stop"


def test_a_client_that_stops_reading_loses_its_answer_and_holds_nothing() -> None:
    length = 60_000
    engine = FakeEngine(Script(b"x" * length), max_model_len=2 * length)
    body = b'{"model": "tiny", "prompt": "x", "stream": true, "max_tokens": %d}' % length
    with impatient_server(engine) as server, connected(server, receive_bytes=4096) as sock:
        sock.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: len(engine.submitted) == 1)
        eventually(lambda: engine.aborted == 1, timeout_s=10)
        assert engine.live == []
        assert server.http().get("/health").status_code == 200
