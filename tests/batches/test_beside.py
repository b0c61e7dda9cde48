"""Jobs beside others: small ones, seats to be kept taken, and realtime."""

import time
from pathlib import Path

from headway.core.types import ServiceClass
from headway.testing import LinearDuration, make_capacity
from tests.batches.rig import batch_server, prompt_of, request
from tests.server.live import MODEL, eventually

SLOW = LinearDuration(step_s=0.02, token_s=0)


def test_small_jobs_do_not_wait_for_large_ones(tmp_path: Path) -> None:
    capacity = make_capacity(max_seqs=4, vocab_size=300)
    with batch_server(tmp_path, capacity=capacity, duration=SLOW) as rig:
        large = rig.submit([request(i, max_tokens=12) for i in range(150)])
        small = rig.submit([request(1000)])
        assert rig.ended(small).status == "completed"
        assert rig.client.batches.retrieve(large.id).status == "in_progress"
        rig.client.batches.cancel(large.id)
        rig.ended(large)


def test_seats_stay_taken_and_the_queue_short(tmp_path: Path) -> None:
    capacity = make_capacity(kv_blocks=256, max_seqs=8, vocab_size=300)
    with batch_server(tmp_path, capacity=capacity, duration=LinearDuration(0.005, 0)) as rig:
        batch = rig.submit([request(i, max_tokens=10 + i % 30) for i in range(100)])
        engine, samples = rig.engine.engine, []
        eventually(lambda: engine.snapshot().classes[ServiceClass.BATCH].running == 8)
        while rig.client.batches.retrieve(batch.id).status == "in_progress":
            samples.append(engine.snapshot().classes[ServiceClass.BATCH])
            time.sleep(0.003)
        done = rig.ended(batch)
    assert done.status == "completed"
    body = samples[: len(samples) * 4 // 5]  # the end has too few lines left
    assert sum(counts.running for counts in body) >= 0.9 * 8 * len(body)
    assert max(counts.waiting for counts in samples) <= 24


def test_realtime_is_not_slower_for_a_large_job_read_and_run_behind_it(tmp_path: Path) -> None:
    capacity = make_capacity(max_seqs=4, vocab_size=300)
    duration = LinearDuration(step_s=0.004, token_s=0)
    with batch_server(tmp_path, capacity=capacity, duration=duration) as rig:
        client = rig.client

        def ttft_s() -> float:
            start_s = time.perf_counter()
            client.completions.create(
                model=f"{MODEL}:realtime", prompt=prompt_of(7, 16), max_tokens=1
            )
            return time.perf_counter() - start_s

        def median_ttft_s(status: str) -> float:
            times_s = sorted(ttft_s() for _ in range(20))
            assert client.batches.retrieve(batch.id).status == status
            return times_s[10]

        alone_s = sorted(ttft_s() for _ in range(20))[10]
        batch = rig.submit([request(i, max_tokens=40) for i in range(8_000)])
        read_s = median_ttft_s("validating")
        eventually(lambda: client.batches.retrieve(batch.id).status == "in_progress", 20)
        run_s = median_ttft_s("in_progress")
        client.batches.cancel(batch.id)
        cancelled = rig.ended(batch, 30)
    assert cancelled.request_counts is not None and cancelled.request_counts.total == 8_000
    # It may wait for the step in flight; the rest is for machines that do other things too.
    assert read_s < 2 * alone_s + 0.05
    assert run_s < 2 * alone_s + 0.05
