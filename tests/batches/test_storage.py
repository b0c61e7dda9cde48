"""Where files of jobs have no room: full disks, quotas, uploads cut short, files out of date."""

import socket
from pathlib import Path

import openai
import pytest

from headway.batches.desk import BatchDesk, DeskLimits
from headway.batches.types import Order
from tests.batches.rig import URL, Disk, batch_server, jsonl, request
from tests.server.live import eventually


def test_a_full_disk_pauses_jobs_and_refuses_uploads(tmp_path: Path) -> None:
    lines = jsonl([request(i) for i in range(60)])
    disk = Disk(room=len(lines) + 5_000)  # not enough for the answers
    with batch_server(tmp_path, write=disk.write) as rig:
        client = rig.client
        file = client.files.create(file=("in.jsonl", lines), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        eventually(lambda: disk.refused > 3)
        files = [path for path in (tmp_path / "files").iterdir() if path.stat().st_size]
        for path in files:
            assert path.read_bytes().endswith(b"\n"), "half a line"
        assert client.batches.retrieve(batch.id).status == "in_progress"
        answer = rig.server.http().post(
            "/v1/files", files={"file": ("a.jsonl", b"x" * 300_000)}, data={"purpose": "batch"}
        )
        assert answer.status_code == 507
        assert answer.json()["error"]["code"] == "insufficient_storage"
        assert not list((tmp_path / "files").glob("*.part"))
        assert len(list(client.files.list())) == 1
        eventually(rig.engine.idle)  # nothing new is started meanwhile
        with disk._lock:
            disk.room = 10_000_000
        done = rig.ended(batch)
        results = rig.results(done.output_file_id)
    assert done.status == "completed"
    assert sorted(r["custom_id"] for r in results) == sorted(f"line-{i}" for i in range(60))


def test_a_full_disk_under_the_database_refuses_and_pauses(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        file = rig.client.files.create(file=("in.jsonl", jsonl([request(1)])), purpose="batch")
        database = rig.desk.store._connection
        most = database.execute("PRAGMA max_page_count").fetchone()[0]
        database.execute("PRAGMA max_page_count = 1")  # SQLite's own: as many as there are
        http = rig.server.http()
        order = {
            "input_file_id": file.id,
            "endpoint": URL,
            "completion_window": "24h",
            "metadata": {str(i): "m" * 500 for i in range(16)},
        }
        answer = http.post("/v1/batches", json=order)
        assert answer.status_code == 507
        assert list(rig.client.batches.list()) == []
        database.execute(f"PRAGMA max_page_count = {most}")
        answer = http.post("/v1/batches", json=order)
        assert answer.status_code == 200
        done = rig.ended(rig.client.batches.retrieve(answer.json()["id"]))
    assert done.status == "completed"


def test_uploads_beyond_quota_and_size_leave_nothing(tmp_path: Path) -> None:
    limits = DeskLimits(file_bytes=1_000_000, quota_bytes=2_100_000)
    with batch_server(tmp_path, limits=limits) as rig:
        client = rig.client
        first = client.files.create(file=("a.jsonl", b"x" * 1_000_000), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="1 MB"):
            client.files.create(file=("b.jsonl", b"x" * 1_000_001), purpose="batch")
        other = client.files.create(file=("b.jsonl", b"x" * 900_000), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="quota") as refused:
            client.files.create(file=("c.jsonl", b"x" * 600_000), purpose="batch")
        assert refused.value.status_code == 507
        assert {path.name for path in (tmp_path / "files").iterdir()} == {first.id, other.id}
        client.files.delete(first.id)
        client.files.create(file=("c.jsonl", b"x" * 600_000), purpose="batch")


def test_results_are_kept_beyond_the_quota_and_new_jobs_are_not_taken(tmp_path: Path) -> None:
    with batch_server(tmp_path, limits=DeskLimits(quota_bytes=10_000)) as rig:
        done = rig.ended(rig.submit([request(i) for i in range(40)]))
        assert len(rig.results(done.output_file_id)) == 40
        with pytest.raises(openai.APIStatusError, match="quota"):
            rig.client.batches.create(
                input_file_id=done.input_file_id,
                endpoint="/v1/completions",
                completion_window="24h",
            )


def test_an_upload_cut_short_leaves_nothing(tmp_path: Path) -> None:
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    )
    with batch_server(tmp_path) as rig:
        with socket.create_connection((rig.server.host, rig.server.port)) as wire:
            wire.sendall(head.encode() + b"x" * 300_000)
            eventually(lambda: bool(list((tmp_path / "files").iterdir())))
        eventually(lambda: not list((tmp_path / "files").iterdir()))


def test_files_are_deleted_when_their_time_is_over(tmp_path: Path) -> None:
    now_s = [1000.0]
    desk = BatchDesk(tmp_path, clock=lambda: now_s[0])
    ids = []
    for life_s in (3600, 7200, 3600):
        incoming = desk.receive()
        incoming.write(jsonl([request(1)]))
        ids.append(incoming.accept("", "in.jsonl", life_s).id)
    desk.create(Order("", ids[2], URL, "24h", 86_400))
    now_s[0] += 5000
    desk.delete_expired()
    # The third one is still to be read.
    assert {path.name for path in (tmp_path / "files").iterdir()} == {ids[1], ids[2]}
    desk.close()
