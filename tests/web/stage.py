"""A server with the live page whose engine is real and whose model is not."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.core.config import SchedulerConfig
from headway.core.plan import Capacity
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import ModelLimits
from headway.server.app import Front
from headway.server.dashboard.feed import Sources
from headway.server.dashboard.frames import JobLine
from headway.server.dashboard.recent import Recent
from headway.server.keyring import KeyRing
from headway.server.metrics import Metrics
from headway.server.metrics_families import Build
from headway.server.model import ServedModel
from headway.server.operate import Insight
from headway.server.tiers import ModelNames
from headway.testing import LinearDuration, Script, ScriptedExecutor, WallClock
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import EOS
from tests.server.fake_engine import PlainChat
from tests.server.live import MODEL, LiveServer, live_server

STEPS = LinearDuration(step_s=0.008, token_s=0.00005, block_s=0.0001)
JOBS = [JobLine("batch_6710f2", "in_progress", 400, 130, 2)]


@dataclass(frozen=True, slots=True)
class Stage:
    """The server, and its engine."""

    server: LiveServer
    engine: Engine


@contextmanager
def stage(
    capacity: Capacity, key: str | None = None, admin_port: int | None = None
) -> Iterator[Stage]:
    """Serve until the block ends, operators without a key on `admin_port`."""
    metrics, clock = Metrics(), WallClock()
    recent = Recent(clock)
    texts = ByteTokenizer({token: f" {token % 100}".encode() for token in range(300)})
    executor = ScriptedExecutor(capacity, Script(300), None, STEPS, clock)
    engine = Engine(
        Scheduler(capacity, SchedulerConfig()),
        executor,
        texts,
        ModelLimits.from_capacity(capacity, frozenset({EOS})),
        Surroundings(clock, random.Random(7), [metrics, recent]),
    )
    model = ServedModel(ModelNames(MODEL), texts, PlainChat(), engine.max_model_len, created=1)
    sources = Sources(engine, engine.snapshot, recent, lambda: JOBS, clock, MODEL)
    insight = Insight(Build("1", MODEL), None, sources)
    engine.start()
    try:
        with live_server(
            engine,
            model=model,
            metrics=metrics,
            insight=insight,
            drain_s=0.2,
            front=Front(None if key is None else KeyRing(key, None, clock), admin_port),
            admin_port=admin_port,
        ) as server:
            yield Stage(server, engine)
    finally:
        engine.stop()
