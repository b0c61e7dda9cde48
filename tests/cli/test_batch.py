"""`headway batch` against a live server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli import main
from tests.batches.rig import BatchRig, batch_server, jsonl, request
from tests.server.live import eventually

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchRig]:
    monkeypatch.delenv("HEADWAY_API_KEY", raising=False)
    with batch_server(tmp_path / "data") as rig:
        yield rig


def run(rig: BatchRig, *arguments: str) -> int:
    return main(["batch", arguments[0], "--url", rig.server.url, *arguments[1:]])


def test_submit_status_and_fetch(rig: BatchRig, tmp_path: Path, capsys: Capture) -> None:
    source, target = tmp_path / 'prompts "ä".jsonl', tmp_path / "out.jsonl"
    source.write_bytes(jsonl([request(i) for i in range(20)]))
    assert run(rig, "submit", str(source)) == 0
    id = capsys.readouterr().out.strip()
    assert id.startswith("batch_")
    assert run(rig, "status", id, "--wait") == 0
    shown = capsys.readouterr().out
    assert "completed" in shown and "20 of 20 lines" in shown and "/v1/completions" in shown
    assert run(rig, "status") == 0
    assert capsys.readouterr().out == f"{id}  completed    20 of 20 lines\n"
    assert run(rig, "fetch", id, "-o", str(target)) == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert {line["custom_id"] for line in lines} == {f"line-{i}" for i in range(20)}
    capsys.readouterr()
    assert run(rig, "fetch", id) == 0
    assert capsys.readouterr().out == target.read_text()
    names = [file.filename for file in rig.client.files.list(purpose="batch")]
    assert names == ["prompts %22ä%22.jsonl"]


def test_failed_lines_show_in_status_and_exit(
    rig: BatchRig, tmp_path: Path, capsys: Capture
) -> None:
    source, errors = tmp_path / "in.jsonl", tmp_path / "err.jsonl"
    source.write_bytes(jsonl([request(1), request(2, temperature=9), request(3)]))
    assert run(rig, "submit", str(source), "--wait") == 1
    out, err = capsys.readouterr()
    assert "2 of 3 lines, 1 failed" in err
    id = out.strip()
    assert run(rig, "fetch", id) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "--errors" in err
    assert run(rig, "fetch", id, "--errors", str(errors)) == 1
    assert json.loads(errors.read_text())["custom_id"] == "line-2"


def test_a_file_that_is_wrong_as_a_whole(rig: BatchRig, tmp_path: Path, capsys: Capture) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("nonsense\n")
    assert run(rig, "submit", str(source)) == 2
    assert "is not JSON; see --endpoint" in capsys.readouterr().err
    named = tmp_path / "named.jsonl"
    named.write_text('{"custom_id": "a"}\n')
    assert run(rig, "submit", str(named)) == 2
    assert "names no 'url'; give one with --endpoint" in capsys.readouterr().err
    assert run(rig, "submit", str(source), "--endpoint", "/v1/completions", "--wait") == 1
    assert "line 1: The line is not JSON" in capsys.readouterr().err


def test_cancel(rig: BatchRig, tmp_path: Path, capsys: Capture) -> None:
    batch = rig.submit([request(i, max_tokens=300) for i in range(100)])
    eventually(lambda: rig.client.batches.retrieve(batch.id).status == "in_progress")
    assert run(rig, "fetch", batch.id) == 2
    assert "--wait" in capsys.readouterr().err
    assert run(rig, "cancel", batch.id) == 0
    assert run(rig, "fetch", batch.id, "--wait") == 1
    assert "cancelled" in capsys.readouterr().err
    assert run(rig, "cancel", "batch_none") == 2
    assert "404: There is no batch 'batch_none'" in capsys.readouterr().err


def test_a_target_that_cannot_be_written(rig: BatchRig, capsys: Capture) -> None:
    done = rig.ended(rig.submit([request(1)]))
    assert run(rig, "fetch", done.id, "-o", "/no/such/folder/out.jsonl") == 2
    assert "/no/such/folder/out.jsonl can't be written" in capsys.readouterr().err
