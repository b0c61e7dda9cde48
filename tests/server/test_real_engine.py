"""The HTTP server over the real engine and scheduler, on the scripted executor under pressure.

Answers must equal those of the same requests alone; afterwards nothing is held, and what the
metrics count is what was sent.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import openai
import pytest
from openai import AsyncOpenAI

from headway.core.config import SchedulerConfig
from headway.core.plan import Capacity
from headway.core.request import ClassCounts
from headway.core.scheduler import Scheduler
from headway.core.types import ServiceClass
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import LoopOptions, ModelLimits, QueueLimits
from headway.server.metrics import Metrics
from headway.server.model import ServedModel
from headway.server.tiers import ModelNames
from headway.testing import (
    LinearDuration,
    Mishaps,
    Script,
    ScriptedExecutor,
    WallClock,
    make_capacity,
)
from headway.testing.scripted import Duration
from headway.testing.text import ByteTokenizer
from tests.batches.rig import Pace
from tests.engine.helpers import EOS, Rig, oracle, running
from tests.server.fake_engine import PlainChat
from tests.server.live import MODEL, LiveServer, eventually, live_server
from tests.server.test_disconnect import reset, send_raw

TEXTS = ByteTokenizer({token: chr(0x3042 + token).encode() for token in range(300)})
CLASSES = [service_class.label for service_class in ServiceClass]
FAST = LinearDuration(step_s=0.0005, token_s=0.00001, block_s=0.00001)


@contextmanager
def real_server(
    capacity: Capacity,
    duration: Duration = FAST,
    mishaps: Mishaps | None = None,
    options: LoopOptions | None = None,
) -> Iterator[tuple[LiveServer, Rig]]:
    """A server over an engine over the scripted executor, in real time."""
    metrics, clock = Metrics(), WallClock()
    executor = ScriptedExecutor(capacity, Script(300), mishaps, duration, clock)
    scheduler = Scheduler(capacity, SchedulerConfig())
    limits = ModelLimits.from_capacity(capacity, frozenset({EOS}))
    surroundings = Surroundings(clock, random.Random(7), [metrics])
    engine = Engine(scheduler, executor, TEXTS, limits, surroundings, options)
    model = ServedModel(ModelNames(MODEL), TEXTS, PlainChat(), engine.max_model_len, created=1)
    with (
        running(Rig(engine, executor, scheduler, clock)) as rig,
        live_server(engine, model=model, metrics=metrics) as server,
    ):
        yield server, rig


def prompt_of(number: int, length: int) -> list[int]:
    return [(number * 37 + i * 11) % 250 + 1 for i in range(length)]


async def streamed(client: AsyncOpenAI, prompt: Sequence[int], label: str, tokens: int) -> str:
    stream = await client.completions.create(
        model=f"{MODEL}:{label}",
        prompt=list(prompt),
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


async def test_mixed_traffic_through_a_small_pool_changes_no_answer() -> None:
    capacity = make_capacity(kv_blocks=24, host_blocks=12, max_seqs=6, vocab_size=300)
    cases = [(prompt_of(i, 20 + i % 50), CLASSES[i % 3], 20 + i % 23) for i in range(48)]
    with real_server(capacity) as (server, rig):
        async with server.async_client() as client:
            texts = await asyncio.gather(*(streamed(client, *case) for case in cases))
        expected = [TEXTS.decode(oracle(rig, prompt, tokens)) for prompt, _, tokens in cases]
        eventually(rig.idle)
        shown = server.gauges()
    assert texts == expected
    for label in CLASSES:
        ended = f'headway_finished_total{{reason="length",service_class="{label}"}}'
        assert shown[ended] == 16
        assert shown[f'headway_ttft_seconds_count{{service_class="{label}"}}'] == 16
        assert shown[f'headway_queue_seconds_count{{service_class="{label}"}}'] == 16
        tokens = sum(count for _, service_class, count in cases if service_class == label)
        generated = f'headway_tokens_total{{kind="generated",service_class="{label}"}}'
        assert shown[generated] == tokens
        assert shown[f'headway_itl_seconds_count{{service_class="{label}"}}'] == tokens - 16
        for state in ("waiting", "running", "paused", "swapped"):
            assert shown[f'headway_requests{{service_class="{label}",state="{state}"}}'] == 0
    preempted = [value for name, value in shown.items() if name.startswith("headway_preemptions")]
    assert sum(preempted) > 0
    assert shown['headway_kv_blocks{state="used",tier="device"}'] == 0


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_stop_strings_are_never_shown_streamed_or_not(length: int) -> None:
    prompt = prompt_of(1, 20)
    with real_server(make_capacity(vocab_size=300)) as (server, rig):
        text = TEXTS.decode(oracle(rig, prompt, 24))
        stop = [text[12 : 12 + length], text[14 : 14 + length]]
        cut = min(at for at in map(text.find, stop) if at >= 0)
        client = server.client()
        fields = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0}
        http = server.http()
        body = fields | {"stop": stop, "ignore_eos": True}
        whole = http.post("/v1/completions", json=body).json()["choices"][0]
        chunks = list(
            client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=24,
                temperature=0,
                stop=stop,
                stream=True,
                extra_body={"ignore_eos": True},
            )
        )
        eventually(rig.idle)
    assert whole["text"] == text[:cut]
    assert whole["finish_reason"] == "stop"
    assert "".join(chunk.choices[0].text for chunk in chunks) == text[:cut]
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_free_what_they_held(stream: bool) -> None:
    capacity = make_capacity(kv_blocks=8, host_blocks=8, max_seqs=4, vocab_size=300)
    slow = LinearDuration(step_s=0.005)
    with real_server(capacity, slow) as (server, rig):
        gone = [send_raw(server, stream, max_tokens=100) for _ in range(12)]
        eventually(lambda: rig.engine.snapshot().classes[ServiceClass.STANDARD].running > 0)
        for connection in gone:
            reset(connection)
        eventually(rig.idle)
        shown = server.gauges()
        assert shown['headway_finished_total{reason="abort",service_class="standard"}'] == 12
        answer = server.client().completions.create(model=MODEL, prompt="x", max_tokens=2)
        assert answer.usage is not None and answer.usage.completion_tokens == 2


def test_realtime_overtakes_batch_streams_that_hold_every_seat() -> None:
    capacity = make_capacity(max_seqs=4, vocab_size=300, max_model_len=1024)
    with real_server(capacity, LinearDuration(step_s=0.002, token_s=0)) as (server, rig):
        client = server.client()
        batch = [
            client.completions.create(
                model=f"{MODEL}:batch",
                prompt=prompt_of(i, 16),
                max_tokens=200,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for i in range(4)
        ]
        for stream in batch:
            next(stream)
        answer = client.completions.create(
            model=f"{MODEL}:realtime", prompt=prompt_of(9, 16), max_tokens=1, temperature=0
        )
        still_running = rig.engine.snapshot().classes[ServiceClass.BATCH]
        assert answer.choices[0].text == TEXTS.decode(oracle(rig, prompt_of(9, 16), 1))
        assert still_running.running + still_running.paused + still_running.waiting == 4
        for stream in batch:
            stream.close()
        eventually(rig.idle)


def test_usage_tells_what_came_from_the_prefix_cache() -> None:
    with real_server(make_capacity(vocab_size=300)) as (server, _):
        client = server.client()
        prompt = prompt_of(3, 50)
        details = []
        for _ in range(2):
            answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
            assert answer.usage is not None
            details.append(answer.usage.prompt_tokens_details)
    cached = [0 if detail is None else detail.cached_tokens for detail in details]
    assert cached == [0, 48]


def test_swapped_out_requests_whose_clients_leave_are_dropped() -> None:
    capacity = make_capacity(kv_blocks=8, host_blocks=16, max_seqs=4, vocab_size=300)
    with real_server(capacity, LinearDuration(step_s=0.005)) as (server, rig):
        client = server.client()

        def batch() -> ClassCounts:
            return rig.engine.snapshot().classes[ServiceClass.BATCH]

        leaving = [
            client.completions.create(
                model=f"{MODEL}:batch",
                prompt=prompt_of(i, 40),
                max_tokens=20,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for i in range(2)
        ]
        for stream in leaving:
            next(stream)
        realtime = client.completions.create(
            model=f"{MODEL}:realtime",
            prompt=prompt_of(9, 90),
            max_tokens=30,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(realtime)
        assert batch().swapped + batch().waiting > 0
        for stream in leaving:
            stream.close()
        eventually(lambda: batch() == ClassCounts())
        assert len(list(realtime)) > 0
        eventually(rig.idle)
        ended = 'headway_finished_total{reason="abort",service_class="batch"}'
        assert server.gauges()[ended] == 2


def test_health_turns_red_when_steps_fail_and_clients_are_told() -> None:
    mishaps = Mishaps(fail_steps=frozenset({3, 4}))
    with real_server(make_capacity(vocab_size=300), mishaps=mishaps) as (server, rig):
        http, client = server.http(), server.client()
        for _ in range(2):
            assert http.get("/health").status_code == 200
            with pytest.raises(openai.APIError, match="failed"):
                # In the stream, or as its status where nothing was sent before.
                list(client.completions.create(model=MODEL, prompt="x", stream=True))
        assert http.get("/health").status_code == 503
        # The next step works, and that is what health is about.
        assert client.completions.create(model=MODEL, prompt="x", max_tokens=2).choices
        assert http.get("/health").status_code == 200
        eventually(rig.idle)


async def test_a_burst_beyond_the_queue_limit_is_turned_away_at_once() -> None:
    options = LoopOptions(queues=QueueLimits(standard=10, batch=5))
    capacity = make_capacity(max_seqs=1, vocab_size=300)
    pace, refused = Pace(0.1), list[int]()
    with real_server(capacity, pace, options=options) as (server, rig):
        async with server.async_client() as client:

            async def one(number: int, label: str) -> str:
                try:
                    await streamed(client, prompt_of(number, 8), label, 3)
                except openai.RateLimitError as error:
                    assert int(error.response.headers["retry-after"]) >= 1
                    refused.append(number)
                    return "refused"
                return "answered"

            first = asyncio.create_task(streamed(client, prompt_of(0, 8), "realtime", 100))
            while rig.engine.snapshot().classes[ServiceClass.REALTIME].running == 0:
                await asyncio.sleep(0.005)
            burst = asyncio.gather(
                *(one(1 + i, "batch") for i in range(20)),
                *(one(21 + i, "standard") for i in range(20)),
                *(one(41 + i, "realtime") for i in range(5)),
            )
            while len(refused) < 25 and not first.done():  # nobody's turn comes before
                await asyncio.sleep(0.005)
            pace.step_s = 0.01
            outcomes = await burst
            await first
    assert [outcomes[:20].count("answered"), outcomes[20:40].count("answered")] == [5, 10]
    assert outcomes[40:] == ["answered"] * 5


@pytest.mark.parametrize("temperature", [0, 1])
def test_choices_are_the_same_streamed_or_not(temperature: float) -> None:
    fields = {
        "model": MODEL,
        "prompt": [prompt_of(1, 40), prompt_of(2, 5)],
        "n": 3,
        "max_tokens": 12,
        "temperature": temperature,
        "seed": 11,
        "logprobs": 2,
        "ignore_eos": True,
    }
    with real_server(make_capacity(vocab_size=300)) as (server, rig):
        http = server.http()
        whole = http.post("/v1/completions", json=fields).json()
        lines = http.post("/v1/completions", json=fields | {"stream": True}).text.splitlines()
        eventually(rig.idle)
    texts = dict.fromkeys(range(6), "")
    tokens: dict[int, list[float]] = {index: [] for index in range(6)}
    for line in lines:
        if line.startswith("data: {"):
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            texts[choice["index"]] += choice["text"]
            if choice["logprobs"]:
                tokens[choice["index"]] += choice["logprobs"]["token_logprobs"]
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert tokens == {
        choice["index"]: choice["logprobs"]["token_logprobs"] for choice in whole["choices"]
    }
    assert len(set(texts.values())) == (2 if temperature == 0 else 6)
    assert whole["usage"] == {
        "prompt_tokens": 45,
        "completion_tokens": 72,
        "total_tokens": 117,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
