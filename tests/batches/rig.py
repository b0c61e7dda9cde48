"""A batch server over the real engine on the scripted executor, and ways to use it."""

import errno
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from fastapi import APIRouter
from openai.types import Batch

from headway.batches.desk import BatchDesk, DeskLimits
from headway.batches.disk import Write
from headway.batches.runner import BatchRunner
from headway.batches.work import WorkOptions
from headway.core.config import SchedulerConfig
from headway.core.plan import Capacity, StepPlan, StepTiming
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import ModelLimits
from headway.server.app import Front
from headway.server.batch_routes import BatchService, build_batch_router
from headway.server.gate import Gate
from headway.server.line_answer import LineAnswerer
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
from tests.engine.helpers import EOS, Rig, running, until
from tests.server.fake_engine import PlainChat
from tests.server.live import MODEL, LiveServer, eventually, live_server

TEXTS = ByteTokenizer({token: chr(0x3042 + token).encode() for token in range(300)})
FAST = LinearDuration(step_s=0.0005, token_s=0.00001, block_s=0.00001)
QUICK = WorkOptions(retry_s=0.05, note_s=0.05)
URL = "/v1/completions"


@dataclass
class Pace:
    """A duration model that a test may change while steps go on."""

    step_s: float

    def __call__(self, plan: StepPlan) -> StepTiming:
        return StepTiming(compute_s=self.step_s)


class Disk:
    """A disk that is full once `room` bytes were written, until it gets more room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.refused = 0
        self._lock = threading.Lock()

    def write(self, fd: int, data: bytes) -> int:
        with self._lock:
            fit = min(self.room, len(data))
            if not fit:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Part of it first, as a real disk does.
            self.room -= fit
            return os.write(fd, data[:fit])


@dataclass(frozen=True)
class BatchRig:
    """A server with the Batch API, and what it stands on."""

    server: LiveServer
    desk: BatchDesk
    engine: Rig

    @property
    def client(self) -> openai.OpenAI:
        return self.server.client()

    def submit(self, lines: Sequence[str | bytes | dict[str, Any]], window: str = "24h") -> Batch:
        client = self.client
        file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            extra_body={"completion_window": window},  # ours may be shorter than OpenAI's
        )

    def ended(self, batch: Batch, timeout_s: float = 40.0) -> Batch:
        """The batch once it has ended."""
        client, found = self.client, [batch]
        ends = ("completed", "failed", "expired", "cancelled")

        def over() -> bool:
            found.append(client.batches.retrieve(batch.id))
            return found[-1].status in ends

        eventually(over, timeout_s)
        return found[-1]

    def results(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a result file; none if there is no file."""
        if file_id is None:
            return []
        return [json.loads(line) for line in self.client.files.content(file_id).text.splitlines()]


def jsonl(lines: Sequence[str | bytes | dict[str, Any]]) -> bytes:
    """Lines as a file: objects as JSON, text as it is."""
    encoded = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
    return b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in encoded)


def prompt_of(number: int, length: int = 12) -> list[int]:
    return [(number * 37 + i * 11) % 250 + 1 for i in range(length)]


def request(number: int, max_tokens: int = 6, **fields: Any) -> dict[str, Any]:
    """A line's request, the same for the same number."""
    body = {"model": MODEL, "prompt": prompt_of(number), "max_tokens": max_tokens}
    body |= {"temperature": 0, "ignore_eos": True, **fields}
    return {"custom_id": f"line-{number}", "method": "POST", "url": URL, "body": body}


def make_engine(
    capacity: Capacity,
    duration: Duration = FAST,
    mishaps: Mishaps | None = None,
    metrics: Metrics | None = None,
    words: ByteTokenizer = TEXTS,
) -> Rig:
    """An engine over the scripted executor, in real time; `words`: what its tokens stand for."""
    clock = WallClock()
    executor = ScriptedExecutor(capacity, Script(300), mishaps, duration, clock)
    scheduler = Scheduler(capacity, SchedulerConfig())
    limits = ModelLimits.from_capacity(capacity, frozenset({EOS}))
    surroundings = Surroundings(clock, random.Random(7), [] if metrics is None else [metrics])
    engine = Engine(scheduler, executor, words, limits, surroundings)
    return Rig(engine, executor, scheduler, clock)


def served(engine: Engine) -> ServedModel:
    return ServedModel(ModelNames(MODEL), TEXTS, PlainChat(), engine.max_model_len, created=1)


@contextmanager
def batch_server(
    folder: Path,
    *,
    capacity: Capacity | None = None,
    duration: Duration = FAST,
    limits: DeskLimits | None = None,
    options: WorkOptions = QUICK,
    write: Write = os.write,
    mishaps: Mishaps | None = None,
    front: Front | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[BatchRig]:
    """A server with the Batch API over the data folder until the block ends. clock: the desk's."""
    metrics = Metrics()
    capacity = capacity or make_capacity(vocab_size=300)
    desk = BatchDesk(folder, limits, write=write, clock=clock)
    with running(make_engine(capacity, duration, mishaps, metrics)) as rig:
        model = served(rig.engine)
        answerer = LineAnswerer(rig.engine, model)
        runner = BatchRunner(desk, answerer, rig.engine.snapshot, options)

        def routes(gate: Gate) -> APIRouter:
            return build_batch_router(BatchService(desk, gate, list(answerer.endpoints)))

        runner.start()
        try:
            with live_server(
                rig.engine, model=model, metrics=metrics, batches=routes, front=front
            ) as server:
                yield BatchRig(server, desk, rig)
        finally:
            runner.stop()
            desk.close()
        until(rig.idle)  # what the runner has given up ends with a step
