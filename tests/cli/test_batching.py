"""What operators are shown of Batch jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.batches.desk import BatchDesk
from headway.batches.types import Counts, Order, Status
from headway.cli.batching import job_lines, job_totals

NOW_S = 1_000_000.0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[BatchDesk]:
    desk = BatchDesk(tmp_path, clock=lambda: NOW_S)
    yield desk
    desk.close()


def handed_in(desk: BatchDesk) -> str:
    """A new job's id."""
    incoming = desk.receive()
    incoming.write(b"{}\n")
    file = incoming.accept("", "a.jsonl", 3600)
    return desk.create(Order("", file.id, "/v1/completions", "24h", 86_400)).id


def test_jobs_and_lines_by_state(desk: BatchDesk) -> None:
    first, second, third = (handed_in(desk) for _ in range(3))
    for job in (first, second):
        desk.store.move(job, Status.IN_PROGRESS, NOW_S, Counts(10))
        desk.store.set_counts(job, Counts(10, 4, 1))
    desk.store.move(second, Status.FINALIZING, NOW_S)
    desk.store.move(second, Status.COMPLETED, NOW_S)
    totals = job_totals(desk)
    assert {status: n for status, n in totals.jobs.items() if n} == {
        "validating": 1,
        "in_progress": 1,
        "completed": 1,
    }
    assert set(totals.jobs) == {status.value for status in Status}
    assert totals.lines == {"completed": 8, "failed": 2, "waiting": 5}
    lines = job_lines(desk)
    shown = {line.id: (line.status, line.total, line.completed, line.failed) for line in lines}
    assert shown == {first: ("in_progress", 10, 4, 1), third: ("validating", 0, 0, 0)}


def test_a_desk_without_jobs(desk: BatchDesk) -> None:
    totals = job_totals(desk)
    assert sum(totals.jobs.values()) == 0
    assert set(totals.lines.values()) == {0}
    assert job_lines(desk) == []
