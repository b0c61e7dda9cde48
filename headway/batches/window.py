"""How many lines are in the engine at once: enough that freed seats and blocks never wait for the
next line, and no more.

The engine's snapshot tells when it has enough: as many batch requests wait for admission as are
resident. Seats, blocks and realtime's load all show in that one figure.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.request import ClassCounts, Snapshot
from headway.core.types import ServiceClass


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Bounds of what is in the engine at once.

    lines: most lines.
    bytes: most bytes of requests, but for a single one that is larger.
    waiting: lines that may wait for admission even while nothing is resident.
    poll_s: how often the snapshot is looked at while there is no room.
    """

    lines: int = 512
    bytes: int = 64 * 1024 * 1024
    waiting: int = 8
    poll_s: float = 0.01


class Window:
    """Admits lines of all jobs, who take turns. On one event loop."""

    def __init__(self, snapshot: Callable[[], Snapshot], limits: WindowLimits) -> None:
        self._snapshot = snapshot
        self._limits = limits
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()
        self._lines = 0
        self._bytes = 0
        self._seen: Snapshot | None = None
        self._unseen = 0

    @property
    def lines(self) -> int:
        """Lines that are in."""
        return self._lines

    async def enter(self, size_bytes: int) -> None:
        """Wait until there is room for a line, and take it; `leave` gives it back."""
        async with self._turn:  # first come, first served, so that jobs take turns
            while not self._room(size_bytes):
                self._left.clear()
                try:
                    await asyncio.wait_for(self._left.wait(), self._limits.poll_s)
                except TimeoutError:
                    continue
            self._lines += 1
            self._bytes += size_bytes
            self._unseen += 1

    def leave(self, size_bytes: int) -> None:
        """Give a line's room back."""
        self._lines -= 1
        self._bytes -= size_bytes
        self._left.set()

    def _room(self, size_bytes: int) -> bool:
        counts, limits = self._counts(), self._limits
        if self._lines == 0:
            return True
        if self._lines >= limits.lines or self._bytes + size_bytes > limits.bytes:
            return False
        resident = counts.running + counts.paused + counts.swapped
        return counts.waiting + self._unseen < max(limits.waiting, resident)

    def _counts(self) -> ClassCounts:
        snapshot = self._snapshot()
        if snapshot is not self._seen:
            # What entered before this snapshot was published is in it, or will be in the next.
            self._seen, self._unseen = snapshot, 0
        return snapshot.classes.get(ServiceClass.BATCH, ClassCounts())
