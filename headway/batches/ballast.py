"""Room kept back in the data folder, so that whoever wants to make room on a full disk can."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headway.errors import StorageFullError

BALLAST_BYTES = 512 * 1024
"""Room for some tens of SQLite's transactions."""

T = TypeVar("T")


class Ballast:
    """A file that is given up when what frees room needs some itself. Any thread."""

    def __init__(self, path: Path, size_bytes: int = BALLAST_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._lock = threading.Lock()

    def spend(self, function: Callable[[], T]) -> T:
        """What `function` gives; where it finds the disk full, once more without the ballast. It
        has to change nothing when it raises. Raises what it raises."""
        try:
            return function()
        except StorageFullError:
            if not self._drop():
                raise
        return function()

    def refill(self) -> None:
        """Take the room back, if it is there."""
        with self._lock:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError:
                return
            try:
                if os.fstat(fd).st_size < self._size_bytes:
                    self._grow(fd)
            finally:
                os.close(fd)

    def _grow(self, fd: int) -> None:
        try:
            os.posix_fallocate(fd, 0, self._size_bytes)
        except OSError:
            os.ftruncate(fd, 0)

    def _drop(self) -> bool:
        """Whether there was anything to give up."""
        with self._lock:
            try:
                held = self._path.stat().st_size > 0
                os.truncate(self._path, 0)
            except OSError:
                return False
            return held
