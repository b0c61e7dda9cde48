"""Times the matrix products of the CPU engine, one shape at a time.

    python bench/gemm.py [--threads N] [--formats Q4_1,...] [--paths avx2,...] [--shapes 576x1536]

Prints GOP/s (a multiply and an add are two) by number of tokens, and for one token the GB/s of
weights beside what plain reading reaches. Best of many: on a shared machine others only ever add
time. The first shape stays in the L2 cache and shows the tiles themselves, each thread with a
product of its own; the others walk over copies enough to come from memory, each thread with its
share of every product. Threads wait for nobody in between, and what calling from Python takes is
left out.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headway import _native

HOT = "128x768"
# SmolLM2-135M: q, k and v; gate and up; down; head. Llama 3 8B: gate; down.
SHAPES = (HOT, "960x576", "3072x576", "576x1536", "49152x576", "14336x4096", "4096x14336")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256)
COLD_BYTES = 128 << 20
PIECE_BYTES = 2 << 20
BUDGET_S = 0.3
WINDOW_S = 0.01  # long beside handing it to a thread, short beside the quiet between neighbours

Int64s = npt.NDArray[np.int64]
Work = Callable[[int, int], None]  # one thread's part of a run: number of the run, of the thread


@dataclass(frozen=True, slots=True)
class Machine:
    """The threads to run on and their pool. budget_s: of time for a figure, on `clock`."""

    threads: int
    pool: ThreadPoolExecutor
    budget_s: float = BUDGET_S
    clock: Callable[[], float] = time.perf_counter

    def run_s(self, work: Work) -> float:
        """Seconds that a thread takes for a run while all threads make runs: the mean of the best
        of the windows that the budget of time has room for, with one run a thread at least."""
        done = [0] * self.threads

        def window(thread: int, begin_s: float) -> float:
            first = done[thread]
            while (now_s := self.clock()) < begin_s + WINDOW_S or done[thread] == first:
                work(done[thread], thread)
                done[thread] += 1
            return (done[thread] - first) / (now_s - begin_s)

        most, end_s = 0.0, self.clock() + self.budget_s
        while (begin_s := self.clock()) < end_s or not most:
            others = [self.pool.submit(window, i, begin_s) for i in range(1, self.threads)]
            rate = window(0, begin_s) + sum(other.result() for other in others)
            most = max(most, rate)
        return self.threads / most

    def to_read(self, nbytes: int) -> Int64s:
        """An array of about so many bytes [pieces, threads, items of a piece]."""
        pieces = -(-nbytes // (self.threads * PIECE_BYTES))
        return np.ones((pieces, self.threads, PIECE_BYTES // 8), dtype=np.int64)

    def reading_gb_s(self, array: Int64s) -> float:
        """GB/s of adding it up from end to end, again and again."""
        seconds = self.run_s(lambda run, thread: array[run % len(array), thread].sum())
        return PIECE_BYTES * self.threads / seconds / 1e9


@dataclass(frozen=True, slots=True)
class Case:
    """A matrix on an instruction path: hot in cache, or in copies enough for none to hold them."""

    isa: _native.Isa
    copies: list[_native.PackedMatrix]

    @property
    def hot(self) -> bool:
        """Whether each thread makes whole products."""
        return len(self.copies) == 1

    def product_s(self, machine: Machine, tokens: int) -> float:
        """Seconds a product of so many tokens, by all threads together."""
        call_s = replace(machine, threads=1).run_s(self._work(tokens, [(0, 0)]))
        panels, threads = self.copies[0].panels, machine.threads
        edges = [panels * i // threads for i in range(threads + 1)]
        shares = [(0, panels)] * threads if self.hot else list(pairwise(edges))
        seconds = machine.run_s(self._work(tokens, shares)) - call_s
        return seconds / threads if self.hot else seconds

    def _work(self, tokens: int, shares: list[tuple[int, int]]) -> Work:
        """Products with one copy after the other; a share, in panels, for each thread."""
        matrix = self.copies[0]
        x = np.random.default_rng(0).normal(size=(tokens, matrix.cols)).astype(np.float32)
        acts = _native.quantize(self.isa, x)
        outs = [np.empty((tokens, matrix.rows), dtype=np.float32) for _ in shares]

        def part(run: int, thread: int) -> None:
            copy = self.copies[run % len(self.copies)]
            _native.gemm(self.isa, copy, acts, outs[thread], (0, tokens), shares[thread])

        return part


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
    reading = machine.reading_gb_s(machine.to_read(COLD_BYTES))
    print(f"\n{name} {isa.name}, threads {machine.threads}; plain reading {reading:.1f} GB/s")
    print(
        f"{'GOP/s by tokens':18}" + "".join(f"{tokens:>8}" for tokens in TOKENS) + "    GB/s at 1"
    )
    for shape in shapes:
        if not fits(name, shape):
            continue
        case = Case(isa, packed_copies(name, shape))
        matrix = case.copies[0]
        line, rate = f"{shape + (' hot' if shape == HOT else ''):18}", 0.0
        for tokens in TOKENS:
            seconds = case.product_s(machine, tokens)
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
