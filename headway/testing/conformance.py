"""What every executor must do, as checks that take a factory of fresh executors.

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
    def test_my_executor_conforms(check):
        check(lambda: MyExecutor(...))

Needed: 32 KV blocks, 8 host blocks, 4 sequences, 64 step tokens, 8 blocks of model length.
The oracle is the same request alone on a fresh executor; equal means equal to the bit, log
probabilities included.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from headway.core.plan import (
    Chunk,
    Executor,
    Open,
    Penalties,
    Sampled,
    SamplingSpec,
    StepPlan,
    Truncation,
)
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ExecutorError
from headway.testing.feeder import Feed, Feeder, missing

ExecutorFactory = Callable[[], Executor]
Check = Callable[[ExecutorFactory], None]

GREEDY = SamplingSpec(logprobs=3)
SEEDED = SamplingSpec(seed=11, temperature=1.0, logprobs=2)
PENALISED = SamplingSpec(
    seed=5,
    temperature=0.8,
    truncation=Truncation(top_k=20, top_p=0.95, min_p=0.01),
    penalties=Penalties(repetition=1.3, presence=0.4, frequency=0.2),
    bias=((3, 2.5), (4, -2.5)),
    logprobs=1,
)
SPECS = (GREEDY, SEEDED, PENALISED)
DECODED = 6


def check_chunking(factory: ExecutorFactory) -> None:
    """Tokens don't depend on how a prompt is cut into chunks."""
    for spec in SPECS:
        expected = _oracle(factory, 1, spec)
        for chunk_tokens in (1, 5, _block_size(factory), _block_size(factory) + 1):
            with _feeder(factory) as feeder:
                feed = feeder.add(1, _prompt(factory, 1), spec)
                feeder.prefill(feed, chunk_tokens=chunk_tokens)
                feeder.decode(feed, num_tokens=DECODED)
                _expect(feed, expected)


def check_batching(factory: ExecutorFactory) -> None:
    """Tokens don't depend on neighbours; prefill chunks and decode rows share a step."""
    with _feeder(factory) as feeder:
        feeds = [feeder.add(i, _prompt(factory, i), SPECS[i % 3]) for i in range(4)]
        feeder.prefill(feeds[0])
        while any(len(feed.output) <= DECODED for feed in feeds):
            rows = {f.request: min(7, missing(f)) for f in feeds if len(f.output) <= DECODED}
            feeder.step(rows)
        for i, feed in enumerate(feeds):
            _expect(feed, _oracle(factory, i, SPECS[i % 3]))


def check_stale_blocks(factory: ExecutorFactory) -> None:
    """A block's former content changes nothing."""
    with _feeder(factory) as feeder:
        for i in range(4):
            feed = feeder.add(i, _prompt(factory, i), GREEDY)
            feeder.prefill(feed)
            feeder.decode(feed, num_tokens=DECODED)
            _expect(feed, _oracle(factory, i, GREEDY))
            feeder.close(feed)


def check_swap(factory: ExecutorFactory) -> None:
    """A request goes on where it was after its blocks went to the host and came back elsewhere."""
    for spec in SPECS:
        with _feeder(factory) as feeder:
            feed, other = _two(feeder, factory, spec)
            feeder.prefill(feed)
            feeder.decode(feed, num_tokens=2)
            feeder.step({}, swap_out=[feed])
            feeder.prefill(other)
            feeder.step({feed.request: missing(feed), other.request: 1}, swap_in=[feed])
            feeder.decode(feed, other, num_tokens=DECODED - 3)
            _expect(feed, _oracle(factory, 1, spec))
            _expect(other, _oracle(factory, 2, GREEDY)[: len(other.output)])


def check_swap_mid_prefill(factory: ExecutorFactory) -> None:
    """The same when the prompt was only half computed."""
    with _feeder(factory) as feeder:
        feed, other = _two(feeder, factory, GREEDY)
        feeder.step({feed.request: missing(feed) // 2})
        feeder.step({}, swap_out=[feed])
        feeder.prefill(other)
        feeder.step({}, swap_in=[feed])
        feeder.prefill(feed)
        feeder.decode(feed, num_tokens=DECODED)
        _expect(feed, _oracle(factory, 1, GREEDY))


def check_swap_order(factory: ExecutorFactory) -> None:
    """Copies out come before anything is written: a plan may write the blocks it frees."""
    with _feeder(factory) as feeder:
        feed, other = _two(feeder, factory, GREEDY)
        feeder.prefill(feed)
        feeder.step({other.request: missing(other)}, swap_out=[feed])
        feeder.step({feed.request: 1, other.request: 1}, swap_in=[feed])
        feeder.decode(feed, other, num_tokens=DECODED - 1)
        _expect(feed, _oracle(factory, 1, GREEDY))
        _expect(other, _oracle(factory, 2, GREEDY))


def check_recompute(factory: ExecutorFactory) -> None:
    """Sampling state survives a dropped cache: output is replayed in chunks, counted once."""
    for spec in SPECS:
        with _feeder(factory) as feeder:
            feed = feeder.add(1, _prompt(factory, 1), spec)
            for chunk_tokens in (64, 9, 1):
                feeder.prefill(feed, chunk_tokens=chunk_tokens)
                feeder.decode(feed)
                feeder.drop(feed)
            _expect(feed, _oracle(factory, 1, spec)[: len(feed.output)])


def check_shared_prefix(factory: ExecutorFactory) -> None:
    """Full blocks may be read by two requests at once."""
    size = _block_size(factory)
    with _feeder(factory) as feeder:
        first = feeder.add(1, _prompt(factory, 1), GREEDY)
        feeder.prefill(first)
        second = feeder.add(2, _prompt(factory, 1), GREEDY)
        feeder.share(first, second, (len(second.prompt) - 1) // size)
        feeder.step({first.request: 1, second.request: missing(second)})
        feeder.decode(first, second, num_tokens=DECODED - 1)
        feeder.decode(second)
        _expect(first, _oracle(factory, 1, GREEDY))
        _expect(second, _oracle(factory, 1, GREEDY))


def check_interrupts(factory: ExecutorFactory) -> None:
    """An interrupted step samples nothing, and the same chunks done again give the same."""
    for spec in SPECS:
        with _feeder(factory, interrupt=True) as feeder:
            feeds = [feeder.add(i, _prompt(factory, i), spec) for i in range(2)]
            for _ in range(DECODED + 1):
                feeder.step({f.request: missing(f) for f in feeds})
            for i, feed in enumerate(feeds):
                _expect(feed, _oracle(factory, i, spec))


def check_interrupts_keep(factory: ExecutorFactory) -> None:
    """An interrupt that leaves the first chunk changes neither it nor those done again."""
    for spec in SPECS:
        with _feeder(factory, interrupt=True, kept=1) as feeder:
            feeds = [feeder.add(i, _prompt(factory, i), spec) for i in range(2)]
            for _ in range(DECODED + 1):
                feeder.step({f.request: missing(f) for f in feeds})
            for i, feed in enumerate(feeds):
                _expect(feed, _oracle(factory, i, spec))


def check_seeds(factory: ExecutorFactory) -> None:
    """Seed and choice key the generator: equal ones repeat, others differ."""
    runs = [
        _oracle(factory, 1, spec, num_tokens=16)
        for spec in (SEEDED, SEEDED, replace(SEEDED, seed=12), replace(SEEDED, choice=1))
    ]
    assert runs[0] == runs[1], "one seed gave two answers"
    tokens = [[s.token for s in run] for run in runs]
    assert tokens[0] != tokens[2], "another seed gave the same tokens"
    assert tokens[0] != tokens[3], "another choice gave the same tokens"


def check_top_k_one(factory: ExecutorFactory) -> None:
    """Keeping only the most likely token is greedy decoding."""
    narrow = replace(SEEDED, truncation=Truncation(top_k=1), logprobs=-1)
    greedy = [s.token for s in _oracle(factory, 1, GREEDY)]
    assert [s.token for s in _oracle(factory, 1, narrow)] == greedy


def check_bias(factory: ExecutorFactory) -> None:
    """A large bias forces a token, a large negative one forbids it."""
    forced = _oracle(factory, 1, SamplingSpec(bias=((7, 1e6),)))
    assert {s.token for s in forced} == {7}, "a bias of 1e6 didn't force token 7"
    first = _oracle(factory, 1, GREEDY)[0].token
    without = _oracle(factory, 1, SamplingSpec(bias=((first, -1e6),)))
    assert without[0].token != first, "a bias of -1e6 didn't forbid a token"


def check_logprobs(factory: ExecutorFactory) -> None:
    """Log probabilities have the asked-for count, order and sign, and are raw."""
    assert all(s.logprobs is None for s in _oracle(factory, 1, SamplingSpec()))
    for top in (0, 1, 5):
        for sampled in _oracle(factory, 1, SamplingSpec(logprobs=top)):
            assert sampled.logprobs is not None, "log probabilities were asked for"
            values = [value for _, value in sampled.logprobs.top]
            assert len(values) == top and values == sorted(values, reverse=True)
            assert all(value <= 0 for value in (*values, sampled.logprobs.logprob))
            listed = dict(sampled.logprobs.top).get(sampled.token, sampled.logprobs.logprob)
            assert listed == sampled.logprobs.logprob, "a token has two log probabilities"
    plain = _oracle(factory, 1, SamplingSpec(logprobs=3))[0].logprobs
    biased = _oracle(factory, 1, SamplingSpec(logprobs=3, bias=((7, 1e6),)))[0].logprobs
    assert plain is not None and biased is not None
    assert plain.top == biased.top, "log probabilities are not raw"


def check_errors_isolated(factory: ExecutorFactory) -> None:
    """Logits that aren't numbers (here by a NaN bias) end one request; its neighbours go on."""
    broken = SamplingSpec(bias=((2, math.nan),))
    with _feeder(factory) as feeder:
        feed = feeder.add(1, _prompt(factory, 1), GREEDY)
        feeder.prefill(feed)
        bad = feeder.add(2, _prompt(factory, 2), broken)
        feeder.step({feed.request: 1, bad.request: missing(bad)})
        assert bad.error and not bad.output, "NaN logits gave a token and no error"
        feeder.close(bad)
        feeder.decode(feed, num_tokens=DECODED - 1)
        _expect(feed, _oracle(factory, 1, GREEDY))


def check_bad_plans(factory: ExecutorFactory) -> None:
    """Plans that break the contract raise ExecutorError, and change nothing for the others."""
    with _feeder(factory) as feeder:
        feed = feeder.add(1, _prompt(factory, 1), GREEDY)
        feeder.prefill(feed)
        for name, plan in _bad_plans(feeder, feed):
            try:
                feeder.executor.submit(plan, {}).result()
            except ExecutorError:
                continue
            raise AssertionError(f"a plan with {name} was carried out")
        feeder.decode(feed, num_tokens=DECODED)
        _expect(feed, _oracle(factory, 1, GREEDY))


def check_closed_requests(factory: ExecutorFactory) -> None:
    """A request is unknown after its close."""
    with _feeder(factory) as feeder:
        feed, other = _two(feeder, factory, GREEDY)
        feeder.prefill(feed, other)
        feeder.close(feed)
        feeder.step({other.request: 1})
        try:
            feeder.step({feed.request: 3})
        except ExecutorError:
            return
        raise AssertionError("a closed request was computed")


def check_timing(factory: ExecutorFactory) -> None:
    """Every phase's seconds are finite and not negative."""
    with _feeder(factory) as feeder:
        feed = feeder.add(1, _prompt(factory, 1), GREEDY)
        timing = feeder.step({feed.request: 4}).timing
        seconds = (timing.copy_out_s, timing.copy_in_s, timing.compute_s)
        assert all(0 <= value < math.inf for value in seconds), f"odd timing: {timing}"


def check_handles(factory: ExecutorFactory) -> None:
    """A result can be read twice, and a late interrupt does nothing."""
    with _feeder(factory) as feeder:
        prompt = _prompt(factory, 1)
        chunk = Chunk(RequestId(1), prompt[:4], 0, [BlockId(0)], 1, False)
        opens = (Open(RequestId(1), prompt, GREEDY),)
        handle = feeder.executor.submit(StepPlan(0, Lane.UNIFIED, opens, chunks=(chunk,)), {})
        result = handle.result()
        assert handle.done() and not result.interrupted
        handle.interrupt()
        assert handle.result() == result


def check_close(factory: ExecutorFactory) -> None:
    """Closing twice is allowed; a plan after it is not."""
    executor = factory()
    executor.close()
    executor.close()
    prompt = [1] * 4
    chunk = Chunk(RequestId(1), prompt, 0, [BlockId(0)], 1, False)
    plan = StepPlan(0, Lane.UNIFIED, (Open(RequestId(1), prompt, SamplingSpec()),), chunks=(chunk,))
    try:
        executor.submit(plan, {}).result()
    except ExecutorError:
        return
    raise AssertionError("a closed executor took a plan")


def check_masks(factory: ExecutorFactory) -> None:
    """Only tokens a mask allows are sampled. For executors that support grammars."""
    executor = factory()
    prompt = _prompt(factory, 1)[:4]
    mask = bytearray((executor.capacity.vocab_size + 7) // 8)
    mask[1] = 0b10
    request = RequestId(1)
    chunk = Chunk(request, prompt, 0, [BlockId(0)], 1, True)
    plan = StepPlan(0, Lane.UNIFIED, (Open(request, prompt, GREEDY),), chunks=(chunk,))
    assert executor.submit(plan, {request: bytes(mask)}).result().sampled[0].token == 9
    executor.close()


CHECKS: tuple[Check, ...] = (
    check_chunking,
    check_batching,
    check_stale_blocks,
    check_swap,
    check_swap_mid_prefill,
    check_swap_order,
    check_recompute,
    check_shared_prefix,
    check_interrupts,
    check_interrupts_keep,
    check_seeds,
    check_top_k_one,
    check_bias,
    check_logprobs,
    check_errors_isolated,
    check_bad_plans,
    check_closed_requests,
    check_timing,
    check_handles,
    check_close,
)


@contextmanager
def _feeder(factory: ExecutorFactory, interrupt: bool = False, kept: int = 0) -> Iterator[Feeder]:
    executor = factory()
    try:
        yield Feeder(executor, interrupt, kept)
    finally:
        executor.close()


def _oracle(
    factory: ExecutorFactory, request: int, spec: SamplingSpec, num_tokens: int = DECODED + 1
) -> list[Sampled]:
    """What a request samples alone, its prompt in one chunk."""
    with _feeder(factory) as feeder:
        feed = feeder.add(request, _prompt(factory, request), spec)
        feeder.prefill(feed)
        feeder.decode(feed, num_tokens=num_tokens - 1)
        return feed.sampled


def _expect(feed: Feed, expected: Sequence[Sampled]) -> None:
    got = [(s.token, s.logprobs) for s in feed.sampled]
    want = [(s.token, s.logprobs) for s in expected]
    assert got == want, f"request {feed.request}: {got} is not the oracle's {want}"


def _two(feeder: Feeder, factory: ExecutorFactory, spec: SamplingSpec) -> tuple[Feed, Feed]:
    return (
        feeder.add(1, _prompt(factory, 1), spec),
        feeder.add(2, _prompt(factory, 2), GREEDY),
    )


def _block_size(factory: ExecutorFactory) -> int:
    executor = factory()
    executor.close()
    return executor.capacity.block_size


def _prompt(factory: ExecutorFactory, request: int) -> list[int]:
    """Two blocks and a bit, different for each request."""
    executor = factory()
    executor.close()
    length = 2 * executor.capacity.block_size + 3 + request
    vocab_size = executor.capacity.vocab_size
    return [(request * 37 + i * i * 11 + i * 5 + 1) % vocab_size for i in range(length)]


def _bad_plans(feeder: Feeder, feed: Feed) -> Iterator[tuple[str, StepPlan]]:
    """Plans with one fault each, for an executor on which `feed` has been prefilled."""
    capacity = feeder.executor.capacity
    token = feed.tokens[-1:]
    far = BlockId(capacity.kv_blocks - 1)
    good = Chunk(feed.request, token, feed.computed, feed.blocks, len(feed.blocks), True)
    other = Open(RequestId(99), [1, 2, 3], GREEDY)

    def plan(*chunks: Chunk, opens: tuple[Open, ...] = ()) -> StepPlan:
        return StepPlan(1000, Lane.UNIFIED, opens, chunks=chunks)

    yield "an unknown request", plan(good._replace(request=RequestId(77)))
    yield "a block outside the pool", plan(good._replace(blocks=[BlockId(capacity.kv_blocks)] * 9))
    yield "too few blocks", plan(good._replace(num_blocks=1))
    yield "a token outside the vocabulary", plan(good._replace(tokens=[capacity.vocab_size]))
    yield "an empty chunk", plan(good._replace(tokens=[]))
    yield "a negative position", plan(good._replace(start=-1))
    yield "two chunks of a request", plan(good, good)
    shared = Chunk(RequestId(99), [1, 2, 3], 0, [feed.blocks[-1]], 1, True)
    yield "two writers of a block", plan(good, shared, opens=(other,))
    long = good._replace(start=capacity.max_model_len, blocks=[far] * 10_000, num_blocks=10_000)
    yield "positions past the model's length", plan(long)
