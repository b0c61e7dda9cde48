"""The OpenAPI document says what is really answered."""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest

from headway.server.reference import reference
from tests.models.template_files import family
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import BYTES, MODEL, LiveServer, live_server
from tests.server.test_tools import ASK, CALLS, THOUGHT, TIME, WEATHER, WORDS


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    engine = FakeEngine(Script(reply=(THOUGHT + CALLS["hermes"]).encode()))
    model = replace(BYTES, codec=WORDS, chat=family("qwen3"))
    with live_server(engine, model=model) as server:
        yield server


def document(server: LiveServer) -> dict[str, Any]:
    found: dict[str, Any] = server.http().get("/openapi.json").json()
    return found


def check(document: dict[str, Any], name: str, value: object) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", **document}
    jsonschema.validate(value, schema)


CHAT: dict[str, object] = {"model": MODEL, "messages": ASK}
TEXT: dict[str, object] = {"model": MODEL, "prompt": "x"}


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/v1/chat/completions", "Chat", CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}),
        ("/v1/chat/completions", "Chat", CHAT | {"tools": [WEATHER, TIME]}),
        ("/v1/chat/completions", "Chat", CHAT | {"max_tokens": 20}),
        ("/v1/completions", "Completion", TEXT | {"logprobs": 2}),
        ("/v1/completions", "Completion", TEXT | {"max_tokens": 3, "user": "u", "echo": False}),
        ("/tokenize", "Tokenize", {"prompt": "x", "return_token_strs": True}),
        ("/detokenize", "Detokenize", {"tokens": [104]}),
    ],
)
def test_bodies_and_answers(
    server: LiveServer, path: str, name: str, body: dict[str, object]
) -> None:
    described = document(server)
    check(described, f"{name}Body", body)
    answer = server.http().post(path, json=body)
    assert answer.status_code == 200
    check(described, f"{name}Answer", answer.json())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_events_of_streams(server: LiveServer, path: str) -> None:
    body = (CHAT if "chat" in path else TEXT) | {"stream": True, "max_tokens": 3}
    answer, described = server.http().post(path, json=body), document(server)
    content = described["paths"][path]["post"]["responses"]["200"]["content"]
    kind = answer.headers["Content-Type"].partition(";")[0]
    pieces = [piece.partition(": ") for piece in answer.text.strip().split("\n\n")]
    assert len(pieces) > 3 and pieces[-1][2] == "[DONE]"
    for field, _, value in pieces:
        jsonschema.validate({field: value}, content[kind]["schema"])


def test_other_answers(server: LiveServer) -> None:
    described, http = document(server), server.http()
    check(described, "ModelsAnswer", http.get("/v1/models").json())
    check(described, "ModelAnswer", http.get(f"/v1/models/{MODEL}").json())
    check(described, "StatusAnswer", http.get("/health").json())
    for answer in (
        http.get("/nowhere"),
        http.get("/v1/models/other"),
        http.put("/v1/completions"),
        http.post("/v1/completions", content=b"{"),
    ):
        assert answer.status_code >= 400
        check(described, "ErrorAnswer", answer.json())


def test_unknown_fields_are_not_described(server: LiveServer) -> None:
    described = document(server)
    wrongs: list[dict[str, object]] = [{"unheard_of": 1}, {"audio": {}}, {"temperature": 3}]
    for wrong in wrongs:
        with pytest.raises(jsonschema.ValidationError):
            check(described, "ChatBody", CHAT | wrong)


def test_it_is_valid_and_says_how_streams_come(server: LiveServer) -> None:
    described = document(server)
    assert described["openapi"].startswith("3.1")
    for path in ("/v1/chat/completions", "/v1/completions"):
        content = described["paths"][path]["post"]["responses"]["200"]["content"]
        assert set(content) == {"application/json", "text/event-stream"}
    for operations in described["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"] and "default" in operation["responses"]


class _Page(HTMLParser):
    """What a page links to, what it names, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.words = ""
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = dict(attrs)
        self.links += [given["href"] or ""] if "href" in given else []
        self.ids += [given["id"] or ""] if "id" in given else []

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_reference_page_names_every_route_and_field(server: LiveServer) -> None:
    described, answer = document(server), server.http().get("/docs")
    assert answer.status_code == 200
    page = _Page()
    page.feed(answer.text)
    for path, methods in described["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in page.words
    for name, schema in described["components"]["schemas"].items():
        assert name in page.words
        for field in schema.get("properties", {}):
            assert field in page.words
    assert {"#" + name for name in page.ids} | {"openapi.json"} >= set(page.links)
    assert len(page.ids) == len(set(page.ids))


def test_the_reference_page_loads_nothing_and_shows_its_style(server: LiveServer) -> None:
    answer = server.http().get("/docs")
    page = _Page()
    page.feed(answer.text)
    assert not page.tags.keys() & {"script", "link", "img", "iframe"} and page.tags["style"] == 1
    style = answer.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in answer.headers["Content-Security-Policy"]


def test_what_a_document_says_is_text_on_the_page() -> None:
    evil = "<script>x</script>"
    schemas = {evil: {"description": evil, "properties": {evil: {"enum": [evil]}}}}
    described = {
        "info": {"title": evil},
        "paths": {f"/{evil}": {"get": {"description": evil, "responses": {}}}},
        "components": {"schemas": schemas},
    }
    assert b"<script" not in bytes(reference(described).body)
