"""Times the matrix products of the CPU engine, one shape at a time.

    python bench/gemm.py [--threads N] [--formats Q4_1,...] [--paths avx2,...] [--shapes 576x1536]

Prints GOP/s (a multiply and an add are two) by number of tokens, and for one token the GB/s of
weights beside what plain reading reaches. Best of many: on a shared machine others only ever add
time. The first shape stays in the L2 cache and shows the tiles themselves; the others walk over
copies enough to come from memory.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np

from headway import _native

HOT = "128x768"
# SmolLM2-135M: q, k and v; gate and up; down; head. Llama 3 8B: gate; down.
SHAPES = (HOT, "960x576", "3072x576", "576x1536", "49152x576", "14336x4096", "4096x14336")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256)
COLD_BYTES = 128 << 20
RUN_BYTES = 8 << 20  # of one thread, where the start of a run should not show
BUDGET_S = 0.3

Work = Callable[[int, int], None]  # one thread's share of a run: index of the run, of the thread


@dataclass(frozen=True, slots=True)
class Machine:
    """The threads to run on and their pool."""

    threads: int
    pool: ThreadPoolExecutor

    def best_s(self, work: Work) -> float:
        """Seconds of the fastest of the runs that the budget of time has room for."""
        fastest, end = float("inf"), time.perf_counter() + BUDGET_S
        for run in count():
            start = time.perf_counter()
            if start > end:
                break
            others = [self.pool.submit(work, run, i) for i in range(1, self.threads)]
            work(run, 0)
            for other in others:
                other.result()
            fastest = min(fastest, time.perf_counter() - start)
        return fastest

    def reading_gb_s(self) -> float:
        """GB/s of adding up an array that no cache holds."""
        pieces = np.ones(COLD_BYTES // 8, dtype=np.int64).reshape(-1, self.threads, RUN_BYTES // 8)
        seconds = self.best_s(lambda run, thread: pieces[run % len(pieces), thread].sum())
        return RUN_BYTES * self.threads / seconds / 1e9


@dataclass(frozen=True, slots=True)
class Case:
    """A matrix on an instruction path, in copies enough for the caches not to hold them."""

    isa: _native.Isa
    copies: list[_native.PackedMatrix]
    threads: int

    def copies_a_run(self, tokens: int) -> int:
        """One on a single thread; else so many that handing out the shares does not show."""
        work_bytes = self.copies[0].nbytes * tokens
        return 1 if self.threads == 1 else max(1, RUN_BYTES * self.threads // work_bytes)

    def work(self, tokens: int) -> Work:
        """Products of so many tokens with the next copies, panels split among the threads."""
        matrix = self.copies[0]
        x = np.random.default_rng(0).normal(size=(tokens, matrix.cols)).astype(np.float32)
        acts = _native.quantize(self.isa, x)
        out = np.empty((tokens, matrix.rows), dtype=np.float32)

        each = self.copies_a_run(tokens)

        def share(run: int, thread: int) -> None:
            first, last = (matrix.panels * i // self.threads for i in (thread, thread + 1))
            for i in range(run * each, (run + 1) * each):
                copy = self.copies[i % len(self.copies)]
                _native.gemm(self.isa, copy, acts, out, (0, tokens), (first, last))

        return share


def packed_copies(name: str, shape: str) -> list[_native.PackedMatrix]:
    """Matrices of one format with small random quants."""
    rows, cols = map(int, shape.split("x"))
    kind = _native.WeightType[name]
    bits = {"Q4_0": 4.5, "Q4_1": 5, "Q8_0": 8.5, "Q4_K": 4.5, "Q6_K": 6.5625}[name]
    size = round(rows * cols * bits / 8)
    # Bytes whose halves, where a scale lies, are small finite numbers.
    data = np.random.default_rng(0).integers(0, 32, size, dtype=np.uint8)
    copies = 1 if shape == HOT else max(2, COLD_BYTES // size)
    return [_native.pack(kind, cols, [data]) for _ in range(copies)]


def fits(name: str, shape: str) -> bool:
    """K-quants come in super blocks of 256 columns."""
    return not (name.endswith("_K") and int(shape.split("x")[1]) % 256)


def print_table(machine: Machine, name: str, isa: _native.Isa, shapes: list[str]) -> None:
    """One line a shape."""
    reading = machine.reading_gb_s()
    print(f"\n{name} {isa.name}, threads {machine.threads}; plain reading {reading:.1f} GB/s")
    print(
        f"{'GOP/s by tokens':18}" + "".join(f"{tokens:>8}" for tokens in TOKENS) + "    GB/s at 1"
    )
    for shape in shapes:
        if not fits(name, shape):
            continue
        case = Case(isa, packed_copies(name, shape), machine.threads)
        matrix = case.copies[0]
        line, rate = f"{shape + (' hot' if shape == HOT else ''):18}", 0.0
        for tokens in TOKENS:
            seconds = machine.best_s(case.work(tokens)) / case.copies_a_run(tokens)
            line += f"{2e-9 * tokens * matrix.rows * matrix.cols / seconds:8.0f}"
            rate = matrix.nbytes / seconds / 1e9 if tokens == 1 else rate
        print(f"{line}{rate:13.1f}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--formats", default="Q4_1,Q4_0,Q8_0,Q4_K,Q6_K")
    paths = [isa.name for isa in _native.Isa if _native.supports(isa)]
    parser.add_argument("--paths", default=",".join(paths))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    args = parser.parse_args()
    with ThreadPoolExecutor(max(1, args.threads - 1)) as pool:
        machine = Machine(args.threads, pool)
        for path in args.paths.split(","):
            for name in args.formats.split(","):
                print_table(machine, name, _native.Isa[path], args.shapes.split(","))


if __name__ == "__main__":
    main()
