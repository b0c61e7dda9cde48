"""Text completions: the kinds of prompt, choices, and the older log probability format."""

import pytest
from openai.types import Completion

from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, live_server


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", [b"ab"]),
        (["ab", "c"], [b"ab", b"c"]),
        ([97, 98], [b"ab"]),
        ([[97, 98], [99]], [b"ab", b"c"]),
        (" ", [b" "]),
    ],
)
def test_kinds_of_prompt(prompt: object, prompts: list[bytes]) -> None:
    engine = FakeEngine(Script(b"x"))
    with live_server(engine) as server:
        body = {"model": MODEL, "prompt": prompt}
        answer = server.http().post("/v1/completions", json=body).json()
    assert [bytes(request.prompt) for request in engine.submitted] == prompts
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(prompts)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_a_prompt_that_is_not_there_is_missing() -> None:
    with live_server(FakeEngine()) as server:
        error = server.http().post("/v1/completions", json={"model": MODEL}).json()["error"]
    assert (error["code"], error["param"]) == ("missing_field", "prompt")


def test_max_tokens_is_sixteen_unless_given() -> None:
    engine = FakeEngine(Script(b"x" * 40))
    with live_server(engine) as server:
        answer = server.client().completions.create(model=MODEL, prompt="a")
    assert answer.choices[0].text == "x" * 16
    assert answer.choices[0].finish_reason == "length"


def test_choices_of_several_prompts_follow_each_other() -> None:
    with live_server(FakeEngine(Script(b"abc"))) as server:
        client = server.client()
        whole = client.completions.create(model=MODEL, prompt=["p", "q"], n=2)
        stream = client.completions.create(model=MODEL, prompt=["p", "q"], n=2, stream=True)
        texts = dict.fromkeys(range(4), "")
        ends: list[int] = []
        for chunk in stream:
            choice = chunk.choices[0]
            assert not (choice.index in ends and choice.text)
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends.append(choice.index)
    assert texts == dict.fromkeys(range(4), "abc")
    assert sorted(ends) == [0, 1, 2, 3]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage is not None and whole.usage.completion_tokens == 12


def test_log_probabilities() -> None:
    with live_server(FakeEngine(Script("aé!".encode()))) as server:
        client = server.client()
        answer = client.completions.create(model=MODEL, prompt="p", logprobs=1)
        stream = list(client.completions.create(model=MODEL, prompt="p", logprobs=1, stream=True))
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs.token_logprobs == [-0.5] * 4
    assert logprobs.text_offset == [0, 1, 1, 2]
    assert logprobs.top_logprobs == [{"A": -1.0, token: -0.5} for token in logprobs.tokens]
    assert offsets_of(stream) == logprobs.text_offset


def offsets_of(stream: list[Completion]) -> list[int]:
    parts = [chunk.choices[0].logprobs for chunk in stream]
    return [offset for part in parts if part for offset in part.text_offset or []]


def test_no_alternatives_still_gives_the_sampled_token() -> None:
    with live_server(FakeEngine(Script(b"a"))) as server:
        answer = server.client().completions.create(model=MODEL, prompt="p", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.top_logprobs == [{"a": -0.5}]


def test_best_of_like_n_is_fine() -> None:
    with live_server(FakeEngine()) as server:
        answer = server.client().completions.create(model=MODEL, prompt="p", n=2, best_of=2)
    assert len(answer.choices) == 2
