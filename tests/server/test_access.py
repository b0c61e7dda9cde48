"""What keys open, over HTTP: classes, rates, operators' paths, and each tenant its own things."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import httpx
import openai
import pytest

from headway.core.types import ServiceClass
from headway.errors import OverloadedError
from headway.server.app import Front
from headway.server.keyring import KeyRing
from headway.server.keys import Allowance, Rights
from headway.testing import make_capacity
from tests.batches.rig import Pace, batch_server, jsonl, prompt_of, request
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import MODEL, LiveServer, eventually, live_server
from tests.server.test_keys import added

TEXT = {"model": MODEL, "prompt": "abc"}
OPERATORS = ("/metrics", "/docs", "/openapi.json", "/debug/steps/latest")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def front(keys: Path) -> Front:
    return Front(KeyRing(None, keys, monotonic))


def http(server: LiveServer, key: str) -> httpx.Client:
    client = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"})
    server.clients.append(client)
    return client


def sdk(server: LiveServer, key: str) -> openai.OpenAI:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
    server.clients.append(client)
    return client


def test_a_key_gives_tenant_default_class_and_top_class(keys: Path) -> None:
    key = added(keys, "acme", Rights(ServiceClass.BATCH, ServiceClass.STANDARD))
    engine = FakeEngine()
    with live_server(engine, front=front(keys)) as server:
        client = sdk(server, key)
        answer = client.completions.create(model=MODEL, prompt="abc")
        assert answer.model_dump()["service_tier"] == "flex"
        assert engine.submitted[0].tenant == "acme"
        for tier in ("priority", "realtime"):
            with pytest.raises(openai.PermissionDeniedError) as refused:
                client.completions.create(
                    model=MODEL, prompt="abc", extra_body={"service_tier": tier}
                )
            assert refused.value.code == "class_not_allowed"
        named = http(server, key).post(
            "/v1/completions", json={"model": f"{MODEL}:realtime", "prompt": "a"}
        )
        assert named.status_code == 403
    assert len(engine.submitted) == 1


def test_a_key_may_be_any_text() -> None:
    with live_server(FakeEngine(), key="ключ 1") as server:
        for text, status in (("ключ 1", 200), ("ключ", 401), ("????", 401), ("\xff", 401)):
            authorization = b"Bearer " + text.encode("latin-1" if text == "\xff" else "utf-8")
            answer = httpx.get(
                f"{server.url}/v1/models", headers=[(b"Authorization", authorization)]
            )
            assert answer.status_code == status


def test_with_downgrade_the_answer_says_what_it_ran_as(keys: Path) -> None:
    key = added(keys, "acme", Rights(None, ServiceClass.STANDARD, downgrade=True))
    with live_server(FakeEngine(), front=front(keys)) as server:
        answer = http(server, key).post(
            "/v1/completions", json={**TEXT, "service_tier": "priority"}
        )
    assert answer.headers["x-headway-class"] == "standard"
    assert answer.json()["service_tier"] == "default"


def test_operators_paths_need_a_key_with_that_right(keys: Path) -> None:
    plain, admin = added(keys, "acme"), added(keys, "ops", Rights(admin=True))
    with live_server(FakeEngine(), front=front(keys)) as server:
        for path in (*OPERATORS, "/nothing", "/v1x"):
            assert http(server, plain).get(path).status_code == 403
            assert http(server, admin).get(path).status_code != 403
            assert httpx.get(server.url + path).status_code == 401
        assert http(server, plain).get("/v1/models").status_code == 200
        assert http(server, admin).get("/metrics").status_code == 200


def test_the_admin_port_needs_no_key_for_operators_and_one_for_the_rest(keys: Path) -> None:
    added(keys, "acme")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with live_server(
        FakeEngine(),
        front=Front(KeyRing(None, keys, monotonic), admin_port=port),
        admin_port=port,
    ) as server:
        admin = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{admin}/metrics").status_code == 200
        assert httpx.get(f"{admin}/openapi.json").status_code == 200
        assert httpx.post(f"{admin}/v1/completions", json=TEXT).status_code == 401
        assert httpx.get(f"{admin}/v1/models").status_code == 401
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        lies = {"Host": f"127.0.0.1:{port}", "X-Forwarded-Port": str(port)}
        assert httpx.get(f"{server.url}/metrics", headers=lies).status_code == 401


def test_requests_under_way_are_limited_and_come_back(keys: Path) -> None:
    key = added(keys, "acme", allowance=Allowance(concurrent=2))
    other = added(keys, "other")
    engine = FakeEngine(Script(b"0123456789", hold_after=2))
    with live_server(engine, front=front(keys)) as server:
        streams = [
            sdk(server, key).completions.create(model=MODEL, prompt="x", stream=True)
            for _ in range(2)
        ]
        for stream in streams:
            next(stream)
        refused = http(server, key).post("/v1/completions", json=TEXT)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert http(server, other).get("/v1/models").status_code == 200
        streams[0].close()
        eventually(lambda: http(server, key).get("/v1/models").status_code == 200)
        server.call(engine.release)
        list(streams[1])


def test_rates_count_prompts_and_answers(keys: Path) -> None:
    tokens = Allowance({}, {ServiceClass.STANDARD: 20})
    key = added(keys, "acme", allowance=tokens)
    with live_server(FakeEngine(Script(b"0123456789")), front=front(keys)) as server:
        client = http(server, key)
        assert client.post("/v1/completions", json=TEXT).status_code == 200  # 13
        streamed = client.post("/v1/completions", json={**TEXT, "stream": True})
        assert streamed.status_code == 200  # 26
        refused = client.post("/v1/completions", json=TEXT)
        assert refused.status_code == 429
        assert "20 standard tokens a minute" in refused.json()["error"]["message"]
        assert 17 <= int(refused.headers["retry-after"]) <= 21
        batch = client.post("/v1/completions", json={**TEXT, "service_tier": "flex"})
        assert batch.status_code == 200


def test_a_revoked_key_is_refused_within_seconds(keys: Path) -> None:
    from headway.server.keys import edited

    key = added(keys, "acme")
    with live_server(FakeEngine(), front=front(keys)) as server:
        client = http(server, key)
        assert client.get("/v1/models").status_code == 200
        with edited(keys) as entries:
            entries.clear()
        eventually(lambda: client.get("/v1/models").status_code == 401, timeout_s=10)


@pytest.fixture
def two(keys: Path) -> Iterator[tuple[str, str]]:
    yield added(keys, "one"), added(keys, "two")


def test_files_and_jobs_are_their_tenants_own(
    tmp_path: Path, keys: Path, two: tuple[str, str]
) -> None:
    with batch_server(tmp_path / "data", front=front(keys)) as rig:
        mine, theirs = (sdk(rig.server, key) for key in two)
        file = mine.files.create(file=("in.jsonl", jsonl([request(1)])), purpose="batch")
        batch = mine.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        eventually(lambda: mine.batches.retrieve(batch.id).status == "completed", 15)
        output = mine.batches.retrieve(batch.id).output_file_id
        assert output is not None
        assert mine.files.content(output).text
        for id in (file.id, output):
            with pytest.raises(openai.NotFoundError):
                theirs.files.retrieve(id)
            with pytest.raises(openai.NotFoundError):
                theirs.files.content(id)
            with pytest.raises(openai.NotFoundError):
                theirs.files.delete(id)
        with pytest.raises(openai.NotFoundError):
            theirs.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            theirs.batches.cancel(batch.id)
        with pytest.raises(openai.BadRequestError):
            theirs.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
        assert theirs.files.list().data == [] and theirs.batches.list().data == []
        assert {f.id for f in mine.files.list().data} >= {file.id, output}


def test_the_lines_of_a_job_have_no_time_limit_of_their_own(tmp_path: Path) -> None:
    with batch_server(tmp_path / "data") as rig:
        ended = rig.ended(rig.submit([request(1, timeout=5), request(2)]))
        assert ended.request_counts is not None
        assert (ended.request_counts.completed, ended.request_counts.failed) == (1, 1)
        (failed,) = rig.results(ended.error_file_id)
        assert failed["response"]["body"]["error"]["param"] == "timeout"


def test_within_a_class_the_tenant_served_least_goes_first(
    tmp_path: Path, keys: Path, two: tuple[str, str]
) -> None:
    """One tenant has a seat and queues twelve requests, then another one comes: it is served after
    few of them."""
    capacity, pace = make_capacity(max_seqs=1, vocab_size=300), Pace(0.05)
    ended: list[str] = []
    with batch_server(
        tmp_path / "data", front=front(keys), capacity=capacity, duration=pace
    ) as rig:
        holder = sdk(rig.server, two[0]).completions.create(
            model=MODEL,
            prompt=prompt_of(99, 32),
            max_tokens=400,  # 20 s of steps, if nobody ends it
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(holder)

        def ask(tenant: str, number: int) -> None:
            key = two[0] if tenant == "one" else two[1]
            body = {"model": MODEL, "prompt": prompt_of(number, 32), "max_tokens": 8}
            answer = http(rig.server, key).post(
                "/v1/completions", json=body | {"ignore_eos": True}, timeout=None
            )
            assert answer.status_code == 200
            ended.append(tenant)

        def waiting() -> int:
            return rig.engine.engine.snapshot().classes[ServiceClass.STANDARD].waiting

        asking = [threading.Thread(target=ask, args=("one", i)) for i in range(12)]
        for thread in asking:
            thread.start()
        eventually(lambda: waiting() == 12)
        asking.append(threading.Thread(target=ask, args=("two", 12)))
        asking[-1].start()
        eventually(lambda: waiting() == 13)
        pace.step_s = 0.005
        holder.close()
        eventually(lambda: len(ended) == 13, 60)
        for thread in asking:
            thread.join()
    assert "two" in ended[:-5], "the tenant with one request waited for the other's queue"


def test_no_prefix_is_shared_between_tenants(
    tmp_path: Path, keys: Path, two: tuple[str, str]
) -> None:
    prompt = prompt_of(3, 64)
    with batch_server(tmp_path / "data", front=front(keys)) as rig:

        def cached(key: str) -> int:
            answer = sdk(rig.server, key).completions.create(
                model=MODEL, prompt=prompt, max_tokens=2, temperature=0
            )
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            return answer.usage.prompt_tokens_details.cached_tokens or 0

        one, other = two
        assert cached(one) == 0
        assert cached(one) > 0
        assert cached(other) == 0
        assert cached(other) > 0


def test_a_prompt_that_the_server_refuses_is_not_charged(keys: Path) -> None:
    key = added(keys, "acme", allowance=Allowance({}, {ServiceClass.STANDARD: 20}))
    engine = FakeEngine(Script(refuse=OverloadedError("full", 1.0)))
    with live_server(engine, front=front(keys)) as server:
        client = http(server, key)
        refused = client.post("/v1/completions", json={**TEXT, "prompt": "x" * 50})
        assert refused.json()["error"]["code"] == "overloaded"
        engine.script = Script()
        assert client.post("/v1/completions", json=TEXT).status_code == 200
