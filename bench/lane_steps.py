"""Steps of one lane against steps of two at once: what splitting costs and buys, without an engine.

    python bench/lane_steps.py MODEL.gguf [--rows 8,32] [--chunks 0,16,32,64,128,256] [--seconds 60]

Unified: so many decode rows at context 200 and a prefill chunk in one step, on all cores. Split:
the rows on one half of the cores while prefill chunks are computed on the other. Prints a table in
Markdown: prefill tokens per second and ITL, the median of a window of 0.4 s. All take turns for
`--seconds`, and each shows the window in which it computed most: on a machine with neighbours, what
there is when they leave it alone. The two figures of a line are always of the same window.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from headway.core.plan import Chunk, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.native import BLOCK_TOKENS, NativeExecutor, NativeOptions
from headway.models.loader import load_model
from headway.models.types import Weights

CONTEXT = 200
PROMPT = 512
SPLIT_CHUNK = 128
WINDOW_S = 0.4
SMALL_HALF = 0x2C00  # 0.0625: contexts are filled with it, which costs attention the same


@dataclass(frozen=True, slots=True)
class Window:
    """What was computed at once for a while."""

    rows: int
    prefill_per_s: float
    itl_s: float

    @property
    def work(self) -> float:
        """Tokens per second of both kinds."""
        return self.prefill_per_s + self.rows / self.itl_s


@dataclass
class Work:
    """Plans of decode rows and of chunks in the middle of a prompt."""

    executor: NativeExecutor
    rows: int
    step: int = 0
    opened: set[RequestId] = field(default_factory=set)

    def plan(self, lane: Lane, units: int, rows: int, chunk: int) -> StepPlan:
        """A step of so many rows and a chunk of so many tokens; none of them sampled but rows."""
        chunks = [self._row(i) for i in range(rows)]
        if chunk:
            request = RequestId(self.rows)
            tokens = tuple(range(100, 100 + chunk))
            chunks.append(Chunk(request, tokens, CONTEXT, *self._table(self.rows), False))
        new = [c.request for c in chunks if c.request not in self.opened]
        self.opened.update(new)
        opens = tuple(Open(request, (1,), SamplingSpec()) for request in new)
        self.step += 1
        return StepPlan(self.step, lane, opens, chunks=tuple(chunks), units=units)

    def seconds(self, plan: StepPlan) -> float:
        """Run it."""
        return self.executor.submit(plan, {}).result().timing.compute_s

    def _row(self, index: int) -> Chunk:
        return Chunk(RequestId(index), (7,), CONTEXT, *self._table(index), True)

    def _table(self, index: int) -> tuple[list[BlockId], int]:
        each = PROMPT // BLOCK_TOKENS
        return [BlockId(index * each + i) for i in range(each)], each


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", default="8,32")
    parser.add_argument("--chunks", default="0,16,32,64,128,256")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each number of rows")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    weights = load_model(options.model).weights
    print("| decoding | lanes | prefill tokens/s | ITL |")
    print("|---|---|---|---|")
    chunks = [int(chunk) for chunk in options.chunks.split(",")]
    for rows in map(int, options.rows.split(",")):
        work = make_work(weights, rows, options.threads)
        best: dict[str, Window] = {}
        for _ in _until(options.seconds):
            windows = {f"unified, chunk {chunk}": _unified(work, chunk) for chunk in chunks}
            windows[f"split, chunk {SPLIT_CHUNK}"] = _split(work, options.threads // 2)
            for name, window in windows.items():
                best[name] = max(best.get(name, window), window, key=lambda w: w.work)
        for name, window in best.items():
            tokens_per_s, itl_ms = window.prefill_per_s, window.itl_s * 1000
            print(f"| {rows} | {name} | {tokens_per_s:.0f} | {itl_ms:.1f} ms |", flush=True)
        work.executor.close()


def make_work(weights: Weights, rows: int, threads: int) -> Work:
    """An executor for so many rows, contexts filled."""
    blocks = (rows + 1) * (PROMPT // BLOCK_TOKENS)
    options = NativeOptions(kv_blocks=blocks, max_seqs=rows + 1, threads=threads)
    executor = NativeExecutor(weights, options)
    for block in range(blocks):
        executor.native.fill_block(False, block, SMALL_HALF)
    return Work(executor, rows)


def _unified(work: Work, chunk: int) -> Window:
    plans = (work.plan(Lane.UNIFIED, 0, work.rows, chunk) for _ in _until(WINDOW_S))
    step_s = median(work.seconds(plan) for plan in plans)
    return Window(work.rows, chunk / step_s, step_s)


def _split(work: Work, units: int) -> Window:
    """Decode steps while the other lane computes prompts."""
    prefill: list[float] = []
    running = True
    lock = threading.Lock()

    def compute_prompts() -> None:
        while running:
            with lock:
                handle = work.executor.submit(work.plan(Lane.PREFILL, units, 0, SPLIT_CHUNK), {})
            prefill.append(handle.result().timing.compute_s)

    thread = threading.Thread(target=compute_prompts)
    thread.start()
    decode = []
    for _ in _until(WINDOW_S):
        with lock:
            handle = work.executor.submit(work.plan(Lane.DECODE, units, work.rows, 0), {})
        decode.append(handle.result().timing.compute_s)
    running = False
    thread.join()
    return Window(work.rows, SPLIT_CHUNK / median(prefill), median(decode))


def _until(seconds: float) -> Iterator[None]:
    """Again and again, for some seconds."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield


if __name__ == "__main__":
    main()
