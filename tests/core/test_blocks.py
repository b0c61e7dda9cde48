"""The block pool: random operations never lose a block, and what is cached is what was computed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.blocks import BlockPool
from headway.core.prefix import chain_digest, root_digest
from headway.core.types import BlockId, Lane

SIZE = 4


class Pool(RuleBasedStateMachine):
    """[TensorRT-LLM PR #12834] Counters of a tier after any sequence of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.held: list[list[BlockId]] = []
        self.copied: set[BlockId] = set()
        self.digests = 0

    @rule(count=st.integers(0, 14), lane=st.sampled_from(Lane))
    def allocate(self, count: int, lane: Lane) -> None:
        if count > self.pool.available(lane):
            with pytest.raises(RuntimeError, match="blocks wanted"):
                self.pool.allocate(count, lane)
            return
        blocks = self.pool.allocate(count, lane)
        assert len(set(blocks)) == count
        others = {b for table in self.held for b in table}
        assert not others & set(blocks)
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 99))
    def share(self, at: int) -> None:
        blocks = self.held[at % len(self.held)]
        self.pool.acquire(blocks)
        self.held.append(list(blocks))

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 99))
    def release(self, at: int) -> None:
        self.pool.release(self.held.pop(at % len(self.held)))

    @precondition(lambda self: self.held)
    @rule(at=st.integers(0, 99), lane=st.sampled_from(Lane))
    def copy_out(self, at: int, lane: Lane) -> None:
        blocks = self.held.pop(at % len(self.held))
        before = {other: self.pool.available(other) for other in Lane if other is not lane}
        self.pool.release_after_copy(blocks, lane)
        assert {other: self.pool.available(other) for other in before} == before

    @rule(lane=st.sampled_from(Lane))
    def settle(self, lane: Lane) -> None:
        self.pool.settle(lane)

    @precondition(lambda self: any(self.held))
    @rule(at=st.integers(0, 99))
    def publish(self, at: int) -> None:
        tables = [table for table in self.held if table]
        self.digests += 1
        tokens = (self.digests,) * SIZE
        block = tables[at % len(tables)][0]
        self.pool.publish(block, chain_digest(b"", tokens), tokens)

    @rule(number=st.integers(1, 30))
    def find(self, number: int) -> None:
        tokens = (number,) * SIZE
        found = self.pool.match([chain_digest(b"", tokens)], tokens, SIZE)
        if found:
            evictable = sum(self.pool.evictable(found, lane) for lane in Lane)
            assert evictable in (0, 1, len(Lane))
            self.pool.acquire(found)
            self.held.append(found)

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        self.pool.check([b for table in self.held for b in table])
        counts = self.pool.counts()
        assert counts.free + counts.used + counts.cached == counts.total
        assert min(counts.free, counts.used, counts.cached) >= 0


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


def test_least_recently_released_is_evicted_first_and_tails_before_heads() -> None:
    pool = BlockPool(4)
    old, new = pool.allocate(2, Lane.UNIFIED), pool.allocate(2, Lane.UNIFIED)
    digests: dict[BlockId, bytes] = {}
    for block in (*old, *new):
        digests[block] = chain_digest(b"", (block,) * SIZE)
        pool.publish(block, digests[block], (block,) * SIZE)
    pool.release(old)
    pool.release(new)
    assert pool.counts().cached == 4
    evicted = [pool.allocate(1, Lane.UNIFIED)[0] for _ in range(4)]
    assert evicted == [old[1], old[0], new[1], new[0]]
    assert not pool.match([digests[old[0]]], (old[0],) * SIZE, SIZE)


def test_a_hit_needs_the_same_tokens_in_the_same_place_of_the_same_tenant() -> None:
    pool = BlockPool(4)
    tokens = list(range(2 * SIZE))
    root = root_digest(b"model", "a")
    first = chain_digest(root, tokens[:SIZE])
    second = chain_digest(first, tokens[SIZE:])
    blocks = pool.allocate(2, Lane.UNIFIED)
    pool.publish(blocks[0], first, tokens[:SIZE])
    pool.publish(blocks[1], second, tokens[SIZE:])
    assert pool.match([first, second], tokens, SIZE) == blocks
    assert pool.match([second], tokens[SIZE:], SIZE) == [blocks[1]]
    assert pool.match([first, second], [*tokens[:-1], 99], SIZE) == [blocks[0]]
    other = root_digest(b"model", "b")
    assert other != root
    assert chain_digest(other, tokens[:SIZE]) != first
    assert root_digest(b"mode", "la") != root_digest(b"model", "a")


def test_the_first_block_with_a_digest_keeps_it() -> None:
    pool = BlockPool(2)
    a, b = pool.allocate(2, Lane.UNIFIED)
    digest = chain_digest(b"", (1,) * SIZE)
    pool.publish(a, digest, (1,) * SIZE)
    pool.publish(b, digest, (1,) * SIZE)
    pool.release([b])
    assert pool.counts().free == 1
    pool.release([a])
    assert pool.counts().cached == 1
    with pytest.raises(RuntimeError, match="once too often"):
        pool.release([a])


def test_a_block_under_copy_is_not_freed_by_its_other_holders_end() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2, Lane.UNIFIED)
    pool.acquire(blocks)
    pool.release_after_copy(blocks, Lane.PREFILL)
    pool.release(blocks)
    assert pool.available(Lane.DECODE) == 1
    assert pool.available(Lane.PREFILL) == 3
    taken = pool.allocate(3, Lane.PREFILL)
    assert set(blocks) < set(taken)
    pool.release(taken)
    assert pool.available(Lane.DECODE) == 1, "the copy is still being read"
    pool.settle(Lane.PREFILL)
    assert pool.available(Lane.DECODE) == 3


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=8))
def test_digests_depend_on_every_token(tokens: list[int]) -> None:
    digest = chain_digest(b"x", tokens)
    for i in range(len(tokens)):
        changed = [*tokens[:i], tokens[i] + 1, *tokens[i + 1 :]]
        assert chain_digest(b"x", changed) != digest
    assert chain_digest(b"y", tokens) != digest
