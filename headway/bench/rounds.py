"""Rounds of a measurement on a machine that others use too.

What is compared is measured in the same round, one after the other, and only ratios within a round
count. A fixed piece of work is timed before and after each round: one whose probes are over 5 %
off the median of all was disturbed, and is left out and counted. What is left gives a median, with
the interval in which 95 % of medians of as many rounds drawn again would lie.
"""

import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from headway import _native
from headway.executors.cpu import usable_cpus

TOLERANCE = 0.05
_DRAWS = 2000
_PROBE_S = 0.1


class Probe:
    """Products hot in cache on every core at once."""

    def __init__(self) -> None:
        self._cores = usable_cpus()
        self._pool = ThreadPoolExecutor(self._cores)
        rng = np.random.default_rng(0)
        data = rng.integers(0, 32, 128 * 768 * 5 // 8, dtype=np.uint8)
        self._isa = _native.best_isa()
        self._matrix = _native.pack(_native.WeightType.Q4_1, 768, [data])
        x = rng.normal(size=(32, 768)).astype(np.float32)
        self._acts = _native.quantize(self._isa, x)

    def rate(self) -> float:
        """Products a second, of all cores together."""
        counts = self._pool.map(self._work, [time.perf_counter() + _PROBE_S] * self._cores)
        return sum(counts) / _PROBE_S

    def _work(self, end_s: float) -> int:
        out = np.empty((32, 128), dtype=np.float32)
        count = 0
        while time.perf_counter() < end_s:
            for _ in range(20):
                _native.gemm(self._isa, self._matrix, self._acts, out, (0, 32), (0, 8))
            count += 20
        return count


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over rounds and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 2
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def steady(probes: Sequence[tuple[float, float]]) -> list[bool]:
    """Which rounds were left alone, by their probes before and after."""
    usual = statistics.median(rate for pair in probes for rate in pair)
    return [all(abs(rate / usual - 1) <= TOLERANCE for rate in pair) for pair in probes]


def estimate(values: Sequence[float]) -> Estimate:
    """Of at least one value."""
    rng = random.Random(0)
    drawn = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(_DRAWS))
    return Estimate(statistics.median(values), drawn[_DRAWS // 40], drawn[-_DRAWS // 40])


def note(kept: Sequence[bool]) -> str:
    """How many rounds count."""
    left_out = len(kept) - sum(kept)
    if not any(kept):
        return f"none of {left_out} rounds was left alone, so all are shown: not to be quoted"
    return f"{sum(kept)} rounds; {left_out} more left out, their probes being over 5 % off"
