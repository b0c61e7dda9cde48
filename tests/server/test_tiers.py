"""Which class a request runs in, and what the answer says about it."""

import pytest

from headway.core.types import ServiceClass
from headway.server.errors import ApiError
from headway.server.routes import ServerOptions
from headway.server.tiers import ModelNames, Tier, parse_tier, resolve_tier
from tests.server.fake_engine import FakeEngine
from tests.server.live import MODEL, live_server

REALTIME, STANDARD, BATCH = ServiceClass


@pytest.mark.parametrize(
    ("word", "service_class", "echo"),
    [
        ("priority", REALTIME, "priority"),
        ("scale", REALTIME, "priority"),
        ("default", STANDARD, "default"),
        ("auto", STANDARD, "default"),
        ("flex", BATCH, "flex"),
        ("realtime", REALTIME, "realtime"),
        ("standard", STANDARD, "standard"),
        ("batch", BATCH, "batch"),
    ],
)
def test_words(word: str, service_class: ServiceClass, echo: str) -> None:
    assert parse_tier(word, "service_tier") == Tier(service_class, echo)


@pytest.mark.parametrize("word", ["", "vip", "PRIORITY", "batch ", "slow"])
def test_unknown_words_are_refused_wherever_they_stand(word: str) -> None:
    with pytest.raises(ApiError) as body:
        resolve_tier(word, None, None, STANDARD)
    with pytest.raises(ApiError) as header:
        resolve_tier("flex", word, None, STANDARD)
    assert (body.value.status, body.value.param) == (400, "service_tier")
    assert (header.value.status, header.value.param) == (400, "X-Headway-Class")


def test_body_then_header_then_alias_then_default() -> None:
    alias = Tier(REALTIME, "realtime")
    assert resolve_tier("flex", "standard", alias, REALTIME) == Tier(BATCH, "flex")
    assert resolve_tier(None, "standard", alias, BATCH) == Tier(STANDARD, "standard")
    assert resolve_tier(None, None, alias, BATCH) == alias
    assert resolve_tier(None, None, None, BATCH) == Tier(BATCH, "flex")


@pytest.mark.parametrize("name", ["other", "tiny:", "tiny:vip", "tiny:flex", ":batch", ""])
def test_unknown_models(name: str) -> None:
    with pytest.raises(ApiError) as error:
        ModelNames(MODEL).resolve(name)
    assert (error.value.status, error.value.code) == (404, "model_not_found")


def test_a_colon_in_the_name_is_part_of_it() -> None:
    names = ModelNames("org:model")
    assert names.resolve("org:model") is None
    assert names.resolve("org:model:batch") == Tier(BATCH, "batch")


@pytest.mark.parametrize("stream", [False, True])
def test_answers_say_what_was_used(stream: bool) -> None:
    engine = FakeEngine()
    with live_server(engine, ServerOptions(default_class=BATCH)) as server:
        http = server.http()
        body: dict[str, object] = {"model": MODEL, "prompt": "x", "stream": stream}
        cases: list[tuple[dict[str, object], dict[str, str], str, str]] = [
            ({"service_tier": "scale"}, {}, "priority", "realtime"),
            ({"service_tier": "standard"}, {}, "standard", "standard"),
            ({}, {"X-Headway-Class": "realtime"}, "realtime", "realtime"),
            ({"model": "tiny:standard"}, {}, "standard", "standard"),
            ({"service_tier": None}, {}, "flex", "batch"),
        ]
        for fields, headers, word, label in cases:
            answer = http.post("/v1/completions", json=body | fields, headers=headers)
            assert answer.status_code == 200
            assert f'"service_tier":"{word}"' in answer.text
            assert answer.headers["X-Headway-Class"] == label
            assert engine.submitted[-1].service_class.label == label


def test_unknown_tier_is_refused_over_http() -> None:
    engine = FakeEngine()
    with live_server(engine) as server:
        body = {"model": MODEL, "prompt": "x", "service_tier": "vip"}
        answer = server.http().post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "service_tier"
    assert engine.submitted == []


def test_models_lists_the_aliases_and_the_enforced_length() -> None:
    engine = FakeEngine(max_model_len=77)
    with live_server(engine) as server:
        client = server.client()
        names = [model.id for model in client.models.list()]
        one = client.models.retrieve("tiny:batch")
        http = server.http()
        fits = http.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 76})
        exceeds = http.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 77})
        missing = http.get("/v1/models/other")
    assert names == ["tiny", "tiny:realtime", "tiny:standard", "tiny:batch"]
    assert one.model_dump()["max_model_len"] == 77
    assert (fits.status_code, exceeds.status_code) == (200, 400)
    assert exceeds.json()["error"]["code"] == "context_length_exceeded"
    assert missing.status_code == 404
