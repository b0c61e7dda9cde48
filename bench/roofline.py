"""The CPU engine's steps beside what this machine can do at all, in one run.

    python bench/roofline.py MODEL.gguf [--rounds 20]

At one row a step reads every weight once: its bytes a second are held against plain reading by all
cores, of as many bytes as the weights are (which a large cache may hold in part, for both) and of
1 GiB. At 64 rows a step computes: its operations are held against the same formats' products hot in
cache. By the rule of headway.bench.rounds.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from gemm import HOT, Case, Machine, packed_copies
from step import Case as StepCase
from step import plans, run_once

from headway import _native
from headway.bench.rounds import Estimate, Probe, estimate, note, steady
from headway.executors.cpu import usable_cpus
from headway.executors.native import BLOCK_TOKENS, NativeExecutor, NativeOptions
from headway.models.loader import load_model
from headway.models.types import TensorType, Weights

ONE = StepCase("one row", 1, 64)
MANY = StepCase("64 rows", 64, 64)
STEPS = {1: 20, 64: 6}
SMALL_HALF = 0x2C00
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Work:
    """What a step has to do. bytes: of weights; ops: of one row, by format."""

    bytes: int
    ops: dict[str, int]

    @staticmethod
    def of(weights: Weights) -> "Work":
        """The embedding is looked up, and read as the head where the two are one."""
        matrices = [
            tensor
            for name, tensor in weights.tensors.items()
            if tensor.type is not TensorType.F32 and name != "embed"
        ]
        ops: Counter[str] = Counter()
        for tensor in matrices:
            ops[tensor.type.value] += 2 * tensor.rows * tensor.cols
        return Work(sum(tensor.data.nbytes for tensor in matrices), dict(ops))


class Limits:
    """What the machine does at best, measured anew each round."""

    def __init__(self, machine: Machine, work: Work) -> None:
        self._machine = machine
        self._work = work
        isa = _native.best_isa()
        self._arrays = [machine.to_read(nbytes) for nbytes in (work.bytes, GIB)]
        self._hot = {name: Case(isa, packed_copies(name, HOT)) for name in work.ops}

    def reading_gb_s(self) -> tuple[float, float]:
        """Of as many bytes as the weights', and of a GiB."""
        as_weights, large = map(self._machine.reading_gb_s, self._arrays)
        return as_weights, large

    def computing_s(self) -> float:
        """Seconds that 64 rows take at the rate of products hot in cache, on all cores."""
        return sum(64 * ops / self._peak(name) for name, ops in self._work.ops.items())

    def _peak(self, name: str) -> float:
        """Operations a second of all cores, each with the whole product to itself."""
        case = self._hot[name]
        matrix = case.copies[0]
        return 2 * 64 * matrix.rows * matrix.cols / case.product_s(self._machine, 64)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    weights = load_model(options.model).weights
    work, cores = Work.of(weights), usable_cpus()
    with ThreadPoolExecutor(max(1, cores - 1)) as pool:
        limits, step = Limits(Machine(cores, pool), work), stepper(weights)
        probe = Probe()
        probes, rows = [], []
        for _ in range(options.rounds):
            before = probe.rate()
            one_s, many_s = step(ONE), step(MANY)
            rows.append((one_s, many_s, *limits.reading_gb_s(), limits.computing_s()))
            probes.append((before, probe.rate()))
    report(work, rows, steady(probes))


def stepper(weights: Weights) -> Callable[[StepCase], float]:
    """Times steps on all cores: the median of some."""
    each = (ONE.context + 1 + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    options = NativeOptions(kv_blocks=MANY.rows * each, max_seqs=MANY.rows)
    executor = NativeExecutor(weights, options)
    for block in range(options.kv_blocks):
        executor.native.fill_block(False, block, SMALL_HALF)

    def seconds(case: StepCase) -> float:
        each_step = plans(case)
        return median(
            run_once(executor, next(each_step)).compute_s for _ in range(STEPS[case.rows])
        )

    return seconds


def shown(values: npt.NDArray[np.float64]) -> Estimate:
    """Median and interval over the rounds."""
    return estimate(values.tolist())


def report(work: Work, rows: Sequence[tuple[float, ...]], kept: list[bool]) -> None:
    """In Markdown."""
    print(f"{usable_cpus()} cores, {_native.best_isa().name}; {note(kept)}\n")
    kept = kept if any(kept) else [True] * len(kept)
    one_s, many_s, as_weights, large, ideal_s = (
        np.array(column)
        for column in zip(*[r for r, k in zip(rows, kept, strict=True) if k], strict=True)
    )
    reached = work.bytes / one_s / 1e9
    ops = 64 * sum(work.ops.values()) / 1e9
    print("| rows | step | reached | limit | share |")
    print("|---|---|---|---|---|")
    for name, limit in (("weights", as_weights), ("1 GiB", large)):
        print(
            f"| 1 | {median(one_s) * 1e3:.2f} ms | {shown(reached)} GB/s "
            f"| reading {name}: {shown(limit)} GB/s | {shown(reached / limit)} |"
        )
    print(
        f"| 64 | {median(many_s) * 1e3:.1f} ms | {shown(ops / many_s)} GOP/s "
        f"| hot: {shown(ops / ideal_s)} GOP/s | {shown(ideal_s / many_s)} |"
    )


if __name__ == "__main__":
    main()
