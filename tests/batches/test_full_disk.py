"""Making room on a disk that has none left, not even for the database's own notes."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.batches.ballast import BALLAST_BYTES, Ballast
from headway.batches.desk import BatchDesk
from headway.batches.types import Order, Status, StoredFile
from headway.errors import ConfigError, StorageFullError
from headway.testing import LinearDuration
from tests.batches.rig import URL, batch_server, jsonl, request
from tests.server.live import eventually


class CrowdedDisk:
    """A database's connection on a disk without room but for what the ballast gives up. It finds
    the disk full where SQLite does: when changes are committed."""

    def __init__(self, database: sqlite3.Connection, ballast: Path) -> None:
        self._database = database
        self._ballast = ballast
        self._begun = 0
        self.ballast_helps = True

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        if sql.startswith("BEGIN"):
            self._begun = self._database.total_changes
        changes = self._database.total_changes > self._begun
        if sql == "COMMIT" and changes and not (self.ballast_helps and self._given_up()):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._database.execute(sql, values)

    def _given_up(self) -> bool:
        return self._ballast.stat().st_size == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def crowd(desk: BatchDesk) -> Any:
    """Put the desk's database on a crowded disk from now on."""
    disk: Any = CrowdedDisk(desk.store._connection, desk.folder / "ballast")
    desk.store._connection = disk
    return disk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[BatchDesk]:
    desk = BatchDesk(tmp_path)
    yield desk
    desk.close()


def taken_in(desk: BatchDesk) -> StoredFile:
    incoming = desk.receive()
    incoming.write(jsonl([request(1)]))
    return incoming.accept("", "in.jsonl", 3600)


def test_files_can_be_deleted_and_jobs_cancelled(desk: BatchDesk) -> None:
    file, read = taken_in(desk), taken_in(desk)
    job = desk.create(Order("", read.id, URL, "24h", 86_400))
    crowd(desk)
    with pytest.raises(StorageFullError):
        desk.create(Order("", file.id, URL, "24h", 86_400))
    assert (desk.folder / "ballast").stat().st_size == BALLAST_BYTES, "for what makes room only"
    assert desk.cancel(job.id, "").status is Status.CANCELLING
    desk.delete_file(file.id, "")
    assert {path.name for path in (desk.folder / "files").iterdir()} == {read.id}
    assert (desk.folder / "ballast").stat().st_size == BALLAST_BYTES, "ready for the next one"


def test_expired_files_are_deleted(tmp_path: Path) -> None:
    now_s = [1000.0]
    desk = BatchDesk(tmp_path, clock=lambda: now_s[0])
    taken_in(desk)
    crowd(desk)
    now_s[0] += 4000
    desk.delete_expired()
    assert not list((tmp_path / "files").iterdir())
    desk.close()


def test_without_room_for_that_either_it_is_507_and_nothing_has_changed(tmp_path: Path) -> None:
    with batch_server(tmp_path, duration=LinearDuration(step_s=0.05, token_s=0)) as rig:
        file = rig.client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
        batch = rig.submit([request(i, max_tokens=30) for i in range(40)])
        eventually(lambda: rig.client.batches.retrieve(batch.id).status == "in_progress")
        crowd(rig.desk).ballast_helps = False
        http = rig.server.http()
        for answer in (
            http.delete(f"/v1/files/{file.id}"),
            http.post(f"/v1/batches/{batch.id}/cancel"),
        ):
            assert answer.status_code == 507
            assert answer.json()["error"]["code"] == "insufficient_storage"
        assert rig.client.files.content(file.id).text == "{}\n"
        assert rig.client.batches.retrieve(batch.id).status == "in_progress"
        rig.desk.store._connection = rig.desk.store._connection._database  # type: ignore[attr-defined]
        rig.client.files.delete(file.id)
        rig.client.batches.cancel(batch.id)
        assert rig.ended(batch).status == "cancelled"


def test_the_ballast_takes_only_room_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ballast"
    ballast = Ballast(path, size_bytes=2**62)  # more than any disk has
    ballast.refill()
    assert path.stat().st_size == 0

    def refused() -> None:
        raise StorageFullError("The disk is full.")

    with pytest.raises(StorageFullError):
        ballast.spend(refused)


def test_a_server_starts_on_a_full_disk_by_its_ballast(tmp_path: Path) -> None:
    tries: list[int] = []
    ballast = Ballast(tmp_path / "ballast", 4096)
    ballast.refill()

    def opened() -> str:
        tries.append((tmp_path / "ballast").stat().st_size)
        if tries[-1]:
            raise StorageFullError("The disk is full.")
        return "opened"

    assert ballast.spend(opened) == "opened"
    assert tries == [4096, 0]


def test_a_database_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "headway.db").mkdir()
    with pytest.raises(ConfigError, match=r"headway\.db can't be opened"):
        BatchDesk(tmp_path)
    (tmp_path / "headway.db").rmdir()
    BatchDesk(tmp_path).close()  # the lock was let go of
