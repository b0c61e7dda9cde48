"""Errors: OpenAI's body for every status, and inside a broken stream."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import httpx
import openai
import pytest

from headway.core.types import FinishReason
from headway.errors import EngineStoppedError, ModelError, NeverFitsError, OverloadedError
from headway.server.routes import ServerOptions
from headway.testing.text import ByteTokenizer
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import BYTES, MODEL, live_server

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": MODEL, "prompt": "x"}
KEY = "sk-key"


def error_of(answer: httpx.Response, status: int) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, object] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def test_unknown_paths_and_methods() -> None:
    with live_server(FakeEngine()) as server:
        http = server.http()
        assert error_of(http.get("/v2/nothing"), 404)["code"] == "not_found"
        for answer in (http.get("/v1/completions"), http.put("/v1/models"), http.post("/health")):
            error_of(answer, 405)
        allowed = {
            "/v1/completions": "POST",
            "/v1/models": "GET, HEAD",
            "/v1/models/x": "GET, HEAD",
            "/health": "GET, HEAD",
        }
        for path, methods in allowed.items():
            assert http.put(path).headers["allow"] == methods, path


def test_an_error_repeats_no_more_than_the_beginning_of_what_was_sent() -> None:
    with live_server(FakeEngine()) as server:
        http, long = server.http(), "k" * 500_000
        error = error_of(http.post("/v1/completions", json=TEXT | {long: 1}), 400)
        assert error["code"] == "unknown_field"
        assert len(str(error["message"])) < 3000 and len(str(error["param"])) < 300
        error = error_of(http.post("/v1/completions", json=TEXT | {"model": long}), 404)
        assert len(str(error["message"])) < 3000


def test_bodies_too_large() -> None:
    with live_server(FakeEngine(), ServerOptions(max_body_bytes=1000)) as server:
        http = server.http()
        assert http.post("/v1/completions", json=TEXT | {"prompt": "x" * 900}).status_code == 200
        answer = http.post("/v1/completions", json=TEXT | {"prompt": "x" * 1000})
        assert error_of(answer, 413)["code"] == "body_too_large"
        assert http.post("/v1/completions", json=TEXT).status_code == 200


def test_text_that_can_not_fit_is_refused_before_it_is_encoded() -> None:
    class Fragile(ByteTokenizer):
        def encode(
            self, text: str, add_special: bool = False, parse_special: bool = True
        ) -> list[int]:
            assert len(text) < 100_000
            return super().encode(text, add_special)

    model = replace(BYTES, codec=Fragile())
    long = "x" * (128 * model.max_model_len + 1)
    with live_server(FakeEngine(), model=model) as server:
        http = server.http()
        text = http.post("/v1/completions", json=TEXT | {"prompt": long})
        chat = CHAT | {"messages": [{"role": "user", "content": long}]}
        whole = http.post("/v1/chat/completions", json=chat)
        nearly = CHAT | {"messages": [{"role": "user", "content": "x" * model.max_model_len}]}
        one_more = http.post("/v1/chat/completions", json=nearly)
        for answer, param in ((text, "prompt"), (whole, "messages"), (one_more, "messages")):
            error = error_of(answer, 400)
            assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert http.post("/v1/completions", json=TEXT).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_submit_refuses(stream: bool, path: str) -> None:
    engine = FakeEngine()
    cases = [
        (OverloadedError("The queue is full.", 7.0), 429, "overloaded"),
        (EngineStoppedError("The engine has stopped."), 503, "engine_stopped"),
        (NeverFitsError("Too long.", "prompt"), 400, "context_length_exceeded"),
        (ModelError("never a request's fault"), 500, None),
    ]
    body = (CHAT if "chat" in path else TEXT) | {"stream": stream}
    with live_server(engine) as server:
        for refusal, status, code in cases:
            engine.script = Script(refuse=refusal)
            answer = server.http().post(path, json=body)
            assert error_of(answer, status)["code"] == code
            if status == 429:
                assert answer.headers["retry-after"] == "7"
            if status == 500:
                assert "fault" not in answer.text


def test_one_refused_prompt_of_several_aborts_the_others() -> None:
    engine = FakeEngine(max_model_len=8)
    with live_server(engine) as server:
        answer = server.http().post("/v1/completions", json=TEXT | {"prompt": ["x", "y" * 9]})
        error_of(answer, 400)
    assert (engine.live, engine.aborted) == ([], 1)


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (FinishReason.ERROR, 500, "generation_failed"),
        (FinishReason.DEADLINE, 504, "deadline_exceeded"),
        (FinishReason.ABORT, 503, "aborted"),
    ],
)
def test_answers_that_fail(reason: FinishReason, status: int, code: str) -> None:
    engine = FakeEngine(Script(b"abcdef", fail_after=3, fail_reason=reason))
    with live_server(engine) as server:
        client, http = server.client(), server.http()
        error = error_of(http.post("/v1/completions", json=TEXT), status)
        assert (error["code"], error["message"]) == (code, "It broke.")
        text = ""
        with pytest.raises(openai.APIError) as raised:
            for chunk in client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
            ):
                text += chunk.choices[0].delta.content or ""
        assert text == "abc"
        assert (raised.value.message, raised.value.code) == ("It broke.", code)
        raw = http.post("/v1/completions", json=TEXT | {"stream": True})
        assert raw.text.endswith("}\n\n") and "[DONE]" not in raw.text
        engine.script = Script(b"abcdef", fail_after=0, fail_reason=reason)
        # Nothing was sent yet, so the stream's status can still say it.
        assert http.post("/v1/completions", json=TEXT | {"stream": True}).status_code == status
    assert engine.live == []


def test_a_bug_is_an_internal_error_that_keeps_its_details() -> None:
    engine = FakeEngine(Script(refuse=BrokenError("secret detail")))
    with live_server(engine) as server:
        answer = server.http().post("/v1/completions", json=TEXT)
        assert error_of(answer, 500)["type"] == "server_error"
        assert "secret" not in answer.text
        engine.script = Script()
        assert server.http().post("/v1/completions", json=TEXT).status_code == 200


class BrokenError(Exception):
    """Nothing Headway knows."""


def test_without_the_key_only_health_is_open() -> None:
    with live_server(FakeEngine(), key=KEY) as server:
        closed: list[Callable[[httpx.Client], httpx.Response]] = [
            lambda http: http.get("/v1/models"),
            lambda http: http.post("/v1/completions", json=TEXT),
            lambda http: http.get("/metrics"),
            lambda http: http.get("/openapi.json"),
            lambda http: http.get("/nothing"),
        ]
        with httpx.Client(base_url=server.url) as stranger:
            for call in closed:
                answer = call(stranger)
                assert error_of(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
            for path in ("/health", "/ready"):
                assert stranger.get(path).status_code == 200
        for wrong in (f"Bearer {KEY}x", "Bearer", f"Basic {KEY}", KEY):
            with httpx.Client(headers={"Authorization": wrong}) as guesser:
                assert guesser.get(f"{server.url}/v1/models").status_code == 401
        with httpx.Client(headers={"Authorization": f"Bearer {KEY}"}) as owner:
            assert owner.get(f"{server.url}/v1/models").status_code == 200


def test_the_client_raises_its_own_errors() -> None:
    with live_server(FakeEngine(), key="right") as server:
        wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        client = server.client()
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(model=MODEL, prompt="")
    assert missing.value.code == "model_not_found"
    assert bad.value.param == "prompt"


def test_health_follows_the_engine() -> None:
    engine = FakeEngine()
    with live_server(engine) as server:
        http = server.http()
        assert http.get("/health").json() == {"status": "ok"}
        engine.healthy = False
        assert error_of(http.get("/health"), 503)["code"] == "engine_unhealthy"
        assert http.get("/ready").status_code == 503


def test_the_description_of_the_api_is_complete() -> None:
    with live_server(FakeEngine()) as server:
        text = server.http().get("/openapi.json").text
    document = json.loads(text)
    schemas = document["components"]["schemas"]
    assert {"ChatBody", "CompletionBody", "Message"} <= set(schemas)
    references = re.findall(r'"\$ref": ?"([^"]+)"', text)
    assert references
    for reference in references:
        assert reference.removeprefix("#/components/schemas/") in schemas


def test_limits_are_named() -> None:
    with live_server(FakeEngine()) as server:
        http = server.http()
        many = http.post("/v1/completions", json={"model": MODEL, "prompt": ["a"] * 1025})
        assert many.json()["error"]["message"] == "'prompt' holds more than 1,024 prompts."
        deep = b'{"metadata": ' + b"[" * 300 + b"]" * 300 + b"}"
        nested = http.post("/v1/chat/completions", content=deep)
        assert "nested too deeply" in nested.json()["error"]["message"]
    assert (many.status_code, nested.status_code) == (400, 400)
