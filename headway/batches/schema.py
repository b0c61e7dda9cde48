"""The database of files and jobs: its schema, and the way from older ones to it.

A released migration is never edited: a copy of each version is kept among the tests, and a new
version is one more entry at the end of MIGRATIONS.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from headway.errors import ConfigError, StorageFullError

APPLICATION_ID = 0x48445759
"""`HDWY` in SQLite's header, so that no other program's database is taken for ours."""

BUSY_TIMEOUT_S = 5.0

Migration = Sequence[str]

_FULL = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_WRITE,
    }
)


@contextmanager
def full_translated() -> Iterator[None]:
    """SQLite's words for a full disk as StorageFullError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in _FULL:
            raise StorageFullError("The disk is full.") from error
        raise


MIGRATIONS: Sequence[Migration] = (
    (
        """
        CREATE TABLE files (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            purpose TEXT NOT NULL,
            filename TEXT NOT NULL,
            size_bytes INTEGER NOT NULL,
            created_s INTEGER NOT NULL,
            expires_s INTEGER
        ) STRICT
        """,
        """
        CREATE TABLE batches (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            input_file_id TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            completion_window TEXT NOT NULL,
            window_s INTEGER NOT NULL,
            metadata TEXT,
            output_life_s INTEGER NOT NULL,
            status TEXT NOT NULL,
            created_s INTEGER NOT NULL,
            expires_s INTEGER NOT NULL,
            times TEXT NOT NULL DEFAULT '{}',
            total INTEGER NOT NULL DEFAULT 0,
            completed INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            problems TEXT NOT NULL DEFAULT '[]',
            output_file_id TEXT NOT NULL UNIQUE,
            error_file_id TEXT NOT NULL UNIQUE,
            has_output INTEGER NOT NULL DEFAULT 0,
            has_errors INTEGER NOT NULL DEFAULT 0
        ) STRICT
        """,
        "CREATE INDEX files_by_tenant ON files (tenant, seq)",
        "CREATE INDEX files_by_expiry ON files (expires_s)",
        "CREATE INDEX batches_by_tenant ON batches (tenant, seq)",
        "CREATE INDEX batches_by_status ON batches (status)",
        "CREATE INDEX batches_by_input ON batches (input_file_id)",
    ),
)


def open_database(path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread, one at a time.

    An older database is brought forward, all of the way or not at all. Raises ConfigError, without
    having written anything, for one that is newer or not ours, and StorageFullError.
    """
    try:
        with full_translated():
            if path.exists() and path.stat().st_size:
                _check(path, len(migrations))
            return _opened(path, migrations)
    except sqlite3.Error as error:
        raise ConfigError(f"{path} can't be opened: {error}") from error


def _opened(path: Path, migrations: Sequence[Migration]) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # What was answered with success outlives a loss of power, not only of the process.
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def version_of(connection: sqlite3.Connection) -> int:
    """How many migrations a database has had."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check(path: Path, newest: int) -> None:
    """Look at a database without a chance of changing it."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
        ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        version = version_of(connection)
    if not ours:
        raise ConfigError(f"{path} is another program's database")
    if version > newest:
        raise ConfigError(
            f"{path} was written by a newer Headway (version {version}, this one knows "
            f"{newest}); it is left as it is"
        )


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Apply what a database lacks in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in migrations[version_of(connection) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
