"""Sampling against plain definitions, on logits the executor really produced."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from headway import _native
from headway.core.plan import Penalties, SamplingSpec, Truncation
from tests.native.helpers import OPTIONS, PATHS, bench
from tests.reference import Floats
from tests.tiny import LLAMA, tiny_weights, tokens

WEIGHTS = tiny_weights(scale=0.5)
PROMPT = tokens(20)
VOCAB = LLAMA.vocab
DRAWS = 400


def logits_of_prompt() -> Floats:
    """Raw logits after the prompt."""
    with bench(WEIGHTS) as it:
        run = it.run(PROMPT)
        logits: Floats = it.step((run, len(PROMPT))).logits[0].astype(np.float64)
        return logits


LOGITS = logits_of_prompt()


def weights_of(logits: Floats, temperature: float = 1.0) -> Floats:
    """Unnormalised probabilities, the likeliest 1."""
    weights: Floats = np.exp((logits - logits.max()) / temperature)
    return weights


def drawn(spec: SamplingSpec, isa: str = "auto", count: int = DRAWS) -> Counter[int]:
    """First tokens of many choices of one prompt."""
    options = replace(OPTIONS, isa=isa, max_seqs=64, max_step_tokens=2048, kv_blocks=300)
    seen: Counter[int] = Counter()
    with bench(WEIGHTS, options) as it:
        while seen.total() < count:
            start = seen.total()
            runs = [
                it.run(PROMPT, replace(spec, choice=start + i), room=0)
                for i in range(min(50, count - start))
            ]
            for sampled in it.step(*((run, len(PROMPT)) for run in runs)).result.sampled:
                seen[sampled.token] += 1
            for run in runs:
                it.free += run.blocks
    return seen


def top_k(logits: Floats, k: int) -> set[int]:
    """The k likeliest tokens, ties by smaller id."""
    return {int(i) for i in np.lexsort((np.arange(len(logits)), -logits))[:k]}


def nucleus(weights: Floats, p: float) -> set[int]:
    """The smallest set of likeliest tokens that reaches p."""
    order = np.lexsort((np.arange(len(weights)), -weights))
    mass = np.cumsum(weights[order]) / weights.sum()
    return {int(i) for i in order[: int(np.searchsorted(mass, p)) + 1]}


def expect_distribution(seen: Counter[int], probabilities: Floats) -> None:
    """Chi-squared, far out in the tail so that a sound sampler never fails."""
    total = seen.total()
    assert all(probabilities[token] > 0 for token in seen)
    expected = probabilities / probabilities.sum() * total
    likely = expected >= 5
    rest_seen = total - sum(seen[int(i)] for i in np.flatnonzero(likely))
    rest_expected = expected[~likely].sum()
    observed = np.array([seen[int(i)] for i in np.flatnonzero(likely)] + [rest_seen])
    wanted = np.append(expected[likely], max(rest_expected, 1e-9))
    if rest_expected < 1e-6:
        observed, wanted = observed[:-1], wanted[:-1]
    chi2 = ((observed - wanted) ** 2 / wanted).sum()
    degrees = len(wanted) - 1
    assert chi2 < degrees + 6 * math.sqrt(2 * degrees) + 6


@pytest.mark.parametrize("isa", PATHS)
def test_plain_sampling_follows_the_softmax(isa: str) -> None:
    seen = drawn(SamplingSpec(seed=3, temperature=0.7), isa)
    expect_distribution(seen, weights_of(LOGITS, 0.7))


@pytest.mark.parametrize("k", [1, 2, 7, 50, VOCAB + 5])
def test_top_k(k: int) -> None:
    seen = drawn(SamplingSpec(seed=4, temperature=1.5, truncation=Truncation(top_k=k)))
    kept = np.zeros(VOCAB)
    for token in top_k(LOGITS, k):
        kept[token] = weights_of(LOGITS, 1.5)[token]
    expect_distribution(seen, kept)


@pytest.mark.parametrize(("p", "temperature"), [(0.1, 1.0), (0.5, 1.0), (0.9, 0.5), (0.97, 30.0)])
def test_top_p(p: float, temperature: float) -> None:
    """The last case is nearly flat: the set is most of the vocabulary."""
    seen = drawn(SamplingSpec(seed=5, temperature=temperature, truncation=Truncation(top_p=p)))
    weights = weights_of(LOGITS, temperature)
    inside = nucleus(weights, p)
    expect_distribution(seen, np.where([i in inside for i in range(VOCAB)], weights, 0.0))


def test_truncations_apply_in_order() -> None:
    """top_k first, then top_p of what it left, then min_p."""
    truncation = Truncation(top_k=12, top_p=0.8, min_p=0.3)
    seen = drawn(SamplingSpec(seed=6, temperature=1.2, truncation=truncation))
    weights = weights_of(LOGITS, 1.2)
    kept = np.where([i in top_k(LOGITS, 12) for i in range(VOCAB)], weights, 0.0)
    kept = np.where([i in nucleus(kept, 0.8) for i in range(VOCAB)], kept, 0.0)
    expect_distribution(seen, np.where(kept >= 0.3, kept, 0.0))


@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_min_p(top_p: float) -> None:
    truncation = Truncation(min_p=0.2, top_p=top_p)
    seen = drawn(SamplingSpec(seed=7, temperature=1.2, truncation=truncation))
    weights = weights_of(LOGITS, 1.2)
    inside = nucleus(weights, top_p)
    kept = np.where([i in inside for i in range(VOCAB)], weights, 0.0)
    expect_distribution(seen, np.where(kept >= 0.2, kept, 0.0))


def test_a_tiny_temperature_is_greedy() -> None:
    for temperature in (0.0, 1e-30, 1e-6, 1e-4):
        assert drawn(SamplingSpec(seed=1, temperature=temperature), count=5) == {
            int(LOGITS.argmax()): 5
        }


def test_greedy_ties_go_to_the_smaller_id() -> None:
    likely = int(LOGITS.argmax())
    gap = float(np.float32(1e6))
    for tied in ((17, 40), (40, 190), (3, 202)):
        bias = tuple((token, gap * 1e3) for token in tied)  # so large that the logit is lost
        assert drawn(SamplingSpec(bias=bias), count=1) == {min(tied): 1}
    assert drawn(SamplingSpec(), count=1) == {likely: 1}


@pytest.mark.parametrize("isa", PATHS)
def test_log_probabilities_are_raw(isa: str) -> None:
    spec = SamplingSpec(
        seed=9, temperature=2.0, logprobs=5, bias=((3, 50.0),), truncation=Truncation(top_k=4)
    )
    with bench(WEIGHTS, replace(OPTIONS, isa=isa)) as it:
        run = it.run(PROMPT, spec)
        traced = it.step((run, len(PROMPT)))
    logits = traced.logits[0].astype(np.float64)
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    logprobs = traced.result.sampled[0].logprobs
    assert logprobs is not None and traced.result.sampled[0].token == 3
    assert logprobs.logprob == pytest.approx(expected[3], abs=1e-5)
    assert [token for token, _ in logprobs.top] == list(np.argsort(-expected)[:5])
    assert [v for _, v in logprobs.top] == pytest.approx(np.sort(expected)[::-1][:5], abs=1e-5)


def penalised(logits: Floats, prompt: list[int], output: list[int], p: Penalties) -> Floats:
    """The definitions of headway.core.plan.Penalties."""
    out = logits.copy()
    for token in set(prompt) | set(output):
        out[token] = out[token] / p.repetition if out[token] > 0 else out[token] * p.repetition
    for token, count in Counter(output).items():
        out[token] -= p.presence + p.frequency * count
    return out


@pytest.mark.parametrize(
    "penalties",
    [
        Penalties(repetition=1.8),
        Penalties(presence=1.5),
        Penalties(frequency=0.7),
        Penalties(1.3, 0.5, 0.4),
        Penalties(repetition=0.7, presence=-1.0),
    ],
)
def test_penalties_follow_the_tokens_so_far(penalties: Penalties) -> None:
    with bench(WEIGHTS) as it:
        run = it.run(PROMPT, SamplingSpec(penalties=penalties), room=64)
        it.decode(run, 40)
        for i, logits in enumerate(run.logits):
            output = run.tokens[len(PROMPT) : len(PROMPT) + i]
            expected = penalised(logits.astype(np.float64), PROMPT, output, penalties)
            assert run.tokens[len(PROMPT) + i] == expected.argmax()


def test_penalties_are_the_same_after_a_recompute_in_odd_chunks() -> None:
    spec = SamplingSpec(seed=2, temperature=0.9, penalties=Penalties(1.4, 0.6, 0.3))
    with bench(WEIGHTS) as it:
        plain = it.run(PROMPT, spec, room=64)
        it.decode(plain, 30)
    with bench(WEIGHTS) as it:
        run = it.run(PROMPT, spec, room=64)
        for _ in range(6):
            it.decode(run, 5)
            run.computed = 0
            while len(run.tokens) - run.computed > 3:
                it.step((run, min(7, len(run.tokens) - run.computed - 3)))
    assert run.tokens == plain.tokens


def test_a_mask_allows_only_its_tokens() -> None:
    allowed = [5, 64, 202]
    mask = bytearray((VOCAB + 7) // 8)
    for token in allowed:
        mask[token // 8] |= 1 << token % 8
    for spec in (SamplingSpec(), SamplingSpec(temperature=1.0, truncation=Truncation(top_p=0.9))):
        with bench(WEIGHTS) as it:
            run = it.run(PROMPT, spec)
            masks = {run.request: bytes(mask)}
            token = it.step((run, len(PROMPT)), masks=masks).result.sampled[0].token
            assert token in allowed
            if spec.temperature == 0:
                assert token == max(allowed, key=lambda t: LOGITS[t])


def test_a_mask_that_allows_nothing_fails_that_request_alone() -> None:
    with bench(WEIGHTS) as it:
        first, second = it.run(PROMPT), it.run(PROMPT)
        masks = {first.request: bytes((VOCAB + 7) // 8)}
        result = it.step((first, 20), (second, 20), masks=masks).result
    assert [e.request for e in result.errors] == [first.request]
    assert [s.request for s in result.sampled] == [second.request]


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_a_bias_beyond_numbers_fails_that_request_alone(value: float) -> None:
    hot = SamplingSpec(temperature=1.0, truncation=Truncation(top_p=0.5), bias=((3, value),) * 2)
    with bench(WEIGHTS) as it:
        first, second = it.run(PROMPT, hot), it.run(PROMPT)
        result = it.step((first, 20), (second, 20)).result
    assert [e.request for e in result.errors] == [first.request]
    assert [s.token for s in result.sampled] == [LOGITS.argmax()]


@pytest.mark.parametrize("isa", PATHS)
def test_nan_in_one_cache_fails_that_request_alone(isa: str) -> None:
    with bench(WEIGHTS, replace(OPTIONS, isa=isa)) as it:
        bad, good = it.run(PROMPT), it.run(PROMPT)
        it.step((bad, 19), (good, 19))
        it.executor.native.fill_block(False, bad.blocks[0], 0x7E00)
        result = it.step((bad, 1), (good, 1)).result
    assert [e.request for e in result.errors] == [bad.request]
    assert [s.token for s in result.sampled] == [LOGITS.argmax()]


def test_uniform_numbers_are_uniform_and_keyed() -> None:
    numbers = np.array([_native.uniform(1, 0, i) for i in range(4000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.histogram(numbers, 10, (0, 1))[0].min() > 300
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.06
    assert len({_native.uniform(*key) for key in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))}) == 4
    # Philox 4x32-10 of key 0, counter 0: published first words 6627e8d5 e169c58d.
    assert _native.uniform(0, 0, 0) == ((0x6627E8D5 << 32 | 0xE169C58D) >> 11) / 2**53


def test_seeds_may_be_any_integer() -> None:
    with bench(WEIGHTS) as it:
        for seed in (-1, 2**64 + 5, 10**30):
            run = it.run(PROMPT, SamplingSpec(seed=seed, temperature=1.0), room=0)
            assert len(it.step((run, len(PROMPT))).result.sampled) == 1
