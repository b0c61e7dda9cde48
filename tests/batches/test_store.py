"""The database: every released version opens, a newer one is left alone, transitions hold."""

import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from headway.batches.schema import MIGRATIONS, open_database, version_of
from headway.batches.store import Store
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
from headway.errors import ConfigError, ConflictError
from tests.batches.dump import dump, load

STORES = Path(__file__).with_name("stores")
FILE = StoredFile("file-1", "a", "batch", "in.jsonl", 10, 1000, None)


def make_job(id: str = "batch_1", tenant: str = "a", input_file: str = "file-1") -> Job:
    order = Order(tenant, input_file, "/v1/completions", "24h", 86_400)
    results = Results(f"{id}-out", f"{id}-err")
    return Job(id, order, Status.VALIDATING, 1000, 87_400, results)


def schema_of(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    return sorted((name, " ".join(sql.split())) for name, sql in rows)


def test_there_is_a_copy_of_every_version() -> None:
    versions = sorted(int(path.stem.removeprefix("v")) for path in STORES.glob("v*.sql"))
    assert versions == list(range(1, len(MIGRATIONS) + 1))


@pytest.mark.parametrize("path", sorted(STORES.glob("v*.sql")), ids=lambda path: path.stem)
def test_every_released_version_comes_forward_with_all_it_holds(tmp_path: Path, path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    load(path.read_text(), old)
    Store(new).close()
    store = Store(old)
    jobs = {job.status: job for job in store.jobs("", Page()) + store.jobs("acme", Page())}
    files = store.files("", Page())
    live = {job.status for job in store.live_jobs()}
    store.close()
    assert schema_of(old) == schema_of(new)
    assert jobs.keys() == set(Status)
    assert live == {status for status in Status if status.live}
    assert jobs[Status.COMPLETED].results.has_output
    assert not jobs[Status.COMPLETED].results.has_errors
    assert jobs[Status.EXPIRED].counts == Counts(10, 7, 3)
    assert jobs[Status.FAILED].problems == [
        Problem("invalid_json_line", "The line is not JSON.", 3)
    ]
    assert jobs[Status.FAILED].order.metadata == {"team": "a", "note": "naïve"}
    assert jobs[Status.FINALIZING].times.keys() == {Status.IN_PROGRESS, Status.FINALIZING}
    assert "reports ä.jsonl" in {file.filename for file in files}


def test_released_migrations_stay_as_they_are(tmp_path: Path) -> None:
    for path in STORES.glob("v*.sql"):
        version = int(path.stem.removeprefix("v"))
        kept, made = tmp_path / f"{version}.kept", tmp_path / f"{version}.made"
        load(path.read_text(), kept)
        open_database(made, MIGRATIONS[:version]).close()
        assert schema_of(kept) == schema_of(made)


def test_a_migration_happens_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    open_database(path, MIGRATIONS).close()
    before = dump(path)
    broken = (*MIGRATIONS, ("ALTER TABLE files ADD COLUMN note TEXT", "NONSENSE"))
    with pytest.raises(ConfigError, match="NONSENSE"):
        open_database(path, broken)
    assert dump(path) == before
    good = (*MIGRATIONS, ("ALTER TABLE files ADD COLUMN note TEXT",))
    with closing(open_database(path, good)) as db:
        assert version_of(db) == len(MIGRATIONS) + 1
        db.execute("SELECT note FROM files")


def test_a_newer_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "headway.db"
    newer = (*MIGRATIONS, ("CREATE TABLE wonders (id TEXT)",))
    open_database(path, newer).close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="newer"):
        Store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all, but long enough" * 50, None])
def test_what_is_not_ours_is_refused_and_left_as_it_is(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "headway.db"
    if content is None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE t (x)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(ConfigError):
        Store(path)
    assert path.read_bytes() == before


def test_write_ahead_log(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "a.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_only_the_transitions_of_the_table_happen(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.add_file(FILE)
    for source, target in product(Status, Status):
        id = f"{source.value} to {target.value}"
        store.add_job(make_job(id))
        for step in way_to(source):
            assert store.move(id, step, 2000)
        assert store.move(id, target, 3000) == (target in NEXT[source])
        job = store.job(id)
        assert job is not None
        assert job.status is (target if target in NEXT[source] else source)
    store.close()


def way_to(target: Status) -> list[Status]:
    """Steps from a new job to a status."""
    ways: dict[Status, list[Status]] = {Status.VALIDATING: []}
    frontier = [Status.VALIDATING]
    for status in frontier:
        for following in NEXT[status]:
            if following not in ways:
                ways[following] = [*ways[status], following]
                frontier.append(following)
    return ways[target]


def test_tenants_see_only_what_is_theirs(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.add_file(FILE)
    store.add_job(make_job())
    assert store.file("file-1", "b") is None
    assert store.job("batch_1", "b") is None
    assert store.files("b", Page()) == []
    assert store.jobs("b", Page()) == []
    assert store.jobs("b", Page(after="batch_1")) == []
    assert not store.remove_file("file-x", "b")
    assert not store.remove_file("file-1", "b"), "not even that a job reads it"
    with pytest.raises(ConflictError):
        store.add_job(make_job("batch_2", "b"))
    store.close()


def test_publishing_is_all_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.add_file(FILE)
    store.add_job(make_job())
    assert store.move("batch_1", Status.IN_PROGRESS, 2000)
    taken = [StoredFile("file-1", "a", "batch_output", "x", 1, 1, None)]
    with pytest.raises(sqlite3.IntegrityError):
        store.publish("batch_1", Status.EXPIRED, 3000, Counts(3, 1, 2), taken)
    job = store.job("batch_1")
    assert job is not None
    assert (job.status, job.counts) == (Status.IN_PROGRESS, Counts())
    store.close()
