"""Answers that must look like something, by the embedded model, through the official client."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from headway.assembly import EngineOptions, Sizes, build_engine
from headway.models.loader import load_model
from headway.server.model import ServedModel
from headway.server.tiers import ModelNames
from tests.models.hostile import CHAIN
from tests.models.template_files import family
from tests.server.fake_engine import FakeEngine
from tests.server.live import MODEL, LiveServer, live_server
from tests.server.test_tools import ASK, TIME, WEATHER, refused

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
PROMPT: Any = [{"role": "user", "content": "Describe a person as JSON."}]


class City(BaseModel):
    """What the client parses."""

    name: Literal["Oslo", "Rome"]
    people: int


@dataclass(frozen=True)
class House:
    """A server of the embedded model, with tools in its template."""

    server: LiveServer
    client: openai.OpenAI


@pytest.fixture(scope="module")
def house(smollm2_path: Path) -> Iterator[House]:
    loaded = load_model(smollm2_path)
    engine = build_engine(loaded, EngineOptions(Sizes(kv_blocks=128, max_model_len=512)))
    grammars = loaded.grammars(guarded=True)
    model = ServedModel(
        ModelNames(MODEL),
        loaded.tokenizer,
        family("hermes"),
        engine.max_model_len,
        created=1,
        grammars=grammars,
    )
    engine.start()
    try:
        with live_server(engine, model=model) as server:
            yield House(server, server.client())
    finally:
        engine.stop()
        if grammars is not None:
            grammars.close()


def ask(house: House, **fields: Any) -> Any:
    given = {"messages": PROMPT, "max_tokens": 150, "seed": 5, **fields}
    return house.client.chat.completions.create(model=MODEL, **given)


def streamed(house: House, **fields: Any) -> str:
    chunks = ask(house, stream=True, **fields)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_answers_fit_their_schema(house: House, temperature: float) -> None:
    n = 4 if temperature else 1
    answer = ask(house, response_format=FORMAT, temperature=temperature, n=n)
    texts = [choice.message.content for choice in answer.choices]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(texts)) == n
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert streamed(house, response_format=FORMAT, temperature=temperature) == texts[0]


def test_the_clients_own_parser(house: House) -> None:
    answer = house.client.chat.completions.parse(
        model=MODEL, messages=PROMPT, response_format=City, max_tokens=100, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_any_object(house: House) -> None:
    answer = ask(house, response_format={"type": "json_object"}, max_tokens=200, temperature=0)
    (choice,) = answer.choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")


def test_one_that_is_cut_says_length(house: House) -> None:
    (choice,) = ask(house, response_format=FORMAT, max_tokens=3).choices
    assert choice.finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[a-z]{3}-[0-9]{2}"}, "[a-z]{3}-[0-9]{2}"),
        ({"choice": ["left", "right", 'a "third"']}, 'left|right|a "third"'),
        (
            {"grammar": 'start: greeting " " /[A-Z]{2}/\ngreeting: "hi" | "bye"'},
            "(hi|bye) [A-Z]{2}",
        ),
        ({"json": {"type": "boolean"}}, "true|false"),
        ({"json": '{"type": "boolean"}'}, "true|false"),
    ],
)
def test_structured_outputs(house: House, fields: dict[str, object], pattern: str) -> None:
    extra = {"structured_outputs": fields}
    (choice,) = ask(house, extra_body=extra).choices
    assert re.fullmatch(pattern, choice.message.content) and choice.finish_reason == "stop"
    text = house.client.completions.create(model=MODEL, prompt=["x", "y"], extra_body=extra, n=2)
    assert all(re.fullmatch(pattern, choice.text) for choice in text.choices)


def calls_of(message: Any) -> list[tuple[str, dict[str, object]]]:
    calls = message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_that_is_required(house: House, parallel: bool) -> None:
    fields = {"messages": ASK, "tools": [WEATHER, TIME], "tool_choice": "required"}
    answer = ask(house, **fields, parallel_tool_calls=parallel)
    calls = calls_of(answer.choices[0].message)
    assert calls and (parallel or len(calls) == 1)
    if answer.choices[0].finish_reason == "tool_calls":
        for name, arguments in calls:
            assert name in ("get_weather", "get_time")
            if name == "get_weather":
                jsonschema.validate(arguments, WEATHER["function"]["parameters"])


def test_a_call_that_is_named(house: House) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    fields = {"messages": ASK, "tools": [TIME, WEATHER], "tool_choice": choice}
    with house.client.chat.completions.stream(
        model=MODEL, max_tokens=100, seed=2, **fields
    ) as stream:
        final = stream.get_final_completion().choices[0]
    ((name, arguments),) = calls_of(final.message)
    assert (name, final.finish_reason) == ("get_weather", "tool_calls")
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])


def test_allowed_tools(house: House) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    fields = {"messages": ASK, "tools": [WEATHER, TIME], "tool_choice": choice}
    answer = ask(house, **fields, parallel_tool_calls=False, max_tokens=60)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_time"


def test_a_call_or_an_answer_that_fits(house: House) -> None:
    """With `auto`, an answer without a call still fits its schema; `strict` binds arguments."""
    answer = ask(house, tools=[WEATHER], response_format=FORMAT, temperature=1.0, n=3)
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    strict = WEATHER | {"function": WEATHER["function"] | {"strict": True}}
    begun: Any = [*ASK, {"role": "assistant", "content": "x"}, *ASK]
    free = ask(house, messages=begun, tools=[strict], max_tokens=20).choices[0]
    assert free.message.content or free.message.tool_calls


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
            "goes with",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": ""}}},
            "response_format.json_schema.name",
            "",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "objekt"}},
                }
            },
            "response_format.json_schema.schema",
            "objekt",
        ),
        ({"structured_outputs": {"json": "[1"}}, "structured_outputs.json", "text of one"),
        ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json", "text of one"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", "x"),
        (
            {"structured_outputs": {"grammar": CHAIN}},
            "structured_outputs.grammar",
            "too complex to compile",
        ),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty"),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object", ""),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "exclude",
        ),
        ({"structured_outputs": {"regex": "a" * 300_000}}, "structured_outputs.regex", "longer"),
        (
            {
                "tools": [TIME | {"function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools",
            "not",
        ),
    ],
)
def test_what_cant_be_compiled_is_400_with_the_reason(
    house: House, fields: dict[str, object], param: str, reason: str
) -> None:
    body = {"model": MODEL, "messages": PROMPT, **fields}
    error = refused(house.server.http().post("/v1/chat/completions", json=body))
    assert error["param"] == param and reason in error["message"]


def test_a_model_whose_answers_cant_be_bound_says_so() -> None:
    with live_server(FakeEngine()) as server:
        body = {"model": MODEL, "prompt": "x", "response_format": {"type": "json_object"}}
        error = refused(server.http().post("/v1/completions", json=body))
    assert error["param"] == "response_format"
