"""Result files: whole pieces only, and what a crash leaves is cut off."""

import json
import os
import random
from pathlib import Path

import pytest

from headway.batches.disk import Appender, FileFolder
from headway.batches.lines import Line, answer_line, read_lines, read_results, unanswered_line
from headway.batches.results import ResultLog
from headway.batches.types import Counts, LineAnswer, Results
from headway.errors import StorageFullError
from tests.batches.rig import Disk

RESULTS = Results("file-out", "file-err")
ANSWER = LineAnswer(200, b'{"choices":[]}', "req_1")


def piece(number: int) -> bytes:
    return answer_line("batch_ab", Line(number, f"c{number}"), ANSWER)


def late(number: int) -> bytes:
    return unanswered_line("batch_ab", Line(number, f"c{number}"), "batch_expired", "Too late.")


def test_lines_of_results_are_openais() -> None:
    assert json.loads(piece(7)) == {
        "id": "batch_req_ab_7",
        "custom_id": "c7",
        "response": {"status_code": 200, "request_id": "req_1", "body": {"choices": []}},
        "error": None,
    }
    assert json.loads(late(8)) == {
        "id": "batch_req_ab_8",
        "custom_id": "c8",
        "response": None,
        "error": {"code": "batch_expired", "message": "Too late."},
    }


def test_a_log_knows_after_a_crash_at_any_byte_which_lines_are_done(tmp_path: Path) -> None:
    files = FileFolder(tmp_path)
    whole = piece(3) + piece(1) + piece(2)
    ends = {0: 0, 1: len(piece(3)), 2: len(piece(3) + piece(1)), 3: len(whole)}
    for size in range(len(whole) + 1):
        files.path("file-out").write_bytes(whole[:size])
        log = ResultLog(files, RESULTS)
        count = sum(size >= end for end in ends.values()) - 1
        assert log.done == set([3, 1, 2][:count])
        assert log.output_bytes == files.path("file-out").stat().st_size == ends[count]
        log.add_output(9, piece(9))
        log.close()
        assert files.path("file-out").read_bytes() == whole[: ends[count]] + piece(9)


def test_a_log_drops_what_a_loss_of_power_left(tmp_path: Path) -> None:
    files = FileFolder(tmp_path)
    files.path("file-out").write_bytes(piece(1) + b"\0" * 100 + b"\n" + piece(2))
    files.path("file-err").write_bytes(late(5))
    log = ResultLog(files, RESULTS)
    assert (log.done, log.gave_up, log.counts(9)) == ({1, 5}, True, Counts(9, 1, 1))
    log.close()
    assert files.path("file-out").read_bytes() == piece(1)


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"id": "batch_req_j_2", "custom_id": "a"}\n',
        b'{"id": 2, "response": null}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_results_end_before_the_first_that_is_damaged(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "results"
    path.write_bytes(piece(1) + damaged + piece(3))
    assert [result.number for result in read_results(path)] == [1]


def test_an_appender_keeps_nothing_of_what_does_not_fit(tmp_path: Path) -> None:
    disk = Disk(room=25)
    file = Appender(tmp_path / "a", disk.write)
    file.append(b"0123456789")
    with pytest.raises(StorageFullError):
        file.append(b"x" * 20)
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    disk.room = 5
    file.append(b"abc")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"0123456789abc"


def test_an_appender_mends_later_what_it_could_not_mend_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(room=3)
    file = Appender(tmp_path / "a", disk.write)
    with monkeypatch.context() as patch:

        def failing(fd: int, size: int) -> None:
            raise OSError(5, "input/output error")

        patch.setattr(os, "ftruncate", failing)
        with pytest.raises(OSError, match="input/output"):
            file.append(b"abcdef")
    disk.room = 100
    file.append(b"xyz")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"xyz"


def test_a_sweep_leaves_what_is_known(tmp_path: Path) -> None:
    files = FileFolder(tmp_path)
    for name in ("file-1", "file-2", "file-3.part"):
        files.path(name).write_bytes(b"")
    files.sweep({"file-1"})
    assert [path.name for path in tmp_path.iterdir()] == ["file-1"]


def test_lines_are_numbered_as_an_editor_shows_them(tmp_path: Path) -> None:
    path = tmp_path / "in"
    line = b'{"custom_id": "%d", "method": "POST", "url": "/u", "body": {"x": 1}}'
    path.write_bytes(b"\xef\xbb\xbf" + line % 1 + b"\r\n\r\n" + line % 3 + b"\n\n" + line % 5)
    lines = list(read_lines(path, "/u", 1000))
    assert [(found.number, found.custom_id, found.body) for found in lines] == [
        (number, str(number), b'{"x":1}') for number in (1, 3, 5)
    ]


def test_a_huge_line_is_passed_over_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "in"
    line = b'{"custom_id": "a", "method": "POST", "url": "/u", "body": {}}\n'
    path.write_bytes(b"x" * 5_000_000 + b"\n" + line)
    first, second = read_lines(path, "/u", 1000)
    assert first.problem is not None and first.problem.code == "line_too_long"
    assert (second.number, second.problem) == (2, None)


def test_no_bytes_break_the_reader(tmp_path: Path) -> None:
    rng, path = random.Random(9), tmp_path / "in"
    line = b'{"custom_id": "a", "method": "POST", "url": "/u", "body": {"x": [1e9, "\\u00e9"]}}\n'
    for _ in range(500):
        content = bytearray(line * 4)
        for _ in range(rng.randrange(1, 12)):
            at = rng.randrange(len(content))
            content[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        path.write_bytes(content)
        for found in read_lines(path, "/u", 200):
            assert found.problem is not None or isinstance(json.loads(found.body), dict)
