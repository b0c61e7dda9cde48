"""Lets requests in, counts who is inside, and empties the house when the server stops."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headway.server.errors import unavailable


class Gate:
    """Open until `close`. Used on the event loop's thread only."""

    def __init__(self) -> None:
        self._open = True
        self._inside: set[asyncio.Future[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open(self) -> bool:
        """Whether new requests are let in."""
        return self._open

    @property
    def inside(self) -> int:
        """How many are inside."""
        return len(self._inside)

    def check(self) -> None:
        """Raise ApiError (503) once the gate is closed."""
        if not self._open:
            raise unavailable("The server is stopping.", "draining")

    @contextmanager
    def enter(self) -> Iterator[asyncio.Future[None]]:
        """Be inside; the future is done when the time to finish is over.

        Raises ApiError (503) once the gate is closed.
        """
        self.check()
        cut = asyncio.get_running_loop().create_future()
        self._inside.add(cut)
        self._empty.clear()
        try:
            yield cut
        finally:
            self._inside.discard(cut)
            if not self._inside:
                self._empty.set()

    def close(self) -> None:
        """Let nobody in any more."""
        self._open = False

    async def drain(self, timeout_s: float) -> int:
        """Close, wait for those inside, and cut off whoever is left; how many these were."""
        self.close()
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return self.cut()
        return 0

    def cut(self) -> int:
        """Close, and cut off everybody inside; how many these were."""
        self.close()
        left = [cut for cut in self._inside if not cut.done()]
        for cut in left:
            cut.set_result(None)
        return len(left)
