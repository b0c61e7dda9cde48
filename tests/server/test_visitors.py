"""A server without keys is no web page's to use."""

from collections.abc import Iterator
from time import monotonic

import httpx
import pytest

from headway.server.app import Front
from headway.server.keyring import KeyRing
from tests.server.fake_engine import FakeEngine
from tests.server.live import MODEL, LiveServer, live_server

TEXT = {"model": MODEL, "prompt": "abc"}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(FakeEngine()) as server:
        yield server


@pytest.fixture(scope="module")
def proxied() -> Iterator[LiveServer]:
    front = Front(
        None, cors_origins=("https://chat.example",), allowed_hosts=("llm.example", "10.1.2.3")
    )
    with live_server(FakeEngine(), front=front) as server:
        yield server


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:1", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:8000"]
)
def test_loopback_names_are_let_in(server: LiveServer, host: str) -> None:
    assert httpx.get(f"{server.url}/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example:8000", "10.1.2.3", "127.0.0.1.evil.example", "[::2]"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/dashboard", "/metrics", "/v1/files", "/nothing"])
def test_other_names_are_refused(server: LiveServer, host: str, path: str) -> None:
    answer = httpx.get(server.url + path, headers={"Host": host})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "host_not_allowed"
    assert host in error["message"] and "--allowed-host" in error["message"]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:3000", "http://[", "file://"]
)
def test_pages_of_other_origins_are_refused(server: LiveServer, origin: str) -> None:
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    answer = httpx.post(f"{server.url}/v1/completions", json=TEXT, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert origin in answer.json()["error"]["message"]


def test_the_servers_own_page_may_call(server: LiveServer) -> None:
    for scheme in ("http", "https"):
        headers = {"Origin": f"{scheme}://127.0.0.1:{server.port}"}
        answer = httpx.post(f"{server.url}/v1/completions", json=TEXT, headers=headers)
        assert answer.status_code == 200
    named = {"Host": "localhost", "Origin": "http://localhost"}
    assert httpx.get(f"{server.url}/v1/models", headers=named).status_code == 200


def test_probes_may_call_by_any_name(server: LiveServer) -> None:
    for path in ("/health", "/ready"):
        headers = {"Host": "10.0.0.7:8000", "Origin": "https://evil.example"}
        assert httpx.get(server.url + path, headers=headers).status_code == 200


def test_a_proxys_name_and_allowed_origins_are_let_in(proxied: LiveServer) -> None:
    def status(host: str, origin: str | None) -> int:
        headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
        return httpx.get(f"{proxied.url}/v1/models", headers=headers).status_code

    assert status("llm.example", None) == 200
    assert status("LLM.example:8443", "https://llm.example") == 200
    assert status("10.1.2.3:8000", None) == 200
    assert status("127.0.0.1:8000", "https://llm.example") == 200
    assert status("127.0.0.1:8000", "https://chat.example") == 200
    assert status("chat.example", "https://chat.example") == 403
    assert status("llm.example", "https://evil.example") == 403


def test_a_star_lets_all_in() -> None:
    with live_server(FakeEngine(), front=Front(None, None, "", ("*",), ("*",))) as server:
        headers = {"Host": "any.example", "Origin": "https://evil.example"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200


def test_with_keys_neither_name_nor_origin_matters() -> None:
    with live_server(FakeEngine(), front=Front(KeyRing("sesame", None, monotonic))) as server:
        headers = {
            "Host": "any.example",
            "Origin": "https://evil.example",
            "Authorization": "Bearer sesame",
        }
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
