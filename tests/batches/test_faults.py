"""Kinds of fault that batch services have had: bad lines, expiry, failing engines, cancelling."""

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from headway.batches.desk import BatchDesk
from headway.batches.types import Order, Status
from headway.batches.work import WorkOptions
from headway.core.plan import StepPlan, StepTiming
from headway.errors import ConfigError
from headway.testing import LinearDuration, ManualClock, Mishaps, make_capacity
from tests.batches.rig import FAST, QUICK, TEXTS, URL, batch_server, jsonl, prompt_of, request
from tests.engine.helpers import oracle
from tests.server.live import eventually


def test_bad_lines_get_errors_of_their_own_and_the_rest_is_done(tmp_path: Path) -> None:
    lines: list[str | bytes | dict[str, object]] = [
        request(0),  # 1
        "{nonsense",  # 2
        "",  # 3
        request(0),  # 4: the same custom_id
        request(5) | {"url": "/v1/chat/completions"},  # 5
        request(6) | {"method": "GET"},  # 6
        request(7, stream=True),  # 7
        request(8, prompt=[1] * 600),  # 8: longer than the model
        request(9, model="other"),  # 9
        request(10) | {"custom_id": 5},  # 10
        request(11) | {"body": []},  # 11
        "[]",  # 12
        b"\xff\xfe",  # 13
        '{"custom_id": "deep", "body": ' + "[" * 3000,  # 14
        '{"custom_id": "nan", "method": "POST", "url": "/v1/completions", "body": {"a": NaN}}',
        "   ",  # 16
        request(17, temperature=7),  # 17
        request(18, service_tier="gold"),  # 18
        request(19, logit_bias={"-1": 1}),  # 19
        "x" * 5000,  # 20: longer than a line may be
    ]
    content = jsonl(lines) + json.dumps(request(21)).encode()  # no newline at the end
    options = replace(QUICK, line_bytes=4000)
    with batch_server(tmp_path, options=options) as rig:
        client = rig.client
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        done = rig.ended(batch)
        good, bad = rig.results(done.output_file_id), rig.results(done.error_file_id)
    assert done.status == "completed"
    assert done.request_counts is not None
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (19, 2, 17)
    assert sorted(r["custom_id"] for r in good) == ["line-0", "line-21"]
    by_line = {int(r["id"].rpartition("_")[2]): r for r in bad}
    assert sorted(by_line) == [2, 4, *range(5, 16), *range(17, 21)]
    for result in bad:
        assert result["response"]["status_code"] == (404 if result is by_line[9] else 400)
        assert result["response"]["body"]["error"]["message"]
        assert result["error"] is None
    codes = {line: r["response"]["body"]["error"]["code"] for line, r in by_line.items()}
    assert codes[2] == codes[12] == codes[13] == codes[14] == codes[15] == "invalid_json_line"
    assert codes[4] == "duplicate_custom_id"
    assert codes[5] == "mismatched_endpoint"
    assert codes[8] == "context_length_exceeded"
    assert codes[9] == "model_not_found"
    assert codes[20] == "line_too_long"
    params = {line: r["response"]["body"]["error"]["param"] for line, r in by_line.items()}
    assert params[7] == "stream"
    assert params[17] == "temperature"
    assert by_line[4]["custom_id"] == "line-0"
    assert by_line[10]["custom_id"] is None


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (b"{}\n", "invalid_custom_id", 1),
        (b"\nnonsense", "invalid_json_line", 2),
        (jsonl([request(i) for i in range(11)]), "too_many_requests", None),
    ],
)
def test_a_file_with_nothing_to_do_fails(
    tmp_path: Path, content: bytes, code: str, line: int | None
) -> None:
    options = WorkOptions(max_lines=10)
    with batch_server(tmp_path, options=options) as rig:
        client = rig.client
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        failed = rig.ended(batch)
        client.files.delete(file.id)
    assert failed.status == "failed"
    assert failed.failed_at is not None
    assert failed.errors is not None and failed.errors.data is not None
    assert [(error.code, error.line) for error in failed.errors.data] == [(code, line)]
    assert failed.output_file_id is failed.error_file_id is None


def test_an_expired_batch_keeps_its_finished_work(tmp_path: Path) -> None:
    capacity = make_capacity(max_seqs=2, vocab_size=300)
    duration = LinearDuration(step_s=0.02, token_s=0)  # 16 s for all lines
    clock = ManualClock(time.time())
    with batch_server(tmp_path, capacity=capacity, duration=duration, clock=clock) as rig:
        batch = rig.submit([request(i, max_tokens=20) for i in range(80)], window="1s")

        def some_done() -> bool:
            counts = rig.client.batches.retrieve(batch.id).request_counts
            return counts is not None and counts.completed > 0

        eventually(some_done)
        clock.advance(2)
        done = rig.ended(batch)
        good, late = rig.results(done.output_file_id), rig.results(done.error_file_id)
        for result in good:
            number = int(result["custom_id"].removeprefix("line-"))
            text = TEXTS.decode(oracle(rig.engine, prompt_of(number), 20))
            assert result["response"]["body"]["choices"][0]["text"] == text
    assert done.status == "expired"
    assert done.expired_at is not None and done.completed_at is None
    assert done.request_counts is not None
    assert done.request_counts.completed == len(good) > 0
    assert done.request_counts.failed == len(late) == 80 - len(good) > 0
    assert {r["error"]["code"] for r in late} == {"batch_expired"}
    names = [r["custom_id"] for r in good + late]
    assert sorted(names) == sorted(f"line-{i}" for i in range(80))


def test_a_batch_that_expired_while_nobody_served_is_expired_at_the_next_start(
    tmp_path: Path,
) -> None:
    now_s = [1000.0]
    desk = BatchDesk(tmp_path, clock=lambda: now_s[0])
    incoming = desk.receive()
    incoming.write(jsonl([request(i) for i in range(3)]))
    file = incoming.accept("", "in.jsonl", 10**9)
    job = desk.create(Order("", file.id, URL, "1h", 3600))
    desk.close()
    with batch_server(tmp_path) as rig:
        eventually(lambda: rig.desk.job(job.id, "").status is Status.EXPIRED)
        done = rig.client.batches.retrieve(job.id)
        assert len(rig.results(done.error_file_id)) == 3
        assert done.output_file_id is None


@pytest.mark.parametrize(("failing", "lost"), [({5}, False), ({5, 11, 17, 23, 29, 35}, True)])
def test_lines_that_a_failed_step_took_along_are_tried_once_more(
    tmp_path: Path, failing: set[int], lost: bool
) -> None:
    mishaps = Mishaps(fail_steps=frozenset(failing))
    with batch_server(tmp_path, mishaps=mishaps) as rig:
        done = rig.ended(rig.submit([request(i) for i in range(40)]))
        good, bad = rig.results(done.output_file_id), rig.results(done.error_file_id)
        for result in good:
            number = int(result["custom_id"].removeprefix("line-"))
            text = TEXTS.decode(oracle(rig.engine, prompt_of(number), 6))
            assert result["response"]["body"]["choices"][0]["text"] == text
    assert done.status == "completed"
    assert len(good) + len(bad) == 40
    assert lost or not bad
    assert {r["response"]["status_code"] for r in bad} <= {500}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    desk = BatchDesk(tmp_path)
    with pytest.raises(ConfigError, match="another server"):
        BatchDesk(tmp_path)
    desk.close()
    BatchDesk(tmp_path).close()


class Moment:
    """A duration model, FAST's, that has something done just before the step that is due."""

    def __init__(self) -> None:
        self._left = 0
        self._action: Callable[[], object] = list

    def __call__(self, plan: StepPlan) -> StepTiming:
        self._left -= 1
        if self._left == 0:
            self._action()
        return FAST(plan)

    def act(self, steps: int, action: Callable[[], object]) -> None:
        """Have it done before the step after `steps` more."""
        self._left, self._action = steps + 1, action


def test_cancelling_at_any_moment_loses_no_line(tmp_path: Path) -> None:
    """Before its first step, at random ones, and when it has ended: it takes 24."""
    rng, moment = random.Random(3), Moment()
    with batch_server(tmp_path, duration=moment) as rig:
        client = rig.client

        def cancel() -> None:
            with suppress(openai.ConflictError):  # too late
                client.batches.cancel(client.batches.list(limit=1).data[0].id)

        ends = []
        for steps in (None, 0, *(rng.randrange(24) for _ in range(13)), 1000):
            moment.act(0 if steps is None else steps, list if steps is None else cancel)
            batch = rig.submit([request(i) for i in range(30)])
            if steps is None:
                cancel()
            done = rig.ended(batch)
            good, bad = rig.results(done.output_file_id), rig.results(done.error_file_id)
            names = sorted(result["custom_id"] for result in good + bad)
            assert done.request_counts is not None
            assert done.request_counts.completed == len(good)
            assert done.request_counts.total == len(names)
            assert names in (sorted(f"line-{i}" for i in range(30)), [])
            assert names or done.in_progress_at is None
            ends.append(done.status)
    assert ends[1] == "cancelled" and ends[-1] == "completed"
    assert ends.count("cancelled") + ends.count("completed") == len(ends)


def test_jobs_go_on_after_a_stop(tmp_path: Path) -> None:
    with batch_server(tmp_path, duration=LinearDuration(0.002, 0)) as rig:
        batch = rig.submit([request(i, max_tokens=30) for i in range(80)])

        def some_done() -> bool:
            counts = rig.client.batches.retrieve(batch.id).request_counts
            return counts is not None and counts.completed > 5

        eventually(some_done)
    with batch_server(tmp_path, options=QUICK) as rig:
        done = rig.ended(batch)
        results = rig.results(done.output_file_id)
    assert done.status == "completed"
    assert sorted(r["custom_id"] for r in results) == sorted(f"line-{i}" for i in range(80))
