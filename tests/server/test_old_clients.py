"""Clients of HTTP/1.0, as nginx is by default: no chunks; the connection ends with the answer."""

import json
import socket

import pytest

from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, LiveServer, live_server


def asked(server: LiveServer, path: str, **body: object) -> tuple[str, bytes]:
    """Head, in lower case, and body of an answer to HTTP/1.0."""
    content = json.dumps(body)
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.0\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((server.host, server.port), timeout=10) as wire:
        wire.sendall((head + content).encode())
        whole = b"".join(iter(lambda: wire.recv(65536), b""))
    first, _, rest = whole.partition(b"\r\n\r\n")
    return first.decode().lower(), rest


def test_streams_end_with_the_connection() -> None:
    with live_server(FakeEngine(Script("abc déf".encode()))) as server:
        head, body = asked(server, "/v1/completions", model=MODEL, prompt="x", stream=True)
    assert "connection: close" in head
    assert "transfer-encoding" not in head and "content-length" not in head
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc déf"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/nothing"])
def test_other_answers_say_their_length(path: str) -> None:
    body = {"model": MODEL, "prompt": "x"} if path == "/v1/completions" else {}
    with live_server(FakeEngine(Script(b"abc"))) as server:
        head, content = asked(server, path, **body)
    assert f"content-length: {len(content)}" in head
    assert json.loads(content)
