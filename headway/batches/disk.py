"""Files on disk such that nothing is ever half there.

data folder/
  lock           held by the one process that uses the folder
  headway.db     entries of files and jobs (SQLite)
  ballast        room for the deletions and cancellations that a full disk needs
  files/ID       contents; result files of live jobs grow here too, before they have an entry
  files/ID.part  an upload that is still coming in
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.errors import ConfigError, InvalidRequestError, StorageFullError

Write = Callable[[int, bytes], int]
"""`os.write`, or a test's disk that is full."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PART = ".part"


@contextmanager
def translated() -> Iterator[None]:
    """A full disk as StorageFullError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError("The disk is full.") from error
        raise


class Appender:
    """A file that grows by whole pieces: after a failed write it is as long as before."""

    def __init__(self, path: Path, write: Write = os.write) -> None:
        """Open or create it; may raise StorageFullError."""
        with translated():
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._write = write
        self._size = os.fstat(self._fd).st_size
        self._torn = False

    @property
    def size(self) -> int:
        """Bytes of whole pieces."""
        return self._size

    def append(self, piece: bytes) -> None:
        """Write a piece. Raises StorageFullError; then nothing of it is kept."""
        self._mend()
        rest = memoryview(piece)
        self._torn = True
        try:
            with translated():
                while rest:
                    rest = rest[self._write(self._fd, bytes(rest)) :]
        except BaseException:
            self._mend()
            raise
        self._torn = False
        self._size += len(piece)

    def cut(self, size: int) -> None:
        """Forget what is beyond `size`."""
        self._size, self._torn = size, True
        self._mend()

    def sync(self) -> None:
        """See to it that the pieces outlive a loss of power."""
        with translated():
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _mend(self) -> None:
        if self._torn:
            os.ftruncate(self._fd, self._size)
            self._torn = False


class Upload:
    """A file coming in. `commit` makes it there as a whole; `discard` leaves nothing."""

    def __init__(self, path: Path, limit_bytes: int, admit: Callable[[int], None], write: Write):
        self._path = path
        self._part = path.with_name(path.name + _PART)
        self._limit_bytes = limit_bytes
        self._admit = admit
        self._file = Appender(self._part, write)

    @property
    def size_bytes(self) -> int:
        """Bytes so far."""
        return self._file.size

    def write(self, data: bytes) -> None:
        """Take in more. Raises InvalidRequestError beyond the limit of a file, StorageFullError."""
        if self.size_bytes + len(data) > self._limit_bytes:
            raise InvalidRequestError(
                f"A file may have at most {self._limit_bytes / 1e6:,.0f} MB.", "file"
            )
        self._admit(len(data))
        self._file.append(data)

    def commit(self) -> None:
        """Put it in its place, durably. Raises StorageFullError."""
        self._file.sync()
        with translated():
            self._part.rename(self._path)
            sync_folder(self._path.parent)
        self._file.close()

    def discard(self) -> None:
        """Leave nothing. Not after a `commit` that succeeded."""
        self._file.close()
        self._part.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)


class FileFolder:
    """Contents of files by id."""

    def __init__(self, folder: Path, write: Write = os.write) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._write = write

    def path(self, id: str) -> Path:
        """Where a file's contents are. Ids are ours, so they name no other place."""
        return self._folder / id

    def upload(self, id: str, limit_bytes: int, admit: Callable[[int], None]) -> Upload:
        """Begin a file. `admit` is asked before each piece, with its size, and may refuse by
        raising. Raises StorageFullError."""
        return Upload(self.path(id), limit_bytes, admit, self._write)

    def appender(self, id: str) -> Appender:
        """Go on with a file, or begin it. Raises StorageFullError."""
        return Appender(self.path(id), self._write)

    def remove(self, id: str) -> None:
        """Delete a file's contents, if there are any. Whoever reads them may read on."""
        self.path(id).unlink(missing_ok=True)

    def sync(self) -> None:
        """See to it that names of new files outlive a loss of power."""
        sync_folder(self._folder)

    def sweep(self, known: set[str]) -> None:
        """Delete what no entry knows: the remains of uploads and deletions cut short."""
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make changes of names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FolderLock:
    """Keeps a second process out of a data folder; the system frees it when this one dies."""

    def __init__(self, path: Path) -> None:
        """Take it. Raises ConfigError if another process holds it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise ConfigError(
                f"the data folder {path.parent} is used by another server; choose another one "
                "with --data-dir"
            ) from error

    def release(self) -> None:
        """Let others in."""
        os.close(self._fd)
