"""Requests through the whole engine: right tokens, right text, right ends."""

import asyncio
import time
from dataclasses import replace
from itertools import accumulate

import pytest

from headway.core.plan import Penalties, SamplingSpec
from headway.core.types import FinishReason, RequestId, ServiceClass
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.errors import InvalidRequestError, NeverFitsError
from headway.testing import LinearDuration, Script, WallClock, make_capacity, oracle_tokens
from headway.testing.builders import make_prompt
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import (
    EOS,
    GREEDY,
    SLOW,
    Answer,
    Rig,
    ask,
    collect,
    greedy,
    make_rig,
    oracle,
    running,
    until,
)

SPECS = (
    GREEDY,
    SamplingParams(temperature=1.0, seed=3, logprobs=2),
    SamplingParams(
        temperature=0.7, seed=-9, bias={5: 1.5}, penalties=Penalties(1.2, 0.5, 0.1), logprobs=0
    ),
)


async def read(rig: Rig, request: GenerationRequest) -> list[Answer]:
    return collect([delta async for delta in rig.engine.submit(request)], request.n)


async def test_many_requests_through_a_small_pool_match_their_oracles() -> None:
    capacity = make_capacity(kv_blocks=14, host_blocks=8, max_seqs=6, max_model_len=128)
    script = Script(eos_id=EOS, eos_probability=0.02)
    requests = [
        GenerationRequest(
            make_prompt(i, 10 + 3 * i), ServiceClass(i % 3), SPECS[i % 3], StopConditions(24)
        )
        for i in range(24)
    ]
    with running(make_rig(capacity, script, duration=LinearDuration())) as rig:
        answers = await asyncio.gather(*(read(rig, r) for r in requests))
        until(rig.idle)
    for i, (request, (answer,)) in enumerate(zip(requests, answers, strict=True)):
        chosen = request.sampling
        spec = SamplingSpec(
            seed=(chosen.seed or 0) & (1 << 63) - 1,
            temperature=chosen.temperature,
            penalties=chosen.penalties,
            bias=tuple(chosen.bias.items()),
        )
        expected = oracle_tokens(request.prompt, spec, 24, script, frozenset({EOS}))
        if i % 3:
            assert [info.logprobs is not None for info in answer.tokens] == [True] * len(expected)
        else:
            spec = replace(spec, seed=0)
        assert answer.ids == expected
        ended = expected[-1] == EOS
        assert answer.finish is (FinishReason.STOP if ended else FinishReason.LENGTH)
        shown = expected[:-1] if ended else expected
        assert answer.text == ByteTokenizer().decode(shown)
        assert answer.usage is not None
        assert (answer.usage.prompt, answer.usage.generated) == (10 + 3 * i, len(expected))
    assert any(plan.swap_out for plan in rig.executor.submitted), "nothing was ever preempted"


def test_choices_differ_and_each_matches_its_oracle() -> None:
    request = GenerationRequest(
        make_prompt(1, 20), sampling=SamplingParams(seed=5), stop=StopConditions(10), n=3
    )
    with running(make_rig()) as rig:
        answers = ask(rig, request)
    specs = [SamplingSpec(seed=5, choice=i, temperature=1.0) for i in range(3)]
    script = rig.executor.script
    expected = [oracle_tokens(request.prompt, s, 10, script, frozenset({EOS})) for s in specs]
    assert [answer.ids for answer in answers] == expected
    assert len({tuple(ids) for ids in expected}) == 3


def test_request_without_a_seed_draws_another_each_time() -> None:
    request = GenerationRequest(make_prompt(1, 20), stop=StopConditions(12))
    with running(make_rig()) as rig:
        assert ask(rig, request)[0].ids != ask(rig, request)[0].ids


def spelled(*texts: str, end: bool = True) -> Script:
    """Answers of requests 0, 1, ... spelled out byte by byte."""
    outputs = {
        RequestId(i): [*text.encode(), *([EOS] if end else [])] for i, text in enumerate(texts)
    }
    return Script(eos_id=EOS, outputs=outputs)


STOPPED = [
    ("one two three", ["two"], "one "),
    ("one two three", ["e tw", "three"], "on"),
    ("one twtwo", ["two"], "one tw"),
    ("never", ["nevermore"], "never"),
    ("aaab", ["aab", "b"], "a"),
    ("grüße 🎉 an alle", ["🎉"], "grüße "),
    ("漢字かな", ["かな!"], "漢字かな"),
]


@pytest.mark.parametrize(("text", "stop", "expected"), STOPPED)
async def test_stop_string_cuts_the_same_streamed_or_not(
    text: str, stop: list[str], expected: str
) -> None:
    with running(make_rig(script=spelled(text, text))) as rig:
        request = greedy("hello", 60, stop=stop)
        deltas = [delta async for delta in rig.engine.submit(request)]
        (whole,) = ask(rig, request)
        until(rig.idle)
    (streamed,) = collect(deltas)
    assert streamed.text == whole.text == expected
    assert streamed.finish is FinishReason.STOP
    assert all("\ufffd" not in delta.text for delta in deltas)
    if expected != text:
        assert len(streamed.ids) == len(expected.encode()), "tokens of the stop string were given"
    assert all(map(expected.startswith, accumulate(delta.text for delta in deltas)))


def test_half_matched_stop_string_survives_preemption() -> None:
    text = "the word is abracadabr" + "x" * 40
    script = Script(
        eos_id=EOS,
        outputs={RequestId(0): [*text.encode()], RequestId(1): [*b"y" * 60]},
    )
    capacity = make_capacity(kv_blocks=6, max_seqs=2, max_model_len=90)
    request = greedy("a" * 30, 55, ServiceClass.BATCH, stop=["abracadabra"])
    clock = WallClock()
    with running(make_rig(capacity, script, clock=clock, duration=SLOW)) as rig:
        slow = rig.engine.submit_sync(request)
        deltas = [next(slow)]
        while len("".join(delta.text for delta in deltas)) < 12:
            deltas.append(next(slow))
        (urgent,) = ask(rig, greedy("b" * 40, 30, ServiceClass.REALTIME))
        (answer,) = collect([*deltas, *slow])
    assert urgent.text == "y" * 30
    assert answer.text == text[:55]
    assert answer.usage is not None and answer.usage.recomputed > 0, "it was never preempted"


def test_end_of_sequence_is_counted_but_not_shown() -> None:
    with running(make_rig(script=spelled("hi"))) as rig:
        (answer,) = ask(rig, greedy("x", 20))
    assert answer.text == "hi" and [info.shown for info in answer.tokens] == [True, True, False]


def test_ignored_end_of_sequence_goes_on() -> None:
    with running(make_rig(script=spelled("hi"))) as rig:
        request = greedy("x", 9)
        (answer,) = ask(rig, replace(request, stop=replace(request.stop, ignore_eos=True)))
    assert len(answer.ids) == 9 and answer.finish is FinishReason.LENGTH


def test_answer_ends_where_the_model_length_does() -> None:
    capacity = make_capacity(kv_blocks=4, max_model_len=500)
    with running(make_rig(capacity)) as rig:
        assert rig.engine.max_model_len == 64
        (answer,) = ask(rig, greedy(make_prompt(1, 60), None))
        (longest,) = ask(rig, greedy(make_prompt(1, 63), 1000))
        with pytest.raises(NeverFitsError):
            rig.engine.submit_sync(greedy(make_prompt(1, 64), 1))
        assert ask(rig, greedy(make_prompt(2, 8), 3))[0].ids == oracle(rig, make_prompt(2, 8), 3)
    assert answer.finish is FinishReason.LENGTH and len(answer.ids) == 4
    assert longest.finish is FinishReason.LENGTH and len(longest.ids) == 1


async def test_bad_request_is_refused_at_once() -> None:
    with running(make_rig()) as rig:
        with pytest.raises(InvalidRequestError):
            rig.engine.submit(greedy([], 4))
        assert rig.engine.snapshot().idle


@pytest.mark.parametrize("tokens_first", [0, 1, 5])
async def test_closing_aborts_and_frees(tokens_first: int) -> None:
    rig = make_rig(make_capacity(max_seqs=1), clock=WallClock(), duration=SLOW)
    with running(rig):
        blocker = rig.engine.submit(greedy(make_prompt(1, 40), 400))
        waiting = rig.engine.submit(greedy(make_prompt(2, 40), 400))
        seen = 0
        async for delta in blocker:
            seen += len(delta.tokens)
            if seen >= tokens_first:
                break
        await waiting.aclose()
        await blocker.aclose()
        await blocker.aclose()
        steps = len(rig.executor.submitted)
        await asyncio.to_thread(until, rig.idle)
        assert len(rig.executor.submitted) <= steps + 3
        assert [delta async for delta in blocker] == []


async def test_dropped_generation_aborts_too() -> None:
    rig = make_rig(clock=WallClock(), duration=SLOW)
    with running(rig):
        generation = rig.engine.submit(greedy(make_prompt(1, 40), 400))
        assert (await anext(aiter(generation))).tokens
        del generation
        await asyncio.to_thread(until, rig.idle)


def test_deadline_ends_a_request() -> None:
    rig = make_rig(duration=SLOW)
    with running(rig):
        (answer,) = ask(rig, greedy(make_prompt(1, 16), 400, deadline_s=0.2))
        until(rig.idle)
    assert answer.finish is FinishReason.DEADLINE and 5 < len(answer.ids) < 20


def test_two_engines_in_one_process() -> None:
    with running(make_rig()) as one, running(make_rig()) as two:
        prompt = make_prompt(1, 30)
        assert ask(one, greedy(prompt))[0].ids == ask(two, greedy(prompt))[0].ids


def test_abort_while_swapped_frees_both_tiers() -> None:
    capacity = make_capacity(kv_blocks=6, host_blocks=6, max_seqs=2, max_model_len=90)
    with running(make_rig(capacity, clock=WallClock(), duration=SLOW)) as rig:
        batch = rig.engine.submit_sync(greedy(make_prompt(1, 40), 40, ServiceClass.BATCH))
        next(batch)
        urgent = rig.engine.submit_sync(greedy(make_prompt(2, 60), 30, ServiceClass.REALTIME))
        until(lambda: rig.engine.snapshot().host.used > 0)
        batch.close()
        (given_up,) = collect(list(batch))
        (answer,) = collect(list(urgent))
        until(rig.idle)
    assert given_up.finish is FinishReason.ABORT
    assert answer.ids == oracle(rig, make_prompt(2, 60), 30)


def test_idle_engine_takes_no_time() -> None:
    with running(make_rig()) as rig:
        ask(rig, greedy(make_prompt(1, 16), 4))
        until(rig.idle)
        before_s = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before_s < 0.03
