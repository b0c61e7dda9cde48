"""What a step decided, over HTTP and on the command line."""

import httpx
import pytest

from headway.cli import main
from headway.core.record import Computed, Evicted, Left, StepRecord
from headway.core.types import Lane, PreemptKind, RequestId
from headway.server.names import RequestNames
from headway.testing import make_capacity
from tests.server.fake_engine import FakeEngine
from tests.server.live import MODEL, live_server
from tests.server.test_real_engine import real_server

RECORD = StepRecord(
    step=7,
    lane=Lane.UNIFIED,
    limit_s=float("inf"),
    predicted_s=0.0123,
    computed=(Computed(RequestId(9), 40, decoding=False), Computed(RequestId(3), 1, decoding=True)),
    entered=(RequestId(9),),
    evicted=(Evicted(RequestId(1), RequestId(9), PreemptKind.SWAP, 0.002, 5),),
    passed_over=(Left(RequestId(4), "no seat"),),
    paused=(Left(RequestId(2), "realtime waits or prefills"),),
)


def test_a_record_in_json_and_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(records={None: RECORD, 7: RECORD})
    with live_server(engine) as server:
        url = f"http://{server.host}:{server.port}"
        answer = httpx.get(f"{url}/debug/steps/latest")
        assert answer.json()["evicted"][0]["kind"] == "swap"
        assert answer.json()["limit_s"] is None
        assert httpx.get(f"{url}/debug/steps/8").status_code == 404
        assert httpx.get(f"{url}/debug/steps/x").json()["error"]["code"] == "not_found"
        assert main(["explain", "7", "--url", url]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "Step 7 on lane unified: 12.3 ms expected, no time limit",
            "  request 9 prefills 40 tokens",
            "  request 3 decodes",
            "  request 9 was admitted",
            "  request 1 gave up 5 blocks to request 9 (swap, 2.0 ms)",
            "  request 2 is paused: realtime waits or prefills",
            "  request 4 was passed over: no seat",
        ]
        assert main(["explain", "8", "--url", url]) == 2
        assert "Step 8 is not among the last steps." in capsys.readouterr().err


def test_no_server_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_requests_go_by_their_ids(capsys: pytest.CaptureFixture[str]) -> None:
    with real_server(make_capacity(vocab_size=300)) as (server, _):
        body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1}
        headers = {"X-Request-Id": "order-17"}
        server.http().post("/v1/completions", json=body, headers=headers).raise_for_status()
        for step in range(1, 6):  # the engine may have planned nothing first
            main(["explain", str(step), "--url", server.url])
    assert "  request 0 (order-17) prefills 3 tokens" in capsys.readouterr().out.splitlines()


def test_the_oldest_names_are_forgotten() -> None:
    names = RequestNames(kept=3)
    for number in range(3):
        names.note(f"r{number}", [RequestId(2 * number), RequestId(2 * number + 1)])
    assert names.of(RequestId(n) for n in range(9)) == {3: "r1", 4: "r2", 5: "r2"}
