"""Odd, empty, unknown and unsupported values: a documented 400 or a sensible reading, never 500."""

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.server.openai_types import ChatBody, CompletionBody
from tests.server.fake_engine import FakeEngine
from tests.server.live import MODEL, live_server

CHAT: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, object] = {"model": MODEL, "prompt": "x"}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with live_server(FakeEngine()) as server:
        yield server.http()


def with_field(body: dict[str, object], field: str, value: str) -> bytes:
    """A body with one field as this very JSON."""
    marked = json.dumps({**body, field: "MARK"})
    return marked.replace('"MARK"', value).encode()


def refused(answer: httpx.Response) -> str:
    """The field an answer of status 400 names."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["code"]
    assert error["message"]
    return str(error["param"])


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", ["-1", "0", '"5"', "1.5", "1e400", "true", "[]", "NaN", "-1e9"])
def test_max_tokens_refused(http: httpx.Client, field: str, value: str) -> None:
    body = with_field(CHAT, field, value)
    assert refused(http.post("/v1/chat/completions", content=body)) == field


@pytest.mark.parametrize("value", [None, 1, 10**9, 2**63, 10**40])
def test_max_tokens_taken(http: httpx.Client, value: int | None) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        answer = http.post(path, json=body | {"max_tokens": value})
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["finish_reason"] == ("length" if value == 1 else "stop")


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}

ODD: list[tuple[str, str]] = [
    ("temperature", "-0.1"),
    ("temperature", "2.1"),
    ("temperature", "NaN"),
    ("temperature", '"hot"'),
    ("top_p", "0"),
    ("top_p", "1.5"),
    ("top_p", "Infinity"),
    ("top_k", "-2"),
    ("min_p", "2"),
    ("presence_penalty", "3"),
    ("frequency_penalty", "-3"),
    ("repetition_penalty", "0"),
    ("repetition_penalty", "1e-38"),
    ("n", "0"),
    ("n", "129"),
    ("n", "1.0"),
    ("seed", "9223372036854775808"),
    ("seed", "0.5"),
    ("stop", "5"),
    ("stop", "[null]"),
    ("stop", '""'),
    ("stop", '["a", ""]'),
    ("stop", str(["x"] * 17).replace("'", '"')),
    ("stop_token_ids", "[256]"),
    ("stop_token_ids", "[-1]"),
    ("logit_bias", '{"256": 1}'),
    ("logit_bias", '{"a": 1}'),
    ("logit_bias", '{"-1": 1}'),
    ("logit_bias", '{"99999999999999999999": 1}'),
    ("stream", '"yes"'),
    ("stream_options", "{}"),
    ("service_tier", "1"),
    ("ignore_eos", "1"),
    ("model", "1"),
]


@pytest.mark.parametrize(("field", "value"), ODD)
def test_other_fields_refused_by_name(http: httpx.Client, field: str, value: str) -> None:
    chat, text = with_field(CHAT, field, value), with_field(TEXT, field, value)
    assert refused(http.post("/v1/chat/completions", content=chat)) == field
    assert refused(http.post("/v1/completions", content=text)) == field


@pytest.mark.parametrize("prompt", ["", [""], [], ["a", ""], [[]], [[97], []]])
def test_empty_prompts(http: httpx.Client, prompt: object) -> None:
    assert refused(http.post("/v1/completions", json=TEXT | {"prompt": prompt})) == "prompt"
    assert http.post("/v1/completions", json=TEXT).status_code == 200


@pytest.mark.parametrize("prompt", [None, 5, {"a": 1}, [None], ["a", 1], [1, "a"], [1.5], [True]])
def test_prompts_of_other_types(http: httpx.Client, prompt: object) -> None:
    assert refused(http.post("/v1/completions", json=TEXT | {"prompt": prompt})) == "prompt"


@pytest.mark.parametrize("token", [-1, 256, 2**63])
def test_token_ids_outside_the_vocabulary(http: httpx.Client, token: int) -> None:
    assert refused(http.post("/v1/completions", json=TEXT | {"prompt": [1, token]})) == "prompt"


@pytest.mark.parametrize("text", [" ", "\n\t", "\u3000", "\u0000"])
def test_white_space_is_a_prompt(http: httpx.Client, text: str) -> None:
    assert http.post("/v1/completions", json=TEXT | {"prompt": text}).status_code == 200
    chat = CHAT | {"messages": [{"role": "user", "content": text}]}
    assert http.post("/v1/chat/completions", json=chat).status_code == 200


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        ([{}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_call_id": "a"}], "messages[0].tool_call_id"),
        (
            [{"role": "user", "content": "x", "reasoning_content": "a"}],
            "messages[0].reasoning_content",
        ),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        (
            [{"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}],
            "messages[0].tool_calls[0].type",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [CALL | {"function": {"name": "f", "arguments": "[1]"}}],
                }
            ],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "user", "content": "x", "weight": 1}], "messages[0].weight"),
        ([{"role": "assistant", "content": "x", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}],
            "messages[0].content[0].cache",
        ),
    ],
)
def test_messages(http: httpx.Client, messages: object, param: str) -> None:
    assert refused(http.post("/v1/chat/completions", json=CHAT | {"messages": messages})) == param
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("function_call", "auto"),
        ("response_format", {"type": "json_object"}),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {}),
        ("web_search_options", {}),
        ("reasoning_effort", "high"),
        ("echo", True),
        ("top_logprobs", 2),
        ("unheard_of", 1),
    ],
)
def test_unsupported_chat_fields(http: httpx.Client, field: str, value: object) -> None:
    assert refused(http.post("/v1/chat/completions", json=CHAT | {field: value})) == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("echo", True), ("suffix", "x"), ("best_of", 2), ("tools", []), ("unheard_of", 0)],
)
def test_unsupported_text_fields(http: httpx.Client, field: str, value: object) -> None:
    assert refused(http.post("/v1/completions", json=TEXT | {field: value})) == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tools", None),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("user", "somebody"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("unheard_of", None),
        ("top_k", -1),
        ("stop", []),
        ("max_completion_tokens", 4),
    ],
)
def test_fields_that_ask_for_nothing(http: httpx.Client, field: str, value: object) -> None:
    assert http.post("/v1/chat/completions", json=CHAT | {field: value}).status_code == 200


def test_two_limits_that_disagree(http: httpx.Client) -> None:
    body = CHAT | {"max_tokens": 3, "max_completion_tokens": 4}
    assert refused(http.post("/v1/chat/completions", json=body)) == "max_tokens"


def test_too_many_choices(http: httpx.Client) -> None:
    assert refused(http.post("/v1/completions", json=TEXT | {"prompt": ["x"] * 1025})) == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "tiny", "prompt": "x", "seed": ' + b"9" * 10000 + b"}",
    ],
)
def test_bodies_that_are_no_json_objects(http: httpx.Client, body: bytes) -> None:
    refused(http.post("/v1/completions", content=body))
    refused(http.post("/v1/chat/completions", content=body))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, "tools", "echo", "x"})


@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=3))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_body_whatever_is_an_internal_error(
    http: httpx.Client, fields: dict[str, object]
) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        answer = http.post(path, json=body | fields)
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.status_code != 200:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
