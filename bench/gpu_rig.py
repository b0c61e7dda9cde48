"""What bench/gpu_part.py measures on: a model's shape with random weights, and sequences of it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headway.core.plan import Chunk, Executor, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.models.types import (
    AttentionShape,
    ModelConfig,
    Rope,
    Tensor,
    TensorType,
    Weights,
)

LLAMA_8B = ModelConfig(
    "llama", 32, 4096, 14336, 128_256, AttentionShape(32, 8, 128), Rope(500_000.0), 1e-5, 131_072
)
TINY = ModelConfig("llama", 4, 128, 256, 503, AttentionShape(4, 2, 32), Rope(10_000.0), 1e-5, 8_192)
BLOCK = 16

Placed = tuple[RequestId, list[BlockId]]


def random_weights(config: ModelConfig) -> Weights:
    """Values that keep activations in range; one random matrix is drawn a shape, since drawing
    eight billion numbers takes longer than the measurements. Each use has memory of its own on the
    device."""
    rng = np.random.default_rng(0)
    drawn: dict[tuple[int, int], np.ndarray] = {}

    def matrix(rows: int, cols: int) -> Tensor:
        if (rows, cols) not in drawn:
            values = rng.standard_normal((rows, cols), np.float32) / np.sqrt(cols)
            drawn[rows, cols] = values.astype(np.float16).view(np.uint8).reshape(-1)
        return Tensor(TensorType.F16, rows, cols, drawn[rows, cols])

    def ones(size: int) -> Tensor:
        return Tensor(TensorType.F32, 1, size, np.ones(size, np.float32).view(np.uint8))

    a, hidden = config.attention, config.hidden
    tensors = {"embed": matrix(config.vocab, hidden), "norm": ones(hidden)}
    tensors["head"] = matrix(config.vocab, hidden)
    for i in range(config.layers):
        shapes = {
            "q": (a.heads * a.head_dim, hidden),
            "k": (a.kv_heads * a.head_dim, hidden),
            "v": (a.kv_heads * a.head_dim, hidden),
            "o": (hidden, a.heads * a.head_dim),
            "gate": (config.intermediate, hidden),
            "up": (config.intermediate, hidden),
            "down": (hidden, config.intermediate),
        }
        tensors |= {f"layers.{i}.{name}": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"layers.{i}.{n}": ones(hidden) for n in ("attn_norm", "ffn_norm")}
    return Weights(config, tensors, "random")


class Rig:
    """Sequences on an executor, their blocks given once and for all."""

    def __init__(self, executor: Executor, repeats: int) -> None:
        self.executor = executor
        self.capacity = executor.capacity
        self.repeats = repeats
        self._steps = 0
        self._requests = 0
        self._rng = np.random.default_rng(1)

    def sequences(self, *lengths: int) -> list[Placed]:
        """One of so many tokens each, opened; blocks are used anew by each call. Their cache is
        whatever the pool holds: costs don't depend on it."""
        made, used = [], 0
        for tokens in lengths:
            self._requests += 1
            count = -(-tokens // BLOCK)
            table = [BlockId(used + block) for block in range(count)]
            made.append((RequestId(self._requests), table))
            used += count
        if used > self.capacity.kv_blocks:
            raise ValueError(f"{used} blocks, of {self.capacity.kv_blocks}")
        opens = tuple(Open(name, [1], SamplingSpec()) for name, _ in made)
        self.run(StepPlan(0, Lane.UNIFIED, opens))
        return made

    def chunk(self, sequence: Placed, start: int, count: int, sample: bool) -> Chunk:
        """Random tokens at a place."""
        name, table = sequence
        tokens = self._rng.integers(0, self.capacity.vocab_size, count).tolist()
        return Chunk(name, tokens, start, table, len(table), sample)

    def decode(self, made: list[Placed], context: int) -> StepPlan:
        """A row each."""
        chunks = tuple(self.chunk(one, context - 1, 1, True) for one in made)
        return StepPlan(0, Lane.UNIFIED, chunks=chunks)

    def run(self, plan: StepPlan) -> float:
        """Seconds from the plan to its tokens on the host."""
        self._steps += 1
        plan = replace(plan, step=self._steps)
        begin_s = time.perf_counter()
        self.executor.submit(plan, {}).result(300)
        return time.perf_counter() - begin_s

    def prefill(self, sequence: Placed, start: int, count: int) -> StepPlan:
        """A chunk, and a token sampled."""
        return StepPlan(0, Lane.UNIFIED, chunks=(self.chunk(sequence, start, count, True),))

    def median(self, plan: Callable[[], StepPlan]) -> float:
        """Seconds of a step like this, the first one left out."""
        self.run(plan())
        return statistics.median(self.run(plan()) for _ in range(self.repeats))
