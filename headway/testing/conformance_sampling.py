"""The conformance suite's checks of sampling: seeds, bias, log probabilities, masks."""

import math
from dataclasses import replace

from headway.core.plan import Chunk, Open, SamplingSpec, StepPlan, Truncation
from headway.core.types import BlockId, Lane, RequestId
from headway.testing.alone import (
    DECODED,
    GREEDY,
    SEEDED,
    Check,
    ExecutorFactory,
    expect,
    feeding,
    oracle,
    prompt_of,
)
from headway.testing.feeder import missing


def check_seeds(factory: ExecutorFactory) -> None:
    """Seed and choice key the generator: equal ones repeat, others differ."""
    runs = [
        oracle(factory, 1, spec, num_tokens=16)
        for spec in (SEEDED, SEEDED, replace(SEEDED, seed=12), replace(SEEDED, choice=1))
    ]
    assert runs[0] == runs[1], "one seed gave two answers"
    tokens = [[s.token for s in run] for run in runs]
    assert tokens[0] != tokens[2], "another seed gave the same tokens"
    assert tokens[0] != tokens[3], "another choice gave the same tokens"


def check_top_k_one(factory: ExecutorFactory) -> None:
    """Keeping only the most likely token is greedy decoding."""
    narrow = replace(SEEDED, truncation=Truncation(top_k=1), logprobs=-1)
    greedy = [s.token for s in oracle(factory, 1, GREEDY)]
    assert [s.token for s in oracle(factory, 1, narrow)] == greedy


def check_bias(factory: ExecutorFactory) -> None:
    """A large bias forces a token, a large negative one forbids it."""
    forced = oracle(factory, 1, SamplingSpec(bias=((7, 1e6),)))
    assert {s.token for s in forced} == {7}, "a bias of 1e6 didn't force token 7"
    first = oracle(factory, 1, GREEDY)[0].token
    without = oracle(factory, 1, SamplingSpec(bias=((first, -1e6),)))
    assert without[0].token != first, "a bias of -1e6 didn't forbid a token"


def check_logprobs(factory: ExecutorFactory) -> None:
    """Log probabilities have the asked-for count, order and sign, and are raw."""
    assert all(s.logprobs is None for s in oracle(factory, 1, SamplingSpec()))
    for top in (0, 1, 5):
        for sampled in oracle(factory, 1, SamplingSpec(logprobs=top)):
            assert sampled.logprobs is not None, "log probabilities were asked for"
            values = [value for _, value in sampled.logprobs.top]
            assert len(values) == top and values == sorted(values, reverse=True)
            assert all(value <= 0 for value in (*values, sampled.logprobs.logprob))
            listed = dict(sampled.logprobs.top).get(sampled.token, sampled.logprobs.logprob)
            assert listed == sampled.logprobs.logprob, "a token has two log probabilities"
    plain = oracle(factory, 1, SamplingSpec(logprobs=3))[0].logprobs
    biased = oracle(factory, 1, SamplingSpec(logprobs=3, bias=((7, 1e6),)))[0].logprobs
    assert plain is not None and biased is not None
    assert plain.top == biased.top, "log probabilities are not raw"


def check_errors_isolated(factory: ExecutorFactory) -> None:
    """Logits that aren't numbers (here by a NaN bias) end one request; its neighbours go on."""
    broken = SamplingSpec(bias=((2, math.nan),))
    with feeding(factory) as feeder:
        feed = feeder.add(1, prompt_of(factory, 1), GREEDY)
        feeder.prefill(feed)
        bad = feeder.add(2, prompt_of(factory, 2), broken)
        feeder.step({feed.request: 1, bad.request: missing(bad)})
        assert bad.error and not bad.output, "NaN logits gave a token and no error"
        feeder.close(bad)
        feeder.decode(feed, num_tokens=DECODED - 1)
        expect(feed, oracle(factory, 1, GREEDY))


def check_masks(factory: ExecutorFactory) -> None:
    """Only tokens a mask allows are sampled. For executors that support grammars."""
    executor = factory()
    prompt = prompt_of(factory, 1)[:4]
    mask = bytearray((executor.capacity.vocab_size + 7) // 8)
    mask[1] = 0b10
    request = RequestId(1)
    chunk = Chunk(request, prompt, 0, [BlockId(0)], 1, True)
    plan = StepPlan(0, Lane.UNIFIED, (Open(request, prompt, GREEDY),), chunks=(chunk,))
    assert executor.submit(plan, {request: bytes(mask)}).result().sampled[0].token == 9
    executor.close()


SAMPLING_CHECKS: tuple[Check, ...] = (
    check_seeds,
    check_top_k_one,
    check_bias,
    check_logprobs,
    check_errors_isolated,
)
