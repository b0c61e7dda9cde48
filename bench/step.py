"""Times single steps of the CPU executor: decode rows at several contexts, and a prefill chunk.

    python bench/step.py MODEL.gguf [--threads N] [--isa PATH] [--only decode-1@64,...]

Contexts are not computed: blocks are filled with one small value, which costs attention the same.
Prints milliseconds, the median over the repeats: the whole step as Python sees it, CPU time of all
threads (what to look at on a busy machine), the part spent outside C++, and the parts inside.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.core.plan import Chunk, Open, SamplingSpec, StepPlan, Truncation
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.native import BLOCK_TOKENS, NativeExecutor, NativeOptions, NativeStep
from headway.models.loader import load_model

SMALL_HALF = 0x2C00  # 0.0625


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of `tokens` tokens each, at a context of so many tokens before them."""

    name: str
    rows: int
    context: int
    tokens: int = 1
    sampling: SamplingSpec = SamplingSpec()
    reps: int = 15


WARM = SamplingSpec(temperature=0.8, truncation=Truncation(top_p=0.95))
CASES = (
    Case("decode-1@64", 1, 64, reps=60),
    Case("decode-8@64", 8, 64, reps=30),
    Case("decode-32@64", 32, 64),
    Case("decode-64@64", 64, 64),
    Case("decode-64@64-top-p", 64, 64, sampling=WARM),
    Case("decode-1@1000", 1, 1000, reps=40),
    Case("decode-1@4000", 1, 4000, reps=30),
    Case("decode-32@1000", 32, 1000),
    Case("decode-32@4000", 32, 4000, reps=5),
    Case("prefill-512@0", 1, 0, tokens=512, reps=5),
    Case("prefill-512@1536", 1, 1536, tokens=512, reps=5),
)
MOST_ROWS = 64


def plans(case: Case) -> Iterator[StepPlan]:
    """The case's step again and again; the first one opens the requests."""
    blocks_each = -(-(case.context + case.tokens) // BLOCK_TOKENS)
    requests = [RequestId(i) for i in range(case.rows)]
    chunks = tuple(
        Chunk(
            request,
            [1 + (7 * int(request) + i) % 1000 for i in range(case.tokens)],
            case.context,
            [BlockId(int(request) * blocks_each + i) for i in range(blocks_each)],
            blocks_each,
            True,
        )
        for request in requests
    )
    opens = tuple(Open(request, [1], case.sampling) for request in requests)
    while True:
        yield StepPlan(0, Lane.UNIFIED, opens=opens, chunks=chunks)
        opens = ()


@dataclass(frozen=True, slots=True)
class Timed:
    """One step in seconds: whole, CPU time of all threads, inside C++, and by part."""

    whole_s: float
    cpu_s: float
    compute_s: float
    parts_s: dict[str, float]


def run_once(executor: NativeExecutor, plan: StepPlan) -> Timed:
    """Runs and times a plan."""
    cpu = time.process_time()
    start = time.perf_counter()
    handle: NativeStep = executor.submit(plan, {})
    result = handle.result()
    whole = time.perf_counter() - start
    cpu = time.process_time() - cpu
    return Timed(whole, cpu, result.timing.compute_s, handle.native.parts())


def run_case(executor: NativeExecutor, case: Case) -> dict[str, float]:
    """Median milliseconds by name."""
    steps = plans(case)
    blocks = case.rows * -(-(case.context + case.tokens) // BLOCK_TOKENS)
    for block in range(blocks):
        executor.native.fill_block(False, block, SMALL_HALF)
    for _ in range(2):
        run_once(executor, next(steps))
    timed = [run_once(executor, next(steps)) for _ in range(case.reps)]
    row = {"step": [t.whole_s for t in timed], "cpu": [t.cpu_s for t in timed]}
    row["python"] = [t.whole_s - t.compute_s for t in timed]
    row |= {name: [t.parts_s[name] for t in timed] for name in timed[0].parts_s}
    medians = {name: 1e3 * statistics.median(values) for name, values in row.items()}
    return {**medians, "best": 1e3 * min(row["step"])}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    cases = [c for c in CASES if not args.only or c.name in args.only.split(",")]
    blocks = max(c.rows * -(-(c.context + c.tokens) // BLOCK_TOKENS) for c in cases)
    options = NativeOptions(
        kv_blocks=blocks,
        max_seqs=MOST_ROWS,
        max_model_len=4096,
        threads=args.threads,
        isa=args.isa,
    )
    executor = NativeExecutor(load_model(args.model).weights, options)
    header = False
    for case in cases:
        row = run_case(executor, case)
        rate = case.rows * case.tokens / row["step"] * 1e3
        if not header:
            print(f"{'case':20}{'tok/s':>8}" + "".join(f"{name:>10}" for name in row))
            header = True
        print(f"{case.name:20}{rate:8.0f}" + "".join(f"{ms:10.3f}" for ms in row.values()))
    executor.close()


if __name__ == "__main__":
    main()
