"""`/tokenize` and `/detokenize`."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import httpx
import pytest

from headway.testing.text import ByteTokenizer
from tests.models.template_files import family
from tests.server.fake_engine import FakeEngine
from tests.server.live import BYTES, MODEL, live_server
from tests.server.test_tools import ASK, TIME, WORDS, refused


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    model = replace(BYTES, codec=WORDS, chat=family("qwen3"))
    with live_server(FakeEngine(), model=model) as server:
        yield server.http()


def test_a_text_and_back(http: httpx.Client) -> None:
    asked = {"model": MODEL, "prompt": "hé", "return_token_strs": True}
    answer = http.post("/tokenize", json=asked).json()
    assert answer == {
        "count": 3,
        "max_model_len": 2048,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    back = http.post("/detokenize", json={"tokens": [*answer["tokens"], 200]}).json()
    assert back == {"prompt": "hé[TOOL_CALLS]"}


class Aside(ByteTokenizer):
    """Notes which threads ask for the bytes of tokens."""

    def __init__(self) -> None:
        super().__init__({})
        self.threads: set[int] = set()

    def token_bytes(self, token: int) -> bytes:
        self.threads.add(threading.get_ident())
        return super().token_bytes(token)


def test_the_strings_of_a_long_text_are_made_beside_the_event_loop() -> None:
    codec = Aside()
    with live_server(FakeEngine(), model=replace(BYTES, codec=codec)) as server:
        asked = {"prompt": "x" * 1000, "return_token_strs": True}
        assert server.http().post("/tokenize", json=asked).json()["token_strs"] == ["x"] * 1000
        looping: Future[int] = Future()
        server.loop.call_soon_threadsafe(lambda: looping.set_result(threading.get_ident()))
        assert codec.threads and looping.result(5) not in codec.threads


def test_a_conversation_as_it_is_prompted(http: httpx.Client) -> None:
    fields = {
        "messages": ASK,
        "tools": [TIME],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    text = bytes(http.post("/tokenize", json=fields).json()["tokens"]).decode()
    assert "get_time" in text and text.endswith("<think>\n\n</think>\n\n")
    closed = http.post("/tokenize", json=fields | {"add_generation_prompt": False}).json()
    assert bytes(closed["tokens"]).decode().endswith("Oslo?<|im_end|>\n")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": ASK}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"prompt": "x" * (2048 * 128 + 1)}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
def test_what_is_refused(http: httpx.Client, path: str, body: object, param: str) -> None:
    assert refused(http.post(path, json=body))["param"] == param


def test_models_by_name(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"model": "other", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_template_without_tools_says_so() -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().post("/tokenize", json={"messages": ASK, "tools": [TIME]})
    assert refused(answer)["param"] == "tools"


class Named(ByteTokenizer):
    """Reads one name as a control token, and marks it with a star."""

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return super().encode(text.replace("<end>", "\x00"))

    def shield(self, text: str) -> str:
        return text.replace("<end>", "<*end>")


def test_messages_and_tools_make_no_control_tokens_and_texts_do() -> None:
    model = replace(BYTES, codec=Named(), chat=family("qwen3"))
    engine = FakeEngine()
    name = {"name": "f", "description": "<end>"}
    asked = {
        "messages": [{"role": "user", "content": "<end>"}],
        "tools": [{"type": "function", "function": name}],
    }
    with live_server(engine, model=model) as server:
        http = server.http()
        for path in ("/tokenize", "/v1/chat/completions"):
            assert http.post(path, json={"model": MODEL, **asked}).status_code == 200
        ids = http.post("/tokenize", json=asked).json()["tokens"]
        assert http.post("/tokenize", json={"prompt": "<end>"}).json()["tokens"] == [0]
    for prompt in (ids, engine.submitted[0].prompt):
        assert 0 not in prompt
        assert bytes(prompt).count(b"<*end>") == 2
