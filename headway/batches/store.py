"""Entries of files and jobs in SQLite. All methods may be called from any thread; each is one
transaction, and what it returns is a copy."""

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from headway.batches.schema import full_translated, open_database
from headway.batches.types import (
    NEXT,
    Counts,
    Job,
    Order,
    Page,
    Problem,
    Results,
    Status,
    StoredFile,
)
from headway.errors import ConflictError

_LIVE = tuple(status.value for status in Status if status.live)
_LIVE_MARKS = ", ".join("?" * len(_LIVE))
_FILE = "id, tenant, purpose, filename, size_bytes, created_s, expires_s"


class Store:
    """The database. Every method may raise StorageFullError; then nothing was changed."""

    def __init__(self, path: Path) -> None:
        """Open or create it. Raises ConfigError if it is newer than this code, or not ours,
        and StorageFullError."""
        self._connection = open_database(path)
        self._connection.row_factory = sqlite3.Row
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    # Files

    def add_file(self, file: StoredFile) -> None:
        """Enter a file."""
        with self._transaction() as db:
            _insert_file(db, file)

    def file(self, id: str, tenant: str) -> StoredFile | None:
        """A tenant's file, or None."""
        with self._transaction() as db:
            sql = f"SELECT {_FILE} FROM files WHERE id = ? AND tenant = ?"
            row = db.execute(sql, (id, tenant)).fetchone()
        return None if row is None else StoredFile(*row)

    def files(self, tenant: str, page: Page, purpose: str = "") -> list[StoredFile]:
        """A page of a tenant's files, of one purpose if one is given."""
        condition = "AND (? = '' OR purpose = ?)"
        with self._transaction() as db:
            rows = _page(db, f"{_FILE} FROM files", tenant, page, condition, (purpose, purpose))
        return [StoredFile(*row) for row in rows]

    def remove_file(self, id: str, tenant: str) -> bool:
        """Remove a file's entry; False if there is none. Raises ConflictError while a job that
        hasn't ended reads it."""
        with self._transaction() as db:
            reader = db.execute(
                "SELECT id FROM batches WHERE input_file_id = ? AND tenant = ? "
                f"AND status IN ({_LIVE_MARKS})",
                (id, tenant, *_LIVE),
            ).fetchone()
            if reader is not None:
                raise ConflictError(f"File {id} is being read by {reader['id']}.")
            found = db.execute("DELETE FROM files WHERE id = ? AND tenant = ?", (id, tenant))
            return found.rowcount > 0

    def expired_files(self, now_s: float) -> list[StoredFile]:
        """Files whose time is over and that no live job reads."""
        with self._transaction() as db:
            rows = db.execute(
                f"SELECT {_FILE} FROM files WHERE expires_s <= ? AND id NOT IN "
                f"(SELECT input_file_id FROM batches WHERE status IN ({_LIVE_MARKS}))",
                (now_s, *_LIVE),
            ).fetchall()
        return [StoredFile(*row) for row in rows]

    def bytes_used(self) -> int:
        """Sizes of all files together."""
        with self._transaction() as db:
            return int(db.execute("SELECT TOTAL(size_bytes) FROM files").fetchone()[0])

    def known_ids(self) -> set[str]:
        """Ids of all files, and of those that live jobs write to."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT id FROM files UNION "
                f"SELECT output_file_id FROM batches WHERE status IN ({_LIVE_MARKS}) UNION "
                f"SELECT error_file_id FROM batches WHERE status IN ({_LIVE_MARKS})",
                (*_LIVE, *_LIVE),
            ).fetchall()
        return {row[0] for row in rows}

    # Jobs

    def add_job(self, job: Job) -> None:
        """Enter a new job. Raises ConflictError if its input file has gone meanwhile."""
        order, results = job.order, job.results
        values = {
            "id": job.id,
            "tenant": order.tenant,
            "input_file_id": order.input_file_id,
            "endpoint": order.endpoint,
            "completion_window": order.window,
            "window_s": order.window_s,
            "metadata": None if order.metadata is None else json.dumps(dict(order.metadata)),
            "output_life_s": order.output_life_s,
            "status": job.status.value,
            "created_s": job.created_s,
            "expires_s": job.expires_s,
            "output_file_id": results.output_file_id,
            "error_file_id": results.error_file_id,
        }
        columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        with self._transaction() as db:
            found = db.execute(
                f"INSERT INTO batches ({columns}) SELECT {marks} WHERE EXISTS "
                "(SELECT 1 FROM files WHERE id = :input_file_id AND tenant = :tenant)",
                values,
            )
            if not found.rowcount:
                raise ConflictError(f"File {order.input_file_id} has just been deleted.")

    def job(self, id: str, tenant: str | None = None) -> Job | None:
        """A job by its id, any tenant's if none is given; None if there is none."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT * FROM batches WHERE id = ? AND tenant = COALESCE(?, tenant)", (id, tenant)
            ).fetchone()
        return None if row is None else _job(row)

    def jobs(self, tenant: str, page: Page) -> list[Job]:
        """A page of a tenant's jobs."""
        with self._transaction() as db:
            return [_job(row) for row in _page(db, "* FROM batches", tenant, page)]

    def live_jobs(self) -> list[Job]:
        """Jobs that haven't ended, those whose window ends first before the others."""
        with self._transaction() as db:
            rows = db.execute(
                f"SELECT * FROM batches WHERE status IN ({_LIVE_MARKS}) ORDER BY expires_s, seq",
                _LIVE,
            ).fetchall()
        return [_job(row) for row in rows]

    def totals(self) -> dict[Status, tuple[int, Counts]]:
        """Jobs on record by status: how many, and their lines."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT status, count(*), sum(total), sum(completed), sum(failed) "
                "FROM batches GROUP BY status"
            ).fetchall()
        found = {Status(row[0]): (row[1], Counts(*row[2:])) for row in rows}
        return {status: found.get(status, (0, Counts())) for status in Status}

    def move(
        self,
        id: str,
        to: Status,
        now_s: float,
        counts: Counts | None = None,
        problems: Sequence[Problem] = (),
    ) -> bool:
        """Change a job's status; False if the table of transitions has no such way from where the
        job is now."""
        with self._transaction() as db:
            if not _move(db, id, to, now_s):
                return False
            if counts is not None:
                _set_counts(db, id, counts)
            if problems:
                text = json.dumps([asdict(problem) for problem in problems])
                db.execute("UPDATE batches SET problems = ? WHERE id = ?", (text, id))
            return True

    def set_counts(self, id: str, counts: Counts) -> None:
        """Note a job's progress."""
        with self._transaction() as db:
            _set_counts(db, id, counts)

    def publish(
        self, id: str, to: Status, now_s: float, counts: Counts, files: Sequence[StoredFile]
    ) -> bool:
        """End a job and enter its result files, both or neither; False as for `move`."""
        with self._transaction() as db:
            if not _move(db, id, to, now_s):
                return False
            _set_counts(db, id, counts)
            for file in files:
                _insert_file(db, file)
            db.execute(
                "UPDATE batches SET "
                "has_output = EXISTS (SELECT 1 FROM files WHERE files.id = output_file_id), "
                "has_errors = EXISTS (SELECT 1 FROM files WHERE files.id = error_file_id) "
                "WHERE id = ?",
                (id,),
            )
            return True

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._connection
        with self._lock, full_translated():
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")


def _insert_file(db: sqlite3.Connection, file: StoredFile) -> None:
    values = asdict(file)
    marks = ", ".join(f":{name}" for name in values)
    db.execute(f"INSERT INTO files ({', '.join(values)}) VALUES ({marks})", values)


def _set_counts(db: sqlite3.Connection, id: str, counts: Counts) -> None:
    sql = "UPDATE batches SET total = ?, completed = ?, failed = ? WHERE id = ?"
    db.execute(sql, (counts.total, counts.completed, counts.failed, id))


def _move(db: sqlite3.Connection, id: str, to: Status, now_s: float) -> bool:
    """The one place where a job's status changes."""
    sources = [status.value for status, following in NEXT.items() if to in following]
    found = db.execute(
        "UPDATE batches SET status = ?, times = json_set(times, ?, ?) "
        f"WHERE id = ? AND status IN ({', '.join('?' * len(sources))})",
        (to.value, f"$.{to.value}", int(now_s), id, *sources),
    )
    return found.rowcount > 0


def _page(
    db: sqlite3.Connection,
    what: str,
    tenant: str,
    page: Page,
    condition: str = "",
    values: Sequence[str] = (),
) -> list[sqlite3.Row]:
    """Rows of one page. An `after` that names nothing of this tenant gives an empty page."""
    table = what.rpartition(" ")[2]
    beyond, order = (">", "ASC") if page.oldest_first else ("<", "DESC")
    return db.execute(
        f"SELECT {what} WHERE tenant = ? {condition} AND (? = '' OR seq {beyond} "
        f"(SELECT seq FROM {table} WHERE id = ? AND tenant = ?)) ORDER BY seq {order} LIMIT ?",
        (tenant, *values, page.after, page.after, tenant, page.limit),
    ).fetchall()


def _job(row: sqlite3.Row) -> Job:
    metadata = row["metadata"]
    return Job(
        id=row["id"],
        order=Order(
            tenant=row["tenant"],
            input_file_id=row["input_file_id"],
            endpoint=row["endpoint"],
            window=row["completion_window"],
            window_s=row["window_s"],
            metadata=None if metadata is None else json.loads(metadata),
            output_life_s=row["output_life_s"],
        ),
        status=Status(row["status"]),
        created_s=row["created_s"],
        expires_s=row["expires_s"],
        results=Results(
            row["output_file_id"],
            row["error_file_id"],
            bool(row["has_output"]),
            bool(row["has_errors"]),
        ),
        times={Status(word): at for word, at in json.loads(row["times"]).items()},
        counts=Counts(row["total"], row["completed"], row["failed"]),
        problems=[Problem(**problem) for problem in json.loads(row["problems"])],
    )
