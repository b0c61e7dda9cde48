"""Every field of OpenAI's reference is supported, or refused by its name. The reference is the
official client's own types, so a new version of it fails here until somebody decides."""

from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import httpx
import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import (
    chat_completion_assistant_message_param as assistant_params,
)
from openai.types.chat import (
    chat_completion_stream_options_param as stream_params,
)
from openai.types.chat import (
    chat_completion_tool_message_param as tool_params,
)
from openai.types.chat import completion_create_params as chat_params

from headway.server.chat_types import Message
from headway.server.fields import Body
from headway.server.openai_types import ChatBody, CompletionBody, StreamOptions
from tests.server.fake_engine import FakeEngine
from tests.server.live import MODEL, live_server

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "x"}

CHAT_REFUSED: dict[str, object] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni"},
    "prediction": {"type": "content", "content": "x"},
    "verbosity": "low",
    "web_search_options": {},
}
TEXT_REFUSED: dict[str, object] = {"echo": True, "suffix": "x", "best_of": 2}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with live_server(FakeEngine()) as server:
        yield server.http()


def fields_of(params: type) -> set[str]:
    return set(get_type_hints(params))


def known(kind: type[Body]) -> set[str]:
    """Fields that are read, and those that are ignored since they can't change an answer."""
    return set(kind.model_fields) | kind.ignored


@pytest.mark.parametrize(
    ("params", "kind", "refused"),
    [
        (chat_params.CompletionCreateParamsBase, ChatBody, set(CHAT_REFUSED)),
        (text_params.CompletionCreateParamsBase, CompletionBody, {"echo", "suffix"}),
        (stream_params.ChatCompletionStreamOptionsParam, StreamOptions, {"include_obfuscation"}),
        (
            assistant_params.ChatCompletionAssistantMessageParam,
            Message,
            {"audio", "function_call", "refusal"},
        ),
        (tool_params.ChatCompletionToolMessageParam, Message, set()),
    ],
)
def test_no_field_of_the_reference_is_overlooked(
    params: type, kind: type[Body], refused: set[str]
) -> None:
    assert refused <= set(kind.unsupported)
    assert fields_of(params) - known(kind) - refused == set()
    assert not set(kind.unsupported) & known(kind)


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [("/v1/chat/completions", CHAT, CHAT_REFUSED), ("/v1/completions", TEXT, TEXT_REFUSED)],
)
def test_what_is_not_supported_is_refused_by_name(
    http: httpx.Client, path: str, body: Mapping[str, object], fields: Mapping[str, object]
) -> None:
    for name, value in fields.items():
        answer = http.post(path, json={**body, name: value})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (
            400,
            name,
            "unsupported_field",
        )


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [("/v1/chat/completions", CHAT, ChatBody), ("/v1/completions", TEXT, CompletionBody)],
)
def test_every_field_may_be_null_and_the_ignored_ones_anything(
    http: httpx.Client, path: str, body: Mapping[str, object], kind: type[Body]
) -> None:
    names = set(kind.model_fields) | set(kind.unsupported)
    assert http.post(path, json={**dict.fromkeys(names), **body}).status_code == 200
    for name in kind.ignored:
        assert http.post(path, json={**body, name: {"any": ["thing"]}}).status_code == 200
