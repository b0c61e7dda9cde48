"""Running sequences on a native executor, step by step, and looking inside."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headway import _native
from headway.core.plan import BlockCopy, Chunk, Masks, Open, SamplingSpec, StepPlan, StepResult
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.native import NativeExecutor, NativeOptions
from headway.models.types import Weights
from tests.reference import Cache

Floats = npt.NDArray[np.float32]
OPTIONS = NativeOptions(kv_blocks=96, host_blocks=64, max_seqs=16, max_step_tokens=512, threads=1)
GREEDY = SamplingSpec()
NO_MASKS: Masks = {}
PATHS = [name for name, isa in _native.Isa.__members__.items() if _native.supports(isa)]


@dataclass(frozen=True, slots=True)
class Traced:
    """A step's result and inside: hidden [layers + 1, rows, hidden], logits [sampled, vocab]."""

    result: StepResult
    hidden: Floats
    logits: Floats


@dataclass(slots=True)
class Run:
    """One sequence on an executor: its block table and how far it was computed."""

    request: RequestId
    tokens: list[int]
    spec: SamplingSpec
    blocks: list[BlockId]
    computed: int = 0
    opened: bool = False
    logits: list[Floats] = field(default_factory=list)

    def chunk(self, count: int) -> Chunk:
        """The next `count` tokens; samples where the last of them is the last there is."""
        end = self.computed + count
        part = self.tokens[self.computed : end]
        sample = end == len(self.tokens)
        return Chunk(self.request, part, self.computed, self.blocks, len(self.blocks), sample)


class Bench:
    """An executor, its free blocks, and a plan at a time."""

    def __init__(self, weights: Weights, executor: NativeExecutor) -> None:
        self.weights = weights
        self.executor = executor
        self.free = [BlockId(i) for i in range(executor.capacity.kv_blocks)]
        self._steps = 0
        self._requests = 0

    def run(self, tokens: Sequence[int], spec: SamplingSpec = GREEDY, room: int = 32) -> Run:
        """A sequence with blocks for its tokens and `room` more; opened by its first step."""
        self._requests += 1
        return Run(RequestId(self._requests), list(tokens), spec, self.take(len(tokens) + room))

    def take(self, tokens: int) -> list[BlockId]:
        """Free blocks for so many tokens, in an odd order."""
        count = (tokens + 15) // 16
        blocks, self.free = self.free[:count], self.free[count:]
        return blocks[::2] + blocks[1::2]

    def step(
        self,
        *parts: tuple[Run, int],
        interrupt: bool = False,
        masks: Masks = NO_MASKS,
        kept: int = 0,
    ) -> Traced:
        """Computes so many tokens of each run; sampled tokens are appended to it. An interrupt
        leaves the first `kept` runs."""
        opens = tuple(Open(r.request, list(r.tokens), r.spec) for r, _ in parts if not r.opened)
        chunks = tuple(run.chunk(count) for run, count in parts)
        plan = StepPlan(self._steps, Lane.UNIFIED, opens, chunks=chunks, kept=kept)
        traced = self.submit(plan, interrupt, masks)
        computed = kept if traced.result.interrupted else len(parts)
        for index, (run, count) in enumerate(parts):
            run.opened = True
            run.computed += count if index < computed else 0
        by_request = {run.request: run for run, _ in parts}
        for sampled, logits in zip(traced.result.sampled, traced.logits, strict=False):
            by_request[sampled.request].tokens.append(sampled.token)
            by_request[sampled.request].logits.append(logits)
        return traced

    def decode(self, run: Run, count: int) -> None:
        """Computes what is missing of a run, then samples until it has `count` more tokens."""
        for _ in range(count):
            self.step((run, len(run.tokens) - run.computed))

    def submit(self, plan: StepPlan, interrupt: bool = False, masks: Masks = NO_MASKS) -> Traced:
        """Runs a plan as it is."""
        self._steps += 1
        self.executor.native.traced = True
        handle = self.executor.submit(plan, masks)
        if interrupt:
            handle.interrupt()
        result = handle.result(30)
        hidden, logits = handle.native.trace()
        return Traced(result, hidden.reshape(-1, len(hidden), self.weights.config.hidden), logits)

    def copy(self, pairs: Sequence[tuple[BlockId, BlockId]], out: bool) -> None:
        """Copies (device, host) blocks, out of the device or into it."""
        copies = tuple(BlockCopy(device, host) for device, host in pairs)
        outs, ins = (copies, ()) if out else ((), copies)
        self.submit(StepPlan(self._steps, Lane.UNIFIED, swap_out=outs, swap_in=ins))

    def cache(self, run: Run, layer: int) -> Cache:
        """Keys and values the pool holds of a run's computed tokens."""
        config = self.weights.config
        heads, dim = config.attention.kv_heads, config.attention.head_dim
        blocks = [
            np.frombuffer(self.executor.native.read_block(False, b), np.float16)
            .astype(np.float64)
            .reshape(config.layers, heads, 2, -1)[layer]
            for b in run.blocks
        ]
        k = [b[:, 0].reshape(heads, dim, 16).transpose(0, 2, 1) for b in blocks]
        v = [b[:, 1].reshape(heads, 16, dim) for b in blocks]
        count = run.computed
        return Cache(np.concatenate(k, 1)[:, :count], np.concatenate(v, 1)[:, :count])


@contextmanager
def bench(weights: Weights, options: NativeOptions = OPTIONS) -> Iterator[Bench]:
    """A bench on a fresh executor, closed afterwards."""
    executor = NativeExecutor(weights, options)
    try:
        yield Bench(weights, executor)
    finally:
        executor.close()
