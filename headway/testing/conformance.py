"""What every executor must do, as checks that take a factory of fresh executors.

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
    def test_my_executor_conforms(check):
        check(lambda: MyExecutor(...))

Needed: 32 KV blocks, 8 host blocks, 4 sequences, 64 step tokens, 8 blocks of model length.
The oracle is the same request alone on a fresh executor; equal means equal to the bit, log
probabilities included. For executors that support grammars: `check_masks`, too.
"""

import math
from collections.abc import Iterator

from headway.core.plan import Chunk, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ExecutorError
from headway.testing.alone import (
    DECODED,
    GREEDY,
    SPECS,
    Check,
    ExecutorFactory,
    block_size,
    expect,
    feeding,
    oracle,
    prompt_of,
    two,
)
from headway.testing.conformance_sampling import (
    SAMPLING_CHECKS,
    check_masks,
)
from headway.testing.feeder import Feed, Feeder, missing

__all__ = ["CHECKS", "Check", "ExecutorFactory", "check_masks"]


def check_chunking(factory: ExecutorFactory) -> None:
    """Tokens don't depend on how a prompt is cut into chunks."""
    for spec in SPECS:
        expected = oracle(factory, 1, spec)
        for chunk_tokens in (1, 5, block_size(factory), block_size(factory) + 1):
            with feeding(factory) as feeder:
                feed = feeder.add(1, prompt_of(factory, 1), spec)
                feeder.prefill(feed, chunk_tokens=chunk_tokens)
                feeder.decode(feed, num_tokens=DECODED)
                expect(feed, expected)


def check_batching(factory: ExecutorFactory) -> None:
    """Tokens don't depend on neighbours; prefill chunks and decode rows share a step."""
    with feeding(factory) as feeder:
        feeds = [feeder.add(i, prompt_of(factory, i), SPECS[i % 3]) for i in range(4)]
        feeder.prefill(feeds[0])
        while any(len(feed.output) <= DECODED for feed in feeds):
            rows = {f.request: min(7, missing(f)) for f in feeds if len(f.output) <= DECODED}
            feeder.step(rows)
        for i, feed in enumerate(feeds):
            expect(feed, oracle(factory, i, SPECS[i % 3]))


def check_stale_blocks(factory: ExecutorFactory) -> None:
    """A block's former content changes nothing."""
    with feeding(factory) as feeder:
        for i in range(4):
            feed = feeder.add(i, prompt_of(factory, i), GREEDY)
            feeder.prefill(feed)
            feeder.decode(feed, num_tokens=DECODED)
            expect(feed, oracle(factory, i, GREEDY))
            feeder.close(feed)


def check_swap(factory: ExecutorFactory) -> None:
    """A request goes on where it was after its blocks went to the host and came back elsewhere."""
    for spec in SPECS:
        with feeding(factory) as feeder:
            feed, other = two(feeder, factory, spec)
            feeder.prefill(feed)
            feeder.decode(feed, num_tokens=2)
            feeder.step({}, swap_out=[feed])
            feeder.prefill(other)
            feeder.step({feed.request: missing(feed), other.request: 1}, swap_in=[feed])
            feeder.decode(feed, other, num_tokens=DECODED - 3)
            expect(feed, oracle(factory, 1, spec))
            expect(other, oracle(factory, 2, GREEDY)[: len(other.output)])


def check_swap_mid_prefill(factory: ExecutorFactory) -> None:
    """The same when the prompt was only half computed."""
    with feeding(factory) as feeder:
        feed, other = two(feeder, factory, GREEDY)
        feeder.step({feed.request: missing(feed) // 2})
        feeder.step({}, swap_out=[feed])
        feeder.prefill(other)
        feeder.step({}, swap_in=[feed])
        feeder.prefill(feed)
        feeder.decode(feed, num_tokens=DECODED)
        expect(feed, oracle(factory, 1, GREEDY))


def check_swap_order(factory: ExecutorFactory) -> None:
    """Copies out come before anything is written: a plan may write the blocks it frees."""
    with feeding(factory) as feeder:
        feed, other = two(feeder, factory, GREEDY)
        feeder.prefill(feed)
        feeder.step({other.request: missing(other)}, swap_out=[feed])
        feeder.step({feed.request: 1, other.request: 1}, swap_in=[feed])
        feeder.decode(feed, other, num_tokens=DECODED - 1)
        expect(feed, oracle(factory, 1, GREEDY))
        expect(other, oracle(factory, 2, GREEDY))


def check_recompute(factory: ExecutorFactory) -> None:
    """Sampling state survives a dropped cache: output is replayed in chunks, counted once."""
    for spec in SPECS:
        with feeding(factory) as feeder:
            feed = feeder.add(1, prompt_of(factory, 1), spec)
            for chunk_tokens in (64, 9, 1):
                feeder.prefill(feed, chunk_tokens=chunk_tokens)
                feeder.decode(feed)
                feeder.drop(feed)
            expect(feed, oracle(factory, 1, spec)[: len(feed.output)])


def check_shared_prefix(factory: ExecutorFactory) -> None:
    """Full blocks may be read by two requests at once."""
    size = block_size(factory)
    with feeding(factory) as feeder:
        first = feeder.add(1, prompt_of(factory, 1), GREEDY)
        feeder.prefill(first)
        second = feeder.add(2, prompt_of(factory, 1), GREEDY)
        feeder.share(first, second, (len(second.prompt) - 1) // size)
        feeder.step({first.request: 1, second.request: missing(second)})
        feeder.decode(first, second, num_tokens=DECODED - 1)
        feeder.decode(second)
        expect(first, oracle(factory, 1, GREEDY))
        expect(second, oracle(factory, 1, GREEDY))


def check_interrupts(factory: ExecutorFactory) -> None:
    """An interrupted step samples nothing, and the same chunks done again give the same."""
    for spec in SPECS:
        with feeding(factory, interrupt=True) as feeder:
            feeds = [feeder.add(i, prompt_of(factory, i), spec) for i in range(2)]
            for _ in range(DECODED + 1):
                feeder.step({f.request: missing(f) for f in feeds})
            for i, feed in enumerate(feeds):
                expect(feed, oracle(factory, i, spec))


def check_interrupts_keep(factory: ExecutorFactory) -> None:
    """An interrupt that leaves the first chunk changes neither it nor those done again."""
    for spec in SPECS:
        with feeding(factory, interrupt=True, kept=1) as feeder:
            feeds = [feeder.add(i, prompt_of(factory, i), spec) for i in range(2)]
            for _ in range(DECODED + 1):
                feeder.step({f.request: missing(f) for f in feeds})
            for i, feed in enumerate(feeds):
                expect(feed, oracle(factory, i, spec))


def check_bad_plans(factory: ExecutorFactory) -> None:
    """Plans that break the contract raise ExecutorError, and change nothing for the others."""
    with feeding(factory) as feeder:
        feed = feeder.add(1, prompt_of(factory, 1), GREEDY)
        feeder.prefill(feed)
        for name, plan in _bad_plans(feeder, feed):
            try:
                feeder.executor.submit(plan, {}).result()
            except ExecutorError:
                continue
            raise AssertionError(f"a plan with {name} was carried out")
        feeder.decode(feed, num_tokens=DECODED)
        expect(feed, oracle(factory, 1, GREEDY))


def check_closed_requests(factory: ExecutorFactory) -> None:
    """A request is unknown after its close."""
    with feeding(factory) as feeder:
        feed, other = two(feeder, factory, GREEDY)
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
    with feeding(factory) as feeder:
        feed = feeder.add(1, prompt_of(factory, 1), GREEDY)
        timing = feeder.step({feed.request: 4}).timing
        seconds = (timing.copy_out_s, timing.copy_in_s, timing.compute_s)
        assert all(0 <= value < math.inf for value in seconds), f"odd timing: {timing}"


def check_handles(factory: ExecutorFactory) -> None:
    """A result can be read twice, and a late interrupt does nothing."""
    with feeding(factory) as feeder:
        prompt = prompt_of(factory, 1)
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
    *SAMPLING_CHECKS,
    check_bad_plans,
    check_closed_requests,
    check_timing,
    check_handles,
    check_close,
)


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
