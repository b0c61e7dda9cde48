"""Whether memory is flat: how much it grows once a server is warm."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_WARM_SHARE = 0.5
"""Of a server's life: caches fill, arenas grow to what the load asks of them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory of a process at a time, in bytes and seconds."""

    time_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What a fitted line grows by over the later half of the samples, over so many seconds."""

    grown_bytes: float
    seconds: float
    median_bytes: float

    def __str__(self) -> str:
        mib = self.grown_bytes / 2**20
        return f"{self.median_bytes / 2**20:.0f} MiB, {mib:+.1f} MiB in {self.seconds:.0f} s"


def growth(samples: Sequence[Sample]) -> Growth:
    """Of one server's life, its first half left out: the median of all slopes between two samples
    that are a third of the time apart or more, which single peaks don't move."""
    warm = [s for s in samples if s.memory_bytes][int(len(samples) * _WARM_SHARE) :]
    assert len(warm) >= 6, "too few samples to tell"
    span_s = warm[-1].time_s - warm[0].time_s
    slopes = [
        (later.memory_bytes - earlier.memory_bytes) / (later.time_s - earlier.time_s)
        for i, earlier in enumerate(warm)
        for later in warm[i + 1 :]
        if later.time_s - earlier.time_s >= span_s / 3
    ]
    median = statistics.median(s.memory_bytes for s in warm)
    return Growth(statistics.median(slopes) * span_s, span_s, median)
