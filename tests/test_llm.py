"""The offline door, on the scripted executor."""

import gc
import io
import json
from collections.abc import Iterator, Mapping, Sequence

import pytest

import headway
from headway.core.types import ServiceClass
from headway.errors import EngineStoppedError, InvalidRequestError, NeverFitsError
from headway.llm import LLM, class_of, in_window
from headway.runfile import Defaults, run_lines
from headway.sampling import SamplingParams
from headway.testing import WallClock
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import SLOW, Rig, make_rig, oracle, until

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


class Template:
    """`role: content` lines."""

    source = ""

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        return "\n".join(f"{m['role']}: {m['content']}" for m in messages)


@pytest.fixture
def rig() -> Rig:
    return make_rig()


@pytest.fixture
def llm(rig: Rig) -> Iterator[LLM]:
    with LLM.around(rig.engine, ByteTokenizer(), Template()) as llm:
        yield llm


def test_public_names_are_there_and_light_to_import() -> None:
    assert headway.LLM is LLM and headway.SamplingParams is SamplingParams
    assert headway.__all__ == ["LLM", "Result", "SamplingParams"]
    assert not hasattr(headway, "nothing")


def test_results_come_in_order_of_the_prompts(llm: LLM, rig: Rig) -> None:
    prompts: list[str | list[int]] = ["one", [5, 6, 7], "three" * 9]
    results = llm.generate(prompts, GREEDY)
    ids = [list(p.encode()) if isinstance(p, str) else p for p in prompts]
    assert [list(r.prompt_token_ids) for r in results] == ids
    assert [list(r.token_ids) for r in results] == [oracle(rig, p, 6) for p in ids]
    assert [r.text for r in results] == [ByteTokenizer().decode(list(r.token_ids)) for r in results]
    assert {r.finish_reason for r in results} == {"length"}
    assert all(r.logprobs is None for r in results)


def test_one_prompt_may_be_given_bare(llm: LLM) -> None:
    assert llm.generate("one", GREEDY) == llm.generate(["one"], GREEDY)
    assert llm.generate([5, 6], GREEDY) == llm.generate([[5, 6]], GREEDY)
    assert llm.generate([], GREEDY) == []


def test_choices_and_logprobs(llm: LLM) -> None:
    (result,) = llm.generate("one", SamplingParams(n=3, seed=1, logprobs=2, max_tokens=5))
    assert len(result.choices) == 3 and result.text == result.choices[0].text
    for choice in result.choices:
        assert choice.logprobs is not None and len(choice.logprobs) == len(choice.token_ids) == 5
        assert all(len(entry.top) == 2 for entry in choice.logprobs)


def test_every_setting_reaches_the_engine() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        max_tokens=7,
        stop="x",
        stop_token_ids=[3],
        seed=2,
        n=2,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias={4: 1.0},
        logprobs=0,
        ignore_eos=True,
    )
    request = params.request([1], ServiceClass.BATCH)
    sampling, stop = request.sampling, request.stop
    assert (request.service_class, request.n) == (ServiceClass.BATCH, 2)
    assert (sampling.temperature, sampling.seed, sampling.logprobs) == (0.5, 2, 0)
    kept = sampling.truncation
    assert (kept.top_k, kept.top_p, kept.min_p) == (4, 0.9, 0.1)
    penalties = sampling.penalties
    assert (penalties.repetition, penalties.presence, penalties.frequency) == (1.1, 0.2, 0.3)
    assert sampling.bias == {4: 1.0}
    assert (stop.max_tokens, stop.stop, stop.stop_ids, stop.ignore_eos) == (7, ("x",), (3,), True)


def test_chat_renders_the_template(llm: LLM, rig: Rig) -> None:
    result = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert bytes(result.prompt_token_ids) == b"user: hi"
    assert list(result.token_ids) == oracle(rig, list(b"user: hi"), 6)


def test_chat_without_a_template_is_refused(rig: Rig) -> None:
    with (
        LLM.around(rig.engine, ByteTokenizer()) as llm,
        pytest.raises(InvalidRequestError, match="template"),
    ):
        llm.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("word", "service_class"),
    [("priority", 0), ("realtime", 0), ("default", 1), ("flex", 2), ("batch", 2)],
)
def test_service_tiers(word: str, service_class: int) -> None:
    assert class_of(word) == service_class


def test_unknown_tier_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="urgent"):
        llm.generate("one", GREEDY, service_tier="urgent")


def test_bad_prompt_gives_up_those_under_way() -> None:
    rig = make_rig(clock=WallClock(), duration=SLOW)
    with LLM.around(rig.engine, ByteTokenizer()) as llm:
        with pytest.raises(NeverFitsError):
            llm.generate(["one", "two", "x" * 1000], SamplingParams(max_tokens=400))
        until(rig.idle)
        assert len(rig.executor.submitted) < 50


def test_closed_llm_takes_nothing_more(rig: Rig) -> None:
    llm = LLM.around(rig.engine, ByteTokenizer())
    llm.close()
    llm.close()
    with pytest.raises(EngineStoppedError, match="This LLM has been closed"):
        llm.generate("one", GREEDY)


def test_dropped_llm_stops_its_engine(rig: Rig) -> None:
    llm = LLM.around(rig.engine, ByteTokenizer())
    llm.generate("one", GREEDY)
    del llm
    gc.collect()
    assert not rig.engine.healthy


def test_window_bounds_what_is_under_way() -> None:
    most, given_up = 0, list[int]()
    started: list[int] = []

    def jobs() -> Iterator[int]:
        for i in range(10):
            started.append(i)
            yield i

    taken = []
    for job in in_window(jobs(), given_up.append, size=3):
        taken.append(job)
        most = max(most, len(started) - len(taken) + 1)
    assert taken == list(range(10)) and most == 3 and not given_up
    reader = in_window(jobs(), given_up.append, size=3)
    next(reader)
    reader.close()
    assert given_up == [1, 2]


def run(llm: LLM, *lines: str) -> list[dict[str, object]]:
    sink = io.StringIO()
    run_lines(llm, lines, sink, Defaults(GREEDY), progress=False)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_lines_are_answered_in_order(llm: LLM, rig: Rig) -> None:
    answers = run(
        llm,
        '{"prompt": "one", "id": "a"}\n',
        "\n",
        '"two"',
        '{"prompt": [5, 6], "max_tokens": 2, "id": 7}',
        '{"messages": [{"role": "user", "content": "hi"}], "n": 2, "logprobs": 1}',
    )
    assert [a["line"] for a in answers] == [1, 3, 4, 5]
    assert [a.get("id") for a in answers] == ["a", None, 7, None]
    text = ByteTokenizer().decode(oracle(rig, list(b"two"), 6))
    assert answers[1]["text"] == text and answers[1]["finish_reason"] == "length"
    assert answers[2]["usage"] == {"prompt_tokens": 2, "completion_tokens": 2}
    choices = answers[3]["choices"]
    assert isinstance(choices, list) and len(choices) == 2 and len(choices[0]["logprobs"]) == 6


BAD_LINES = [
    "not json",
    "[" * 100_000,
    "[1]",
    "{}",
    '{"prompt": "a", "messages": []}',
    '{"prompt": ""}',
    '{"prompt": [1, "a"]}',
    '{"prompt": 5}',
    '{"prompt": [100000]}',
    '{"prompt": "a", "temprature": 1}',
    '{"prompt": "a", "max_tokens": "5"}',
    '{"prompt": "a", "max_tokens": 0}',
    '{"prompt": "a", "max_tokens": 2.5}',
    '{"prompt": "a", "max_tokens": 1e400}',
    '{"prompt": "a", "n": 1.5}',
    '{"prompt": "a", "top_k": 1.5}',
    '{"prompt": "a", "logprobs": 1.5}',
    '{"prompt": "a", "seed": 1.5}',
    '{"prompt": "a", "ignore_eos": "no"}',
    '{"messages": []}',
    '{"prompt": "a", "stop": 5}',
    '{"prompt": "a", "stop": [5]}',
    '{"prompt": "a", "seed": "x"}',
    '{"prompt": "a", "logit_bias": {"x": 1}}',
    '{"prompt": "a", "logit_bias": [1]}',
    '{"prompt": "a", "service_tier": "urgent"}',
    '{"prompt": "a", "service_tier": 5}',
    '{"prompt": "a", "temperature": null}',
    '{"messages": "hi"}',
    '{"messages": [{"role": "user"}]}',
    json.dumps({"prompt": "x" * 1000}),
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_line_gets_an_error_of_its_own(llm: LLM, rig: Rig, line: str) -> None:
    answers = run(llm, '"one"', line, '"two"')
    assert [a["line"] for a in answers] == [1, 2, 3]
    assert "error" in answers[1] and "text" not in answers[1]
    assert answers[0]["text"] and answers[2]["text"]
    until(rig.idle)


def test_summary_counts(llm: LLM) -> None:
    lines = ['"one"', "not json", '{"prompt": "two", "n": 2}']
    summary = run_lines(llm, lines, io.StringIO(), Defaults(GREEDY), progress=False)
    assert (summary.answered, summary.failed, summary.generated_tokens) == (2, 1, 18)
