"""HEAD: the head of what GET would answer, and nothing after it."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.server.fake_engine import FakeEngine
from tests.server.fuzz import everything
from tests.server.live import MODEL, LiveServer, live_server
from tests.server.test_dashboard import page_server

PASSING = {"date", "x-request-id", "transfer-encoding"}
"""Headers that are other ones each time, or are of a body alone."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with everything(tmp_path_factory.mktemp("heads")) as server:
        yield server


def head_of(answer: httpx.Response) -> tuple[int, dict[str, str]]:
    return answer.status_code, {k: v for k, v in answer.headers.items() if k not in PASSING}


def raw(server: LiveServer, method: str, path: str) -> bytes:
    """All that comes until the server ends the connection, as asked to."""
    with socket.create_connection((server.host, server.port), timeout=10) as wire:
        wire.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        return b"".join(iter(lambda: wire.recv(65536), b""))


def test_every_route_that_takes_get_takes_head(server: LiveServer) -> None:
    http = server.http()
    file = http.post("/v1/files", files={"file": b"{}\n"}, data={"purpose": "batch"}).json()["id"]
    names = {"{name}": MODEL, "{file_id}": file, "{step}": "latest", "{batch_id}": "batch_none"}
    paths = http.get("/openapi.json").json()["paths"]
    seen = 0
    for path in [path for path, methods in paths.items() if "get" in methods] + ["/docs"]:
        for hole, name in names.items():
            path = path.replace(hole, name)
        got, head = http.get(path), http.head(path)
        (status, wanted), (same, given) = head_of(got), head_of(head)
        if path == "/metrics":  # has counted one more by then
            wanted["content-length"] = given["content-length"]
        assert (same, given) == (status, wanted), path
        assert status != 405
        assert head.content == b""
        seen += got.status_code == 200
    assert seen >= 10


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/health", "/v1/models/other"])
def test_nothing_comes_after_the_head(server: LiveServer, path: str) -> None:
    head, _, body = raw(server, "HEAD", path).partition(b"\r\n\r\n")
    assert b"content-length: " in head.lower() and b"content-length: 0" not in head.lower()
    assert body == b""


def test_a_stream_is_not_begun() -> None:
    with page_server() as server:
        http = server.http()
        for path in ("/dashboard", "/dashboard/app.js"):
            assert head_of(http.head(path)) == head_of(http.get(path))
        head = http.head("/dashboard/data")
        with http.stream("GET", "/dashboard/data") as data:
            assert head_of(head) == head_of(data)
        assert raw(server, "HEAD", "/dashboard/data").endswith(b"\r\n\r\n")


def test_what_takes_no_get_takes_no_head() -> None:
    with live_server(FakeEngine()) as server:
        http = server.http()
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            answer = http.head(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        for path in ("/v1/files", "/v1/batches/x"):  # without a data folder
            assert http.head(path).status_code == http.get(path).status_code == 404


def test_head_needs_the_key_that_get_does() -> None:
    with live_server(FakeEngine(), key="secret") as server:
        with httpx.Client(base_url=server.url) as stranger:
            assert stranger.head("/v1/models").status_code == 401
            assert stranger.head("/metrics").status_code == 401
            assert stranger.head("/health").status_code == 200
        assert server.http().head("/v1/models").status_code == 200
