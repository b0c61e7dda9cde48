"""Swapped KV of the vLLM integration: every copy the book orders is run on modelled memory."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.sequence import blocks_for
from headway_vllm.book import SwapBook

SIZE, HOST_BLOCKS, DEVICE_BLOCKS = 4, 6, 12


def test_nothing_is_kept_where_there_is_no_room_or_nothing_to_keep() -> None:
    book = SwapBook(2, SIZE)
    assert not book.save("a", [1, 2, 3], tokens=9)
    assert not book.save("a", [1], tokens=0)
    assert book.save("a", [1, 2], tokens=5)
    assert not book.save("b", [3], tokens=1)
    assert (book.tokens("a"), book.tokens("b"), book.free) == (5, 0, 0)


def test_a_restored_request_frees_its_host_blocks_only_after_the_step() -> None:
    book = SwapBook(1, SIZE)
    book.save("a", [7], tokens=3)
    book.hand_out()
    book.restore("a", [9], tokens=3, end=3)
    assert book.free == 0, "a save of the same step would run before the load"
    copies = book.hand_out()
    assert [(c.host, c.device) for c in copies.loads] == [(0, 9)]
    assert book.free == 1


def test_what_the_prefix_cache_has_is_not_loaded() -> None:
    book = SwapBook(3, SIZE)
    book.save("a", [1, 2, 3], tokens=10)
    book.restore("a", [5, 6, 7], tokens=2, end=10)
    loads = book.hand_out().loads
    assert [(c.host, c.device) for c in loads] == [(2, 7)]
    assert (book.saved_tokens, book.restored_tokens) == (10, 2)


def test_an_ended_request_is_not_saved_any_more() -> None:
    book = SwapBook(2, SIZE)
    book.save("a", [1], tokens=2)
    book.drop("a")
    book.drop("a")
    assert book.hand_out().saves == []
    assert book.free == 2


class Swapping(RuleBasedStateMachine):
    """Requests come, go and come back; a restored one must find what it had."""

    def __init__(self) -> None:
        super().__init__()
        self.book = SwapBook(HOST_BLOCKS, SIZE)
        self.device = [""] * DEVICE_BLOCKS
        self.host = [""] * HOST_BLOCKS
        self.running: dict[str, list[int]] = {}
        self.expected: dict[str, list[str]] = {}
        self.checks: list[tuple[list[int], list[str]]] = []
        self.started = 0

    def unused(self) -> list[int]:
        held = {block for blocks in self.running.values() for block in blocks}
        return [block for block in range(DEVICE_BLOCKS) if block not in held]

    @rule(tokens=st.integers(1, 12))
    def start(self, tokens: int) -> None:
        blocks = self.unused()[: blocks_for(tokens, SIZE)]
        name = f"r{self.started}"
        self.started += 1
        self.running[name] = blocks
        for index, block in enumerate(blocks):
            self.device[block] = f"{name}/{index}"

    @precondition(lambda self: self.running and not self.checks)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        blocks = self.running.pop(name)
        if self.book.save(name, blocks, len(blocks) * SIZE):
            self.expected[name] = [self.device[block] for block in blocks]
        self.step()

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), hits=st.integers(0, 2))
    def resume(self, data: st.DataObject, hits: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected)))
        contents = self.expected[name]
        blocks = self.unused()[: len(contents)]
        if len(blocks) < len(contents):
            return
        del self.expected[name]
        hits = min(hits, len(contents))
        for index in range(hits):
            self.device[blocks[index]] = contents[index]
        tokens = len(contents) * SIZE
        self.book.restore(name, blocks, tokens - hits * SIZE, tokens)
        self.running[name] = blocks
        self.checks.append((blocks, contents))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected)))
        del self.expected[name]
        self.book.drop(name)

    @rule()
    def step(self) -> None:
        copies = self.book.hand_out()
        for copy in copies.saves:
            self.host[copy.host] = self.device[copy.device]
        for copy in copies.loads:
            self.device[copy.device] = self.host[copy.host]
        for blocks, contents in self.checks:
            assert [self.device[block] for block in blocks] == contents
        self.checks = []

    @invariant()
    def every_host_block_is_free_or_kept_once(self) -> None:
        kept = sum(len(contents) for contents in self.expected.values())
        assert 0 <= self.book.free <= HOST_BLOCKS - kept
        if not self.checks:
            assert self.book.free == HOST_BLOCKS - kept


TestSwapping = Swapping.TestCase
TestSwapping.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
