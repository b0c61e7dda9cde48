"""Compressed bodies are refused for what they are, not for what they look like."""

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest

from tests.server.fuzz import everything
from tests.server.live import MODEL, LiveServer
from tests.server.test_errors import CHAT, TEXT, error_of

FORM = httpx.Request("POST", "http://x", files={"file": b"{}\n"}, data={"purpose": "batch"})
BODIES: dict[str, object] = {
    "/v1/chat/completions": CHAT | {"max_tokens": 1},
    "/v1/completions": TEXT | {"max_tokens": 1},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [104]},
    "/v1/batches": {},
}
"""By path, what is posted there as JSON; an order for a batch needs a file, and has none here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with everything(tmp_path_factory.mktemp("encodings")) as server:
        yield server


def posted(server: LiveServer, path: str, coding: str | None, packed: bool) -> httpx.Response:
    """What is answered to a good body, or an upload of one, said to be in a coding."""
    plain, kind = json.dumps(BODIES.get(path)).encode(), "application/json"
    if path == "/v1/files":
        plain, kind = FORM.read(), FORM.headers["content-type"]
    headers = {"Content-Type": kind} | ({} if coding is None else {"Content-Encoding": coding})
    content = gzip.compress(plain) if packed else plain
    return server.http().post(path, content=content, headers=headers)


def test_these_are_all_routes_with_bodies(server: LiveServer) -> None:
    paths = server.http().get("/openapi.json").json()["paths"]
    posts = {path for path, methods in paths.items() if "requestBody" in methods.get("post", {})}
    assert posts == {*BODIES, "/v1/files"}


@pytest.mark.parametrize("path", [*BODIES, "/v1/files"])
def test_a_compressed_body_is_refused_by_its_coding(server: LiveServer, path: str) -> None:
    for coding in ("gzip", "GZIP", "br", "zstd", "identity, gzip", "nonsense"):
        answer = posted(server, path, coding, packed=True)
        error = error_of(answer, 415)
        assert (error["type"], error["code"]) == ("invalid_request_error", "unsupported_encoding")
        assert "ompressed bodies are not taken" in str(error["message"])
        assert coding in str(error["message"])
        assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("path", [*BODIES, "/v1/files"])
def test_a_plain_body_may_say_that_it_is(server: LiveServer, path: str) -> None:
    usual = posted(server, path, None, packed=False)
    assert usual.status_code == (400 if path == "/v1/batches" else 200)
    for coding in ("identity", "Identity", ""):
        assert posted(server, path, coding, packed=False).status_code == usual.status_code


def test_the_connection_goes_on_after_a_refusal(server: LiveServer) -> None:
    """The body, which nobody reads, is not taken for the next request."""
    with server.http() as http:
        for packed in (b"POST / HTTP/1.1\r\n\r\n" * 10, b"x" * 3_000_000):
            refused = http.post(
                "/v1/completions", content=packed, headers={"Content-Encoding": "gzip"}
            )
            assert refused.status_code == 415
            assert http.get(f"/v1/models/{MODEL}").status_code == 200


def test_a_body_that_is_too_large_as_well_is_not_read(server: LiveServer) -> None:
    answer = server.http().post(
        "/v1/batches", content=b"x" * 100_000, headers={"Content-Encoding": "gzip"}
    )
    assert error_of(answer, 413)["code"] == "body_too_large"
