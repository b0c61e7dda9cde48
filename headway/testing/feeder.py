"""Drives an executor by hand, one explicit plan at a time: what a scheduler does, without rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.core.plan import (
    BlockCopy,
    Chunk,
    Executor,
    Open,
    Sampled,
    SamplingSpec,
    StepPlan,
    StepResult,
)
from headway.core.types import BlockId, Lane, RequestId


@dataclass(slots=True)
class Feed:
    """One request as the feeder sees it. `computed` tokens are in the cache behind `blocks`, or
    behind `host_blocks` while swapped out. The first `shared_blocks` belong to another."""

    request: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingSpec
    sampled: list[Sampled] = field(default_factory=list)
    computed: int = 0
    blocks: list[BlockId] = field(default_factory=list)
    host_blocks: list[BlockId] = field(default_factory=list)
    shared_blocks: int = 0
    opened: bool = False
    error: str = ""

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *(s.token for s in self.sampled)]

    @property
    def output(self) -> list[int]:
        """Output alone."""
        return [s.token for s in self.sampled]


class Feeder:
    """Block tables, step numbers and results of requests fed to one executor.

    interrupt: interrupt each step as soon as it is submitted; `step` then does again what that
        took out.
    kept: so many chunks of each step are to go on.
    interrupted_steps: how many steps stopped early.
    """

    def __init__(self, executor: Executor, interrupt: bool = False, kept: int = 0) -> None:
        self.executor = executor
        self.interrupted_steps = 0
        self._interrupt = interrupt
        self._kept = kept
        self._feeds: dict[RequestId, Feed] = {}
        self._free = [BlockId(i) for i in range(executor.capacity.kv_blocks)]
        self._free_host = [BlockId(i) for i in range(executor.capacity.host_blocks)]
        self._closing: list[RequestId] = []
        self._steps = 0

    def add(
        self, request: int, prompt: Sequence[int], sampling: SamplingSpec | None = None
    ) -> Feed:
        """Take a request in; it is opened by the plan of its first chunk."""
        name = RequestId(request)
        self._feeds[name] = Feed(name, tuple(prompt), sampling or SamplingSpec())
        return self._feeds[name]

    def share(self, giver: Feed, taker: Feed, num_blocks: int) -> None:
        """Let a fresh request read the giver's first full blocks, as a prefix cache does."""
        taker.blocks = giver.blocks[:num_blocks]
        taker.computed = num_blocks * self.executor.capacity.block_size
        taker.shared_blocks = num_blocks

    def step(
        self,
        rows: Mapping[RequestId, int],
        swap_out: Sequence[Feed] = (),
        swap_in: Sequence[Feed] = (),
    ) -> StepResult:
        """Compute so many of each request's next tokens; sample where that reaches the last.

        Raises ExecutorError as the executor does.
        """
        copies_out = tuple(c for feed in swap_out for c in self._swap_out(feed))
        copies_in = tuple(c for feed in swap_in for c in self._swap_in(feed))
        plan = StepPlan(
            step=self._steps,
            lane=Lane.UNIFIED,
            opens=self._opens(rows),
            closes=tuple(self._closing),
            swap_out=copies_out,
            swap_in=copies_in,
            chunks=tuple(self._chunk(self._feeds[r], n) for r, n in rows.items()),
            kept=min(self._kept, len(rows)),
        )
        self._closing.clear()
        result = self._submit(plan, self._interrupt)
        self._free_host += [copy.host for copy in copies_in]
        if result.interrupted:
            self.interrupted_steps += 1
            left = plan.chunks[plan.kept :]
            again = self._submit(StepPlan(plan.step, plan.lane, chunks=left), interrupt=False)
            result = replace(
                again,
                sampled=result.sampled + again.sampled,
                errors=result.errors + again.errors,
            )
        self._apply(plan, result)
        return result

    def prefill(self, *feeds: Feed, chunk_tokens: int | None = None) -> None:
        """Compute all tokens a request has, in chunks, and sample the next one."""
        limit = chunk_tokens or self.executor.capacity.max_step_tokens // len(feeds)
        before = {f.request: len(f.sampled) for f in feeds}
        while rows := {
            f.request: min(limit, missing(f))
            for f in feeds
            if len(f.sampled) == before[f.request] and not f.error
        }:
            self.step(rows)

    def decode(self, *feeds: Feed, num_tokens: int = 1) -> None:
        """Sample so many further tokens of each request, one step a token."""
        for _ in range(num_tokens):
            self.step({f.request: missing(f) for f in feeds})

    def drop(self, feed: Feed) -> None:
        """Give up a request's cache; its tokens are computed again from the first."""
        self._free += feed.blocks[feed.shared_blocks :]
        feed.blocks, feed.computed, feed.shared_blocks = [], 0, 0

    def close(self, feed: Feed) -> None:
        """End a request; the executor hears of it with the next plan."""
        self.drop(feed)
        self._closing.append(feed.request)

    def _opens(self, rows: Mapping[RequestId, int]) -> tuple[Open, ...]:
        fresh = [self._feeds[r] for r in rows if not self._feeds[r].opened]
        for feed in fresh:
            feed.opened = True
        return tuple(Open(f.request, f.prompt, f.sampling) for f in fresh)

    def _chunk(self, feed: Feed, num_tokens: int) -> Chunk:
        tokens, end = feed.tokens, feed.computed + num_tokens
        while len(feed.blocks) * self.executor.capacity.block_size < end:
            feed.blocks.append(self._free.pop(0))
        return Chunk(
            request=feed.request,
            tokens=tokens[feed.computed : end],
            start=feed.computed,
            blocks=feed.blocks,
            num_blocks=len(feed.blocks),
            sample=end == len(tokens),
        )

    def _swap_out(self, feed: Feed) -> list[BlockCopy]:
        feed.host_blocks = [self._free_host.pop(0) for _ in feed.blocks]
        copies = [BlockCopy(d, h) for d, h in zip(feed.blocks, feed.host_blocks, strict=True)]
        self._free = feed.blocks + self._free
        feed.blocks = []
        return copies

    def _swap_in(self, feed: Feed) -> list[BlockCopy]:
        feed.blocks = [self._free.pop() for _ in feed.host_blocks]
        copies = [BlockCopy(d, h) for d, h in zip(feed.blocks, feed.host_blocks, strict=True)]
        feed.host_blocks = []
        return copies

    def _submit(self, plan: StepPlan, interrupt: bool) -> StepResult:
        self._steps += 1
        handle = self.executor.submit(plan, {})
        if interrupt:
            handle.interrupt()
        return handle.result()

    def _apply(self, plan: StepPlan, result: StepResult) -> None:
        for chunk in plan.chunks:
            self._feeds[chunk.request].computed += len(chunk.tokens)
        for sampled in result.sampled:
            self._feeds[sampled.request].sampled.append(sampled)
        for error in result.errors:
            self._feeds[error.request].error = error.message


def missing(feed: Feed) -> int:
    """Tokens of a request that are not in the cache."""
    return len(feed.tokens) - feed.computed
