"""A server's life over a real engine: probes, deadlines in every state, crashes and stalls."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import openai
import pytest

from headway.core.plan import StepPlan, StepTiming
from headway.core.types import ServiceClass
from headway.engine.options import LoopOptions
from headway.server.model import ServedModel
from headway.server.routes import ServerOptions
from headway.server.tiers import ModelNames
from headway.testing import LinearDuration, WallClock, make_capacity
from tests.batches.rig import Pace
from tests.engine.helpers import Rig, make_rig
from tests.engine.test_failures import BrokenScheduler
from tests.server.fake_engine import FakeEngine, PlainChat, Script
from tests.server.live import MODEL, LiveServer, eventually, live_server
from tests.server.test_errors import error_of
from tests.server.test_real_engine import TEXTS, prompt_of, real_server

SLOW = LinearDuration(step_s=0.02)


@contextmanager
def doomed_server(rig: Rig) -> Iterator[LiveServer]:
    """A server over an engine that will not last."""
    model = ServedModel(ModelNames(MODEL), TEXTS, PlainChat(), rig.engine.max_model_len, created=1)
    rig.engine.start()
    try:
        with live_server(rig.engine, model=model) as server:
            yield server
    finally:
        rig.engine.stop()


def crashing() -> Rig:
    return make_rig(make_capacity(vocab_size=300), make_scheduler=BrokenScheduler)


def stalling() -> Rig:
    return make_rig(
        make_capacity(vocab_size=300),
        clock=WallClock(),
        duration=LinearDuration(step_s=0.5),
        options=LoopOptions(stall_limit_s=0.2),
    )


@pytest.mark.parametrize("make", [crashing, stalling])
def test_an_engine_that_dies_tells_every_client_and_turns_health_red(
    make: Callable[[], Rig],
) -> None:
    with doomed_server(make()) as server:
        client, http = server.client(), server.http()
        for stream in (True, False):
            with pytest.raises(openai.APIError):
                answer = client.completions.create(
                    model=MODEL, prompt=prompt_of(1, 16), max_tokens=50, stream=stream
                )
                list(answer)
        eventually(lambda: http.get("/health").status_code == 503)
        assert error_of(http.get("/health"), 503)["code"] == "engine_unhealthy"
        assert http.get("/ready").status_code == 503
        refused = http.post("/v1/completions", json={"model": MODEL, "prompt": [1]})
        assert error_of(refused, 503)["code"] == "engine_stopped"
        assert http.get("/metrics").status_code == 200  # still tells what happened


def test_probes_take_head_too() -> None:
    engine = FakeEngine()
    with live_server(engine) as server:
        http = server.http()
        for path in ("/health", "/ready"):
            answer = http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        engine.healthy = False
        assert http.head("/health").status_code == 503
        assert http.head("/ready").status_code == 503


def test_deadlines_end_what_computes_and_what_waits() -> None:
    capacity = make_capacity(max_seqs=1, vocab_size=300)
    with real_server(capacity, SLOW) as (server, rig):
        http, client = server.http(), server.client()
        first = client.completions.create(
            model=MODEL,
            prompt=prompt_of(1, 16),
            max_tokens=400,
            stream=True,
            extra_body={"timeout": 2.5, "ignore_eos": True},
        )
        next(first)
        waiting = {"model": MODEL, "prompt": prompt_of(2, 16), "timeout": 0.2}
        assert error_of(http.post("/v1/completions", json=waiting), 504)["type"] == "timeout_error"
        with pytest.raises(openai.APIError, match="deadline has passed"):
            list(first)
        eventually(rig.idle)


@pytest.mark.parametrize("n", [1, 5])
def test_a_deadline_does_not_wait_for_the_end_of_a_long_step(n: int) -> None:
    """Which lasts until both answers are there, however long they take."""
    answered = threading.Event()

    def long(plan: StepPlan) -> StepTiming:
        assert answered.wait(60)
        return StepTiming()

    with real_server(make_capacity(vocab_size=300), long) as (server, rig):
        http = server.http()
        body = {"model": MODEL, "prompt": prompt_of(1, 40), "n": n, "timeout": 0.2}
        assert error_of(http.post("/v1/completions", json=body), 504)["code"] == "deadline_exceeded"
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            assert answer.status_code == 504
        answered.set()
        ended = f'headway_finished_total{{reason="deadline",service_class="standard"}} {2 * n}.0'
        eventually(lambda: ended in http.get("/metrics").text)
        eventually(rig.idle)


def test_deadlines_end_what_is_swapped_out_or_must_be_computed_again() -> None:
    capacity = make_capacity(kv_blocks=8, host_blocks=8, max_seqs=4, vocab_size=300)
    pace = Pace(0.02)
    with real_server(capacity, pace) as (server, rig):
        client = server.client()

        def batch() -> int:
            counts = rig.engine.snapshot().classes[ServiceClass.BATCH]
            return counts.swapped + counts.waiting

        victim = client.completions.create(
            model=f"{MODEL}:batch",
            prompt=prompt_of(1, 64),
            max_tokens=400,
            stream=True,
            extra_body={"timeout": 3.0, "ignore_eos": True},
        )
        next(victim)
        realtime = client.completions.create(
            model=f"{MODEL}:realtime",
            prompt=prompt_of(2, 90),
            max_tokens=400,
            stream=True,
            extra_body={"timeout": 30, "ignore_eos": True},
        )
        next(realtime)
        eventually(lambda: batch() == 1)
        pace.step_s = 0.3  # realtime fills the pool after 38 tokens, and ends
        with pytest.raises(openai.APIError, match="deadline has passed"):
            list(victim)
        realtime.close()
        eventually(rig.idle)


def test_streams_are_kept_alive_through_proxies() -> None:
    assert ServerOptions().keep_alive_s == 10
    engine = FakeEngine(Script(b"0123456789", hold_after=3))
    body = {"model": MODEL, "prompt": "x", "stream": True}
    with (
        live_server(engine, ServerOptions(keep_alive_s=0.05)) as server,
        server.http().stream("POST", "/v1/completions", json=body) as answer,
    ):
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(":"))
        server.call(engine.release)
        assert list(lines)[-2] == "data: [DONE]"
