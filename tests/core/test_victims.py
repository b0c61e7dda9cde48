"""Whom to take blocks from: costs by hand, choices against brute force."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.blocks import BlockPool
from headway.core.prefix import PrefixChain
from headway.core.sequence import Sequence
from headway.core.step_model import StepLoad, StepModel
from headway.core.types import BlockId, Lane, PreemptKind, ServiceClass
from headway.core.victims import (
    CopyRates,
    cheaper_way,
    choose,
    preemption_cost,
    total_gain,
    uncached_tokens,
    used_blocks,
)
from headway.testing import make_request

SIZE = 4
RATES = CopyRates(out_s=0.001, in_s=0.002)


def resident(number: int, pool: BlockPool, blocks: int, shared: Seq[BlockId] = ()) -> Sequence:
    """A sequence that holds `blocks` of its own after the blocks of `shared`, all computed."""
    sequence = Sequence(
        request=make_request(number),
        number=number,
        tokens=list(range((blocks + len(shared)) * SIZE + 1)),
        prefix=PrefixChain(b"", SIZE),
        block_size=SIZE,
        rank=ServiceClass.BATCH,
        computed=(blocks + len(shared)) * SIZE,
    )
    pool.acquire(shared)
    sequence.blocks = [*shared, *pool.allocate(blocks, Lane.UNIFIED)]
    return sequence


def model_with(token_s: float) -> StepModel:
    """A model that has learned what a prefill token costs, and that nothing else costs much."""

    model = StepModel()
    for tokens in (10, 50, 100, 200) * 50:
        model.observe(StepLoad(prefill_tokens=tokens), 0.001 + token_s * tokens)
    return model


def test_swap_costs_copies_and_recompute_costs_tokens() -> None:
    pool = BlockPool(32)
    sequence = resident(1, pool, 10)
    slow, quick = model_with(0.01), model_with(0.0001)
    swap = preemption_cost(sequence, pool, RATES, slow, host_free=10)
    assert swap.kind is PreemptKind.SWAP
    assert swap.seconds == pytest.approx(10 * 0.003)
    assert preemption_cost(sequence, pool, RATES, slow, 9).kind is PreemptKind.RECOMPUTE
    again = preemption_cost(sequence, pool, RATES, quick, host_free=10)
    assert again.kind is PreemptKind.RECOMPUTE
    assert again.seconds == pytest.approx(40 * 0.0001, rel=0.2)


def test_what_others_hold_need_not_be_computed_again() -> None:
    pool = BlockPool(32)
    first = resident(1, pool, 4)
    second = resident(2, pool, 2, shared=first.blocks)
    model = model_with(0.01)
    alone = preemption_cost(resident(3, pool, 6), pool, RATES, model, 0).seconds
    shared = preemption_cost(second, pool, RATES, model, 0).seconds
    assert shared == pytest.approx(alone / 3, rel=0.15)


def test_only_leading_blocks_are_found_again() -> None:
    """Digests are chained: a block is found only after those before it."""
    pool = BlockPool(8)
    blocks = pool.allocate(3, Lane.UNIFIED)
    pool.acquire([blocks[0], blocks[2]])
    assert uncached_tokens(blocks, 3 * SIZE, SIZE, pool) == 2 * SIZE
    pool.acquire([blocks[1]])
    assert uncached_tokens(blocks, 3 * SIZE, SIZE, pool) == 0


def test_what_others_hold_entirely_costs_nothing_to_compute_again() -> None:
    pool = BlockPool(32)
    first = resident(1, pool, 4)
    pool.acquire(first.blocks)
    cost = preemption_cost(first, pool, RATES, model_with(0.01), host_free=8)
    assert (cost.kind, cost.seconds) == (PreemptKind.RECOMPUTE, 0.0)


def test_where_both_ways_cost_the_same_the_host_pool_is_spared() -> None:
    pool = BlockPool(8)
    sequence, model = resident(1, pool, 1), StepModel()
    rates = CopyRates(out_s=model.prefill_seconds(SIZE) / 2, in_s=model.prefill_seconds(SIZE) / 2)
    assert preemption_cost(sequence, pool, rates, model, 8).kind is PreemptKind.RECOMPUTE


def test_only_computed_blocks_are_copied() -> None:
    pool = BlockPool(8)
    sequence = resident(1, pool, 4)
    for computed, blocks in ((0, 0), (1, 1), (SIZE, 1), (SIZE + 1, 2), (4 * SIZE, 4)):
        sequence.computed = computed
        assert used_blocks(sequence) == sequence.blocks[:blocks]
    sequence.computed = 0
    assert preemption_cost(sequence, pool, RATES, model_with(1), 8).kind is PreemptKind.RECOMPUTE


def test_shared_blocks_count_with_the_last_holder() -> None:
    pool = BlockPool(16)
    first = resident(1, pool, 3)
    second = resident(2, pool, 1, shared=first.blocks)
    assert total_gain([first], pool) == 0
    assert total_gain([second], pool) == 1
    assert total_gain([first, second], pool) == 4
    assert choose({first: 1.0}, 1, pool) is None
    assert choose({first: 1.0, second: 1.0}, 1, pool) == [second]
    both = choose({first: 1.0, second: 1.0}, 4, pool)
    assert both is not None
    assert set(both) == {first, second}


def test_the_cheapest_for_what_is_missing_goes_first() -> None:
    pool = BlockPool(32)
    large, small = resident(1, pool, 10), resident(2, pool, 3)
    costs = {large: 5.0, small: 2.0}
    assert choose(costs, 3, pool) == [small]
    assert choose(costs, 10, pool) == [large]
    assert choose(costs, 13, pool) is not None
    assert choose(costs, 14, pool) is None
    equal = {large: 1.0, small: 1.0}
    assert choose(equal, 2, pool) == [small], "of equals the latest arrival goes"


def test_a_block_of_three_holders_comes_free_with_the_third() -> None:
    pool = BlockPool(16)
    first = resident(1, pool, 2)
    others = [resident(i, pool, 1, shared=first.blocks) for i in (2, 3)]
    assert total_gain(others, pool) == 2
    assert total_gain([first, *others], pool) == 4
    pool.release(first.blocks)
    assert total_gain(others, pool) == 4


def test_one_large_victim_costs_less_than_many_small_ones() -> None:
    pool = BlockPool(32)
    large = resident(1, pool, 4)
    small = {resident(i, pool, 1): 1.0 for i in range(2, 6)}
    assert choose({large: 3.0, **small}, 4, pool) == [large]
    assert choose({large: 5.0, **small}, 4, pool) == sorted(small, key=lambda s: -s.number)


def test_what_is_still_missing_decides_between_the_rest() -> None:
    """After the first, one block is missing: ten for twice the price of one are no bargain."""
    pool = BlockPool(32)
    first, one, ten = resident(1, pool, 4), resident(2, pool, 1), resident(3, pool, 10)
    assert choose({first: 1.0, one: 1.0, ten: 2.0}, 5, pool) == [first, one]


def test_whoever_a_dearer_one_makes_needless_is_left_alone() -> None:
    """By cost per block that is missing one and two go first; then ten are needed after all, and
    are exactly enough alone."""
    pool = BlockPool(32)
    one, two, ten = resident(1, pool, 1), resident(2, pool, 2), resident(3, pool, 10)
    assert choose({one: 0.1, two: 0.4, ten: 9.0}, 10, pool) == [ten]
    assert choose({one: 0.1, two: 0.4, ten: 9.0}, 11, pool) == [two, ten]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0.1, 9), st.booleans()), max_size=7),
    st.integers(1, 20),
)
def test_choices_are_sufficient_minimal_and_near_the_cheapest(
    members: list[tuple[int, float, bool]], shortage: int
) -> None:
    pool = BlockPool(64)
    common = pool.allocate(3, Lane.UNIFIED)
    costs = {
        resident(i, pool, blocks, common if shares else ()): cost
        for i, (blocks, cost, shares) in enumerate(members, start=1)
    }
    pool.release(common)
    chosen = choose(costs, shortage, pool)
    if total_gain(costs, pool) < shortage:
        assert chosen is None
        return
    assert chosen is not None
    assert total_gain(chosen, pool) >= shortage
    for victim in chosen:
        rest = [s for s in chosen if s is not victim]
        assert total_gain(rest, pool) < shortage, "a victim is not needed"
    best = min(
        sum(costs[s] for s in subset)
        for count in range(len(costs) + 1)
        for subset in combinations(costs, count)
        if total_gain(subset, pool) >= shortage
    )
    if not any(shares for _, _, shares in members):
        assert sum(costs[s] for s in chosen) <= best * (1 + len(costs))


@dataclass(frozen=True, slots=True)
class Guest:
    """A holder of another host: not our sequence."""

    number: int
    blocks: tuple[BlockId, ...]


class Counted:
    """References of another host's pool: not our pool."""

    def __init__(self, guests: Iterable[Guest]) -> None:
        self._counts = Counter(block for guest in guests for block in guest.blocks)

    @property
    def shared(self) -> int:
        return sum(1 for count in self._counts.values() if count > 1)

    def references(self, block: BlockId) -> int:
        return self._counts[block]


def test_another_host_brings_its_own_holders_and_pool() -> None:
    first, second = (Guest(n, tuple(map(BlockId, b))) for n, b in ((1, [0, 1, 2]), (2, [0, 1, 3])))
    pool = Counted([first, second])
    assert total_gain([first], pool) == 1
    assert total_gain([first, second], pool) == 4
    assert choose({first: 1.0, second: 1.0}, 1, pool) == [second]
    assert uncached_tokens(first.blocks, 3 * SIZE, SIZE, pool) == SIZE


@given(st.integers(0, 9), st.integers(0, 9), st.floats(0, 1))
def test_the_cheaper_way_is_the_cheaper_one_that_fits(
    blocks: int, host_free: int, recompute_s: float
) -> None:
    cost = cheaper_way(blocks, recompute_s, RATES, host_free)
    swap_s = blocks * 0.003
    fits = 0 < blocks <= host_free
    assert cost.seconds == pytest.approx(min(swap_s, recompute_s) if fits else recompute_s)
    assert fits or cost.kind is PreemptKind.RECOMPUTE
