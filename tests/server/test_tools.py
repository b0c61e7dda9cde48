"""Calls of functions through the official client: scripted answers, streamed and whole."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from headway.testing.text import ByteTokenizer
from tests.models.template_files import family
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import BYTES, MODEL, LiveServer, live_server

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time"}}
ASK: Any = [{"role": "user", "content": "Oslo?"}]
ARGUMENTS = '{"city": "Oslo", "unit": "C"}'
WORDS = ByteTokenizer({200: b"[TOOL_CALLS]", 201: b"<|python_tag|>"}, special={200, 201})

CALLS = {
    "hermes": f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
    '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
    "llama3": f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}; '
    '{"name": "get_time", "parameters": {}}',
    "mistral": f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {ARGUMENTS}}}, '
    '{"name": "get_time", "arguments": {}}]',
}


@contextmanager
def server_of(name: str, reply: str = "Hello.") -> Iterator[tuple[LiveServer, FakeEngine]]:
    """A server of a family's template, whose model always answers this."""
    engine = FakeEngine(Script(reply=reply.encode()))
    model = replace(BYTES, codec=WORDS, chat=family(name))
    with live_server(engine, model=model) as server:
        yield server, engine


def whole(client: openai.OpenAI, **fields: Any) -> Any:
    given: dict[str, Any] = {"messages": ASK, "tools": [WEATHER, TIME]} | fields
    return client.chat.completions.create(model=MODEL, **given).choices[0]


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[Any, str]:
    """The message that the client's own accumulator makes, and the finish reason."""
    given: dict[str, Any] = {"messages": ASK, "tools": [WEATHER, TIME]} | fields
    with client.chat.completions.stream(model=MODEL, **given) as stream:
        choice = stream.get_final_completion().choices[0]
    return choice.message, choice.finish_reason


def calls_in(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    calls = message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    return [
        (call.function.name, call.function.arguments) for call in calls if call.type == "function"
    ]


@pytest.mark.parametrize("name", CALLS)
def test_calls_whole_and_streamed(name: str) -> None:
    with server_of(name, CALLS[name]) as (server, engine):
        client = server.client()
        choice = whole(client)
        message, reason = streamed(client)
        assert "get_weather" in bytes(engine.submitted[0].prompt).decode()
    for answer, why in ((choice.message, choice.finish_reason), (message, reason)):
        assert calls_in(answer) == [("get_weather", ARGUMENTS), ("get_time", "{}")]
        assert (answer.content or "", why) == ("", "tool_calls")
    assert choice.message.content is None
    ids = {len(call.id) for call in choice.message.tool_calls}
    assert ids == ({9} if name == "mistral" else {len("call_") + 24})


def test_deltas_are_openais() -> None:
    with server_of("hermes", "Hm. " + CALLS["hermes"]) as (server, _):
        chunks = list(
            server.client().chat.completions.create(
                model=MODEL,
                messages=ASK,
                tools=[WEATHER, TIME],
                stream=True,
            )
        )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hm."
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    heads = [call for call in calls if call.id]
    assert [(c.index, c.function and c.function.name) for c in heads] == [
        (0, "get_weather"),
        (1, "get_time"),
    ]
    pieces = [c for c in calls if c.index == 0 and c.function and c.function.arguments]
    assert len(pieces) > 5, "arguments come as they are made"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("name", CALLS)
def test_a_conversation_with_calls_goes_back_through_the_template(name: str) -> None:
    with server_of(name, CALLS[name].split(";")[0]) as (server, engine):
        client = server.client()
        answer = whole(client, parallel_tool_calls=False).message
        (call,) = answer.tool_calls
        turns = [
            *ASK,
            answer.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "-3"},
        ]
        whole(client, messages=turns)
        prompt = bytes(engine.submitted[-1].prompt).decode()
    assert '"name": "get_weather"' in prompt
    assert json.dumps(json.loads(ARGUMENTS)) in prompt
    assert "-3" in prompt


def test_one_call_where_they_are_not_parallel() -> None:
    with server_of("hermes", CALLS["hermes"]) as (server, _):
        message, reason = streamed(server.client(), parallel_tool_calls=False)
    assert calls_in(message) == [("get_weather", ARGUMENTS)] and reason == "tool_calls"


def test_no_tools_no_calls() -> None:
    with server_of("hermes", CALLS["hermes"]) as (server, engine):
        client = server.client()
        quiet: list[dict[str, Any]] = [
            {"tool_choice": "none"},
            {"tools": openai.omit},
            {"tools": []},
        ]
        for fields in quiet:
            choice = whole(client, **fields)
            assert (choice.message.content, choice.finish_reason) == (CALLS["hermes"], "stop")
            assert choice.message.tool_calls is None
            assert "<tools>" not in bytes(engine.submitted[-1].prompt).decode()


def test_plain_answers_stay_plain() -> None:
    for name in CALLS:
        with server_of(name, "It is cold, { I } think.\n") as (server, _):
            assert whole(server.client()).message.content == "It is cold, { I } think.\n"
            message, reason = streamed(server.client())
            assert (message.content, reason) == ("It is cold, { I } think.\n", "stop")


def test_a_call_that_is_cut_says_length() -> None:
    with server_of("hermes", CALLS["hermes"]) as (server, _):
        choice = whole(server.client(), max_tokens=60)
    assert choice.finish_reason == "length"
    assert ARGUMENTS.startswith(choice.message.tool_calls[0].function.arguments)


def test_several_choices_have_calls_of_their_own() -> None:
    with server_of("hermes", CALLS["hermes"]) as (server, _):
        answer = server.client().chat.completions.create(
            model=MODEL,
            messages=ASK,
            tools=[WEATHER, TIME],
            n=3,
        )
    assert [len(calls_in(c.message)) for c in answer.choices] == [2, 2, 2]


def test_logprobs_are_of_all_tokens() -> None:
    with server_of("hermes", CALLS["hermes"]) as (server, _):
        answer = whole(server.client(), logprobs=True)
        with server.client().chat.completions.stream(
            model=MODEL,
            messages=ASK,
            tools=[WEATHER, TIME],
            logprobs=True,
        ) as stream:
            tokens = [t for c in _chunks(stream) for t in _tokens(c)]
    assert len(answer.logprobs.content) == len(tokens) == len(CALLS["hermes"])


def _chunks(stream: Any) -> Iterator[Any]:
    return (event.chunk for event in stream if event.type == "chunk")


def _tokens(chunk: Any) -> Sequence[Any]:
    logprobs = chunk.choices[0].logprobs if chunk.choices else None
    return logprobs.content if logprobs else []


def refused(answer: httpx.Response) -> Mapping[str, str]:
    assert answer.status_code == 400, answer.text
    error: Mapping[str, str] = answer.json()["error"]
    return error


CHAT: dict[str, Any] = {"model": MODEL, "messages": ASK}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER | {"x": 1}]}, "tools[0].x"),
        ({"tools": [TIME] * 129}, "tools"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "function": {"name": "get_time"}},
            },
            "tool_choice.function.name",
        ),
        (
            {"tools": [WEATHER], "chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs.tools",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, object], param: str) -> None:
    with server_of("hermes") as (server, _):
        assert (
            refused(server.http().post("/v1/chat/completions", json=CHAT | fields))["param"]
            == param
        )


def test_a_template_without_tools_says_so() -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().post("/v1/chat/completions", json=CHAT | {"tools": [TIME]})
    error = refused(answer)
    assert error["param"] == "tools" and "template" in error["message"]


THOUGHT = "<think>\nCold, \nI guess.\n</think>\n\nMinus three."


def test_reasoning_whole_and_streamed() -> None:
    with server_of("qwen3", THOUGHT) as (server, _):
        client = server.client()
        answer = client.chat.completions.create(model=MODEL, messages=ASK)
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=ASK,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    message = answer.choices[0].message
    assert message.content == "Minus three."
    assert message.model_extra == {"reasoning_content": "Cold, \nI guess."}
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Minus three."
    extra = [(delta.model_extra or {}).get("reasoning_content", "") for delta in deltas]
    assert "".join(extra) == "Cold, \nI guess."
    for usage in (answer.usage, chunks[-1].usage):
        assert usage is not None and usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == THOUGHT.index("\n\nMinus")


def test_reasoning_that_the_template_begins_or_closes() -> None:
    with server_of("qwen3", "So.\n</think>\n\nYes.") as (server, engine):
        http = server.http()
        begun = CHAT | {"chat_template_kwargs": {"begin_thinking": True}}
        message = http.post("/v1/chat/completions", json=begun).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("So.", "Yes.")
        for fields in (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "none"},
        ):
            answer = http.post("/v1/chat/completions", json=CHAT | fields).json()
            assert answer["choices"][0]["message"]["content"] == "So.\n</think>\n\nYes."
            assert bytes(engine.submitted[-1].prompt).endswith(b"<think>\n\n</think>\n\n")


def test_earlier_reasoning_goes_to_the_template() -> None:
    with server_of("qwen3", THOUGHT) as (server, engine):
        called = {
            "id": "a",
            "type": "function",
            "function": {"name": "get_time", "arguments": "{}"},
        }
        turns = [
            *ASK,
            {"role": "assistant", "reasoning_content": "Which?", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "a", "content": "noon"},
        ]
        whole(server.client(), messages=turns)
        prompt = bytes(engine.submitted[-1].prompt).decode()
    assert "<think>\nWhich?\n</think>" in prompt and "noon" in prompt


def test_a_call_that_a_stop_string_cuts_is_no_call() -> None:
    reply = '<tool_call>\n{"name": "get_weather", "arguments": {"city": '
    with server_of("hermes", reply) as (server, _):
        message, reason = streamed(server.client(), stop=['"Oslo"'])
        answer = whole(server.client(), stop=['"Oslo"'])
    assert (reason, answer.finish_reason) == ("stop", "stop")
    for calls in (message.tool_calls, answer.message.tool_calls):
        assert calls[0].function.arguments == '{"city": '
