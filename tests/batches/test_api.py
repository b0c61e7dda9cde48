"""The Batch API through OpenAI's own client."""

import json
from pathlib import Path

import openai
import pytest

from tests.batches.rig import TEXTS, URL, batch_server, jsonl, prompt_of, request
from tests.engine.helpers import oracle
from tests.server.live import MODEL, eventually


def test_a_batch_from_upload_to_results(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        batch = rig.submit([request(i) for i in range(50)])
        assert batch.status == "validating"
        assert batch.object == "batch"
        assert batch.endpoint == URL
        assert batch.completion_window == "24h"
        assert batch.expires_at is not None
        assert 0 <= batch.expires_at - batch.created_at - 86_400 <= 1
        done = rig.ended(batch)
        results = rig.results(done.output_file_id)
        expected = {
            f"line-{i}": TEXTS.decode(oracle(rig.engine, prompt_of(i), 6)) for i in range(50)
        }
    assert done.status == "completed"
    assert done.request_counts is not None
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (50, 50, 0)
    assert done.errors is None and done.error_file_id is None
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert None not in times and times == sorted(times, key=lambda at: at or 0)
    assert done.failed_at is done.expired_at is done.cancelled_at is done.cancelling_at is None
    texts = {r["custom_id"]: r["response"]["body"]["choices"][0]["text"] for r in results}
    assert texts == expected
    assert len({r["id"] for r in results}) == 50
    for result in results:
        assert result.keys() == {"id", "custom_id", "response", "error"}
        assert result["id"].startswith("batch_req_")
        assert result["error"] is None
        assert result["response"]["status_code"] == 200
        assert result["response"]["request_id"]
        assert result["response"]["body"]["usage"]["completion_tokens"] == 6
        assert result["response"]["body"]["service_tier"] == "flex"


def test_chat_lines(tmp_path: Path) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    url = "/v1/chat/completions"
    line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    with batch_server(tmp_path) as rig:
        client = rig.client
        file = client.files.create(file=("in.jsonl", jsonl([line])), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"team": "reports"},
        )
        done = rig.ended(batch)
        (result,) = rig.results(done.output_file_id)
    assert done.metadata == {"team": "reports"}
    assert result["response"]["body"]["object"] == "chat.completion"
    assert result["response"]["body"]["choices"][0]["message"]["role"] == "assistant"


def test_files(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        client = rig.client
        content = jsonl([request(1)])
        first = client.files.create(file=("one.jsonl", content), purpose="batch")
        second = client.files.create(
            file=("zwei ä.jsonl", b"x"),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (first.bytes, first.filename, first.purpose) == (len(content), "one.jsonl", "batch")
        assert first.expires_at == first.created_at + 30 * 86_400
        assert second.expires_at == second.created_at + 3600
        assert second.filename == "zwei ä.jsonl"
        assert client.files.retrieve(first.id) == first
        assert client.files.content(first.id).content == content
        assert [file.id for file in client.files.list()] == [second.id, first.id]
        assert [file.id for file in client.files.list(order="asc")] == [first.id, second.id]
        assert list(client.files.list(purpose="batch_output")) == []
        assert [file.id for file in client.files.list(limit=1)] == [second.id, first.id]
        deleted = client.files.delete(first.id)
        assert (deleted.id, deleted.deleted) == (first.id, True)
        for call in (client.files.retrieve, client.files.delete, client.files.content):
            with pytest.raises(openai.NotFoundError):
                call(first.id)
        assert {path.name for path in (tmp_path / "files").iterdir()} == {second.id}


def test_batches_are_listed_in_pages(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        client = rig.client
        ids = [rig.submit([request(i)]).id for i in range(5)]
        page = client.batches.list(limit=2)
        assert [batch.id for batch in page.data] == [ids[4], ids[3]]
        assert page.has_more
        assert [batch.id for batch in page] == ids[::-1]
        assert [batch.id for batch in client.batches.list(after=ids[1])] == [ids[0]]
        for limit in (0, 101):
            with pytest.raises(openai.BadRequestError, match="limit"):
                client.batches.list(limit=limit)
        for lists in (client.batches, client.files):
            with pytest.raises(openai.NotFoundError, match="nope"):
                lists.list(after="nope")


WRONG_ORDERS: list[tuple[dict[str, object], str]] = [
    ({"completion_window": "soon"}, "completion_window"),
    ({"completion_window": "0s"}, "completion_window"),
    ({"completion_window": "31d"}, "completion_window"),
    ({"completion_window": 5}, "completion_window"),
    ({"endpoint": "/v1/embeddings"}, "endpoint"),
    ({"input_file_id": "file-none"}, "input_file_id"),
    ({"input_file_id": None}, "input_file_id"),
    ({"metadata": {"k": 5}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after"),
    ({"output_expires_after": {"anchor": "end", "seconds": 5000}}, "output_expires_after"),
    ({"priority": "high"}, "priority"),
]


def test_wrong_orders_are_refused_by_field(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        client, http = rig.client, rig.server.http()
        file = client.files.create(file=("in.jsonl", b"x"), purpose="batch")
        for fields, param in WRONG_ORDERS:
            body = {"input_file_id": file.id, "endpoint": URL, "completion_window": "24h", **fields}
            answer = http.post("/v1/batches", json=body)
            assert answer.status_code == 400, fields
            assert answer.json()["error"]["param"].startswith(param)
        for text in ("", "[]", "{", '{"metadata": {"k": "\\ud800"}}'):
            assert http.post("/v1/batches", content=text).status_code == 400
        assert list(client.batches.list()) == []


def test_wrong_uploads_are_refused(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        http = rig.server.http()
        file = {"file": ("a.jsonl", b"x")}
        fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}
        answers = [
            http.post("/v1/files", files=file),
            http.post("/v1/files", files=file, data={"purpose": "fine-tune"}),
            http.post("/v1/files", files={"other": b"x"}, data={"purpose": "batch"}),
            http.post("/v1/files", files=[*file.items()] * 2, data={"purpose": "batch"}),
            http.post("/v1/files", files=file, data={"purpose": "batch", **fields}),
            http.post("/v1/files", json={"purpose": "batch"}),
            http.post(
                "/v1/files",
                content=b"--b\r\nnonsense",
                headers={"Content-Type": "multipart/form-data; boundary=b"},
            ),
            http.post("/v1/files", content=b"", headers={"Content-Type": "multipart/form-data"}),
        ]
        assert [answer.status_code for answer in answers] == [400] * len(answers)
        assert all(answer.json()["error"]["message"] for answer in answers)
        assert list(rig.client.files.list()) == []
        assert list((tmp_path / "files").iterdir()) == []


def test_cancelling(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        batch = rig.submit([request(i, max_tokens=300) for i in range(60)])

        def some_done() -> bool:
            counts = rig.client.batches.retrieve(batch.id).request_counts
            return counts is not None and counts.completed > 2

        eventually(some_done, 15)
        cancelling = rig.client.batches.cancel(batch.id)
        assert cancelling.status in ("cancelling", "cancelled")
        done = rig.ended(batch)
        answered, given_up = rig.results(done.output_file_id), rig.results(done.error_file_id)
        assert rig.client.batches.cancel(batch.id).status == "cancelled"
    assert done.status == "cancelled"
    assert done.cancelling_at is not None and done.cancelled_at is not None
    assert done.request_counts is not None
    assert done.request_counts.completed == len(answered) > 2
    assert done.request_counts.failed == len(given_up) == 60 - len(answered)
    assert {r["error"]["code"] for r in given_up} == {"batch_cancelled"}
    assert all(r["response"] is None for r in given_up)


def test_an_ended_batch_cannot_be_cancelled(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        done = rig.ended(rig.submit([request(1)]))
        with pytest.raises(openai.ConflictError, match="completed"):
            rig.client.batches.cancel(done.id)
        with pytest.raises(openai.NotFoundError):
            rig.client.batches.cancel("batch_none")


def test_a_file_being_read_cannot_be_deleted(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        batch = rig.submit([request(i, max_tokens=200) for i in range(40)])
        with pytest.raises(openai.ConflictError, match=batch.id):
            rig.client.files.delete(batch.input_file_id)
        rig.client.batches.cancel(batch.id)
        rig.ended(batch)
        assert rig.client.files.delete(batch.input_file_id).deleted


def test_the_schema_describes_orders(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        document = json.loads(rig.server.http().get("/openapi.json").text)
    content = document["paths"]["/v1/batches"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"]["$ref"].endswith("/BatchBody")


def test_a_method_that_a_path_does_not_have(tmp_path: Path) -> None:
    with batch_server(tmp_path) as rig:
        http = rig.server.http()
        for path, methods in {
            "/v1/files": "GET, HEAD, POST",
            "/v1/files/file-x": "DELETE, GET, HEAD",
            "/v1/batches/batch_x/cancel": "POST",
        }.items():
            refused = http.put(path)
            assert (refused.status_code, refused.headers["allow"]) == (405, methods)
