"""The desk where files and jobs are handed in, asked about and fetched. Any thread."""

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.batches.ballast import Ballast
from headway.batches.disk import FileFolder, FolderLock, Upload, Write
from headway.batches.store import Store
from headway.batches.types import (
    INPUT_PURPOSE,
    Job,
    Order,
    Page,
    Results,
    Status,
    StoredFile,
)
from headway.errors import (
    ConfigError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    StorageFullError,
)

_LOG = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Unix time in seconds."""


@dataclass(frozen=True, slots=True)
class DeskLimits:
    """What may be handed in.

    file_bytes: size of an input file.
    quota_bytes: all files together; beyond it uploads and new jobs are refused, results never are.
    """

    file_bytes: int = 200_000_000
    quota_bytes: int = 20_000_000_000


class Incoming:
    """A file being handed in: `write` its bytes, then `accept` it, or `discard` it."""

    def __init__(self, desk: "BatchDesk", upload: Upload, id: str) -> None:
        self._desk = desk
        self._upload = upload
        self._id = id

    def write(self, data: bytes) -> None:
        """Take in more. Raises InvalidRequestError beyond a file's limit, StorageFullError."""
        self._upload.write(data)

    def accept(self, tenant: str, filename: str, life_s: int) -> StoredFile:
        """Keep the file for `life_s` seconds. Raises StorageFullError; discard it then."""
        return self._desk._accept(self._upload, self._id, tenant, filename, life_s)

    def discard(self) -> None:
        """Leave nothing of it. Idempotent, and without effect on an accepted file."""
        self._desk._discard(self._upload, self._id)


class BatchDesk:
    """One data folder, and the rules for what is in it.

    changed: called after a job was created or cancelled; the runner listens.
    """

    def __init__(
        self,
        folder: Path,
        limits: DeskLimits | None = None,
        clock: Clock = time.time,
        write: Write = os.write,
    ) -> None:
        """Open or create the folder. Raises ConfigError if another process uses it, its database
        is of a newer version, or it can't be written, for want of room for example."""
        self.folder = folder
        self.clock = clock
        self.changed: Callable[[], None] = lambda: None
        self._limits = limits or DeskLimits()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FolderLock(folder / "lock")
        except OSError as error:
            raise ConfigError(f"can't use {folder}: {error.strerror or error}") from error
        self._ballast = Ballast(folder / "ballast")
        try:
            self.store = self._ballast.spend(lambda: Store(folder / "headway.db"))
            self.files = FileFolder(folder / "files", write)
            self.files.sweep(self.store.known_ids())
        except (OSError, StorageFullError) as error:
            self._lock.release()
            raise ConfigError(f"can't use {folder}: {error}") from error
        except BaseException:
            self._lock.release()
            raise
        self._ballast.refill()
        self._guard = threading.Lock()
        self._arriving: dict[str, int] = {}

    def close(self) -> None:
        """Let go of the folder."""
        self.store.close()
        self._lock.release()

    # Files

    def receive(self) -> Incoming:
        """Begin to take a file in. Raises StorageFullError."""
        id = f"file-{secrets.token_hex(12)}"
        with self._guard:
            self._arriving[id] = 0
        try:
            upload = self.files.upload(id, self._limits.file_bytes, lambda n: self._admit(id, n))
        except BaseException:
            self._forget(id)
            raise
        return Incoming(self, upload, id)

    def file(self, id: str, tenant: str) -> StoredFile:
        """A file's entry. Raises NotFoundError."""
        file = self.store.file(id, tenant)
        if file is None:
            raise NotFoundError(f"There is no file {id!r}.")
        return file

    def list_files(self, tenant: str, page: Page, purpose: str = "") -> list[StoredFile]:
        """A page of files."""
        return self.store.files(tenant, page, purpose)

    def content(self, id: str, tenant: str) -> Path:
        """Where a file's contents are. Raises NotFoundError."""
        return self.files.path(self.file(id, tenant).id)

    def delete_file(self, id: str, tenant: str) -> None:
        """Delete a file. Raises NotFoundError, ConflictError while a live job reads it, or, where
        a full disk has no room even for that, StorageFullError."""
        if not self._ballast.spend(lambda: self.store.remove_file(id, tenant)):
            raise NotFoundError(f"There is no file {id!r}.")
        self.files.remove(id)
        self._ballast.refill()

    def delete_expired(self) -> None:
        """Delete files whose time is over. Raises StorageFullError."""
        self._ballast.refill()
        for file in self.store.expired_files(self.clock()):
            try:
                self.delete_file(file.id, file.tenant)
            except (NotFoundError, ConflictError):
                _LOG.info("file %s expired, and was deleted or put to use just then", file.id)

    # Jobs

    def create(self, order: Order) -> Job:
        """Hand in a job. Raises InvalidRequestError, ConflictError, StorageFullError."""
        file = self.store.file(order.input_file_id, order.tenant)
        if file is None:
            raise InvalidRequestError(f"There is no file {order.input_file_id!r}.", "input_file_id")
        if file.purpose != INPUT_PURPOSE:
            raise InvalidRequestError(
                f"File {file.id} has the purpose {file.purpose!r}; a batch reads files of the "
                f"purpose {INPUT_PURPOSE!r}.",
                "input_file_id",
            )
        self._require_room(0)
        self._ballast.refill()
        now_s, key = self.clock(), secrets.token_hex(12)
        results = Results(f"file-{secrets.token_hex(12)}", f"file-{secrets.token_hex(12)}")
        expires_s = math.ceil(now_s + order.window_s)
        job = Job(f"batch_{key}", order, Status.VALIDATING, int(now_s), expires_s, results)
        self.store.add_job(job)
        self.changed()
        return job

    def job(self, id: str, tenant: str) -> Job:
        """A job as it is now. Raises NotFoundError."""
        job = self.store.job(id, tenant)
        if job is None:
            raise NotFoundError(f"There is no batch {id!r}.")
        return job

    def list_jobs(self, tenant: str, page: Page) -> list[Job]:
        """A page of jobs."""
        return self.store.jobs(tenant, page)

    def cancel(self, id: str, tenant: str) -> Job:
        """Ask for a job's end; without effect on one being cancelled. Raises NotFoundError,
        ConflictError if it has ended or is about to, or StorageFullError as for `delete_file`."""
        job = self.job(id, tenant)
        if self._ballast.spend(lambda: self.store.move(id, Status.CANCELLING, self.clock())):
            self.changed()
            return self.job(id, tenant)
        job = self.job(id, tenant)
        if job.status not in (Status.CANCELLING, Status.CANCELLED):
            raise ConflictError(f"Batch {id} can't be cancelled: it is {job.status.value}.")
        return job

    def _admit(self, id: str, size_bytes: int) -> None:
        with self._guard:
            self._require_room(sum(self._arriving.values()) + size_bytes)
            self._arriving[id] += size_bytes

    def _require_room(self, size_bytes: int) -> None:
        quota_bytes = self._limits.quota_bytes
        if self.store.bytes_used() + size_bytes > quota_bytes:
            raise StorageFullError(
                f"The data quota of {quota_bytes:,} bytes is used up; delete files that are no "
                "longer needed."
            )

    def _accept(
        self, upload: Upload, id: str, tenant: str, filename: str, life_s: int
    ) -> StoredFile:
        upload.commit()
        now_s = int(self.clock())
        file = StoredFile(
            id, tenant, INPUT_PURPOSE, filename, upload.size_bytes, now_s, now_s + life_s
        )
        try:
            self.store.add_file(file)
        except BaseException:
            self.files.remove(id)
            raise
        finally:
            self._forget(id)
        return file

    def _discard(self, upload: Upload, id: str) -> None:
        if self._forget(id):
            upload.discard()

    def _forget(self, id: str) -> bool:
        with self._guard:
            return self._arriving.pop(id, None) is not None
