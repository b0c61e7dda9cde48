"""Usage: counted once, whatever happens to the disk or to a second server."""

import logging
import sqlite3
import threading
from pathlib import Path

import pytest

from headway.core.request import Usage
from headway.core.types import FinishReason, ServiceClass
from headway.engine.types import RequestEnd
from headway.errors import ConfigError
from headway.server.usage import Share, Tally, UsageBook, UsageLine, UsageRecorder
from headway.testing import ManualClock

REALTIME, STANDARD, BATCH = ServiceClass
HOUR_S = 3600


def end(tenant: str, service_class: ServiceClass, prompt: int, generated: int) -> RequestEnd:
    return RequestEnd(service_class, tenant, FinishReason.STOP, Usage(prompt, 3, generated))


def test_tokens_are_kept_by_tenant_class_and_hour(tmp_path: Path) -> None:
    book, clock = UsageBook(tmp_path), ManualClock(100 * HOUR_S)
    assert book.since(0) == []
    recorder = UsageRecorder(book, clock, every_s=0.01)
    recorder.start()
    recorder.on_finished(end("acme", BATCH, 10, 5))
    recorder.on_finished(end("acme", BATCH, 20, 6))
    recorder.on_finished(end("acme", REALTIME, 1, 1))
    clock.advance(HOUR_S)
    recorder.on_finished(end("other", BATCH, 7, 7))
    recorder.stop()
    assert book.since(0) == [
        UsageLine("acme", REALTIME, Tally(1, 1, 3, 1)),
        UsageLine("acme", BATCH, Tally(2, 30, 6, 11)),
        UsageLine("other", BATCH, Tally(1, 7, 3, 7)),
    ]
    assert book.since(101 * HOUR_S + 5) == [UsageLine("other", BATCH, Tally(1, 7, 3, 7))]
    assert book.since(102 * HOUR_S) == []


def test_several_servers_may_write_at_once(tmp_path: Path) -> None:
    def write() -> None:
        book = UsageBook(tmp_path)
        for _ in range(20):
            book.add({Share(1, "acme", BATCH): Tally(1, 2, 3, 4)})

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (line,) = UsageBook(tmp_path).since(0)
    assert line.tally == Tally(60, 120, 180, 240)


def test_what_cannot_be_written_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    folder.write_text("not a folder yet")
    recorder = UsageRecorder(UsageBook(folder), ManualClock(HOUR_S), every_s=0.01)
    with caplog.at_level(logging.ERROR):
        recorder.start()
        recorder.on_finished(end("acme", BATCH, 10, 5))
        while not caplog.records:
            recorder.on_finished(end("acme", BATCH, 0, 1))
        folder.unlink()
        recorder.on_finished(end("acme", BATCH, 10, 5))
        recorder.stop()
    (line,) = UsageBook(folder).since(0)
    assert line.tally.prompt == 20
    assert line.tally.generated == line.tally.answers - 2 + 10
    assert len(caplog.records) == 1


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    book = UsageBook(tmp_path)
    book.add({Share(1, "acme", BATCH): Tally(1, 2, 3, 4)})
    with sqlite3.connect(tmp_path / "usage.sqlite3") as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(ConfigError, match="version 2"):
        book.add({Share(1, "acme", BATCH): Tally(1, 2, 3, 4)})
    with pytest.raises(ConfigError, match="version 2"):
        book.since(0)
