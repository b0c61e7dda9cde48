"""Clocks for tests: one that moves only when told to, and real time behind the same door."""

import time
from typing import Protocol


class ManualClock:
    """Seconds that a test sets; call it to read the time, as with `time.monotonic`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward. Raises ValueError for a negative step: time doesn't run backwards."""
        if seconds < 0:
            raise ValueError(f"a clock can't go back by {-seconds} s")
        self._now_s += seconds

    def jump_to(self, when_s: float) -> None:
        """Move forward to an absolute time; a time already past changes nothing."""
        self._now_s = max(self._now_s, when_s)


class WallClock:
    """Real time with `ManualClock`'s members: `jump_to` sleeps towards a time, 1 ms at most."""

    def __call__(self) -> float:
        return time.monotonic()

    def jump_to(self, when_s: float) -> None:
        """Sleep; call it again until the time is reached, so that a change of plan is noticed."""
        time.sleep(min(max(when_s - time.monotonic(), 0.0), 0.001))


class Clock(Protocol):
    """A readable clock that can be waited on."""

    def __call__(self) -> float: ...

    def jump_to(self, when_s: float) -> None:
        """Get nearer to a time, or reach it."""
        ...
