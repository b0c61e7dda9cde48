"""The official client for Python over the whole surface; see `tests/web` for JavaScript's."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.server.live import MODEL, eventually
from tests.server.surface import surface
from tests.server.test_tools import ARGUMENTS, ASK, TIME, WEATHER


class Color(BaseModel):
    """What answers are parsed into."""

    name: Literal["red", "blue"]
    exact: bool


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with surface(tmp_path_factory.mktemp("surface")) as urls:
        yield urls


def client(urls: dict[str, str], name: str, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{urls[name]}/v1", api_key="none", max_retries=retries)


def test_models(urls: dict[str, str]) -> None:
    with client(urls, "all") as it:
        assert MODEL in {model.id for model in it.models.list()}
        card = it.models.retrieve(MODEL)
    assert card.model_extra == {"max_model_len": 512}


def test_chat_text_and_streams(urls: dict[str, str]) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 12, "seed": 1}
    with client(urls, "all") as it:
        whole = it.chat.completions.create(**fields)
        chunks = list(
            it.chat.completions.create(
                **fields, stream=True, stream_options={"include_usage": True}
            )
        )
        text = it.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=4, logprobs=1)
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert chunks[-1].usage and whole.usage
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    lengths = [c.logprobs and len(c.logprobs.tokens or ()) for c in text.choices]
    assert lengths == [4, 4, 4, 4]


def test_tools_and_schemas(urls: dict[str, str]) -> None:
    with client(urls, "tools") as it:
        answer = it.chat.completions.create(model=MODEL, messages=ASK, tools=[WEATHER, TIME])
    calls = answer.choices[0].message.tool_calls or []
    assert len(calls) == 2
    assert calls[0].type == "function" and calls[0].function.arguments == ARGUMENTS
    with client(urls, "all") as it:
        parsed = it.chat.completions.parse(model=MODEL, messages=ASK, response_format=Color)
    assert isinstance(parsed.choices[0].message.parsed, Color)


def test_files_and_batches(urls: dict[str, str]) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 3}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    with client(urls, "batches") as it:
        file = it.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = it.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        eventually(lambda: it.batches.retrieve(batch.id).status == "completed", 15)
        output = it.batches.retrieve(batch.id).output_file_id
        assert output is not None
        assert json.loads(it.files.content(output).text)["custom_id"] == "a"
        assert batch.id in {found.id for found in it.batches.list()}
        assert it.files.delete(file.id).deleted


def test_errors_are_the_clients_own(urls: dict[str, str]) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK}
    with client(urls, "all") as it:
        with pytest.raises(openai.BadRequestError) as caught:
            it.chat.completions.create(**fields | {"temperature": 1.9, "top_p": 0})
        assert caught.value.param == "top_p"
        with pytest.raises(openai.NotFoundError):
            it.chat.completions.create(**fields | {"model": "other"})
    with client(urls, "keyed") as it, pytest.raises(openai.AuthenticationError):
        it.models.list()


def test_an_error_in_the_middle_of_a_stream_is_raised(urls: dict[str, str]) -> None:
    with client(urls, "broken") as it:
        stream = it.chat.completions.create(model=MODEL, messages=ASK, stream=True)
        seen = ""
        with pytest.raises(openai.APIError, match="It broke"):
            for chunk in stream:
                seen += chunk.choices[0].delta.content or ""
    assert seen == "Hel"


def test_an_overloaded_server_is_asked_again(urls: dict[str, str]) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": ASK}
    with client(urls, "busy") as it, pytest.raises(openai.RateLimitError):
        it.chat.completions.create(**fields)
    with client(urls, "busy", retries=3) as it:
        assert it.chat.completions.create(**fields).choices[0].finish_reason == "stop"
