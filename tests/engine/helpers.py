"""An engine on the scripted executor, and ways to read it."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headway.core.config import SchedulerConfig
from headway.core.lanes import LaneChooser
from headway.core.plan import Capacity, Executor, SamplingSpec
from headway.core.request import Usage
from headway.core.scheduler import Scheduler
from headway.core.types import FinishReason, ServiceClass
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import LoopOptions, ModelLimits
from headway.engine.types import (
    Delta,
    GenerationRequest,
    Observer,
    SamplingParams,
    StopConditions,
    TokenInfo,
)
from headway.testing import (
    LinearDuration,
    ManualClock,
    Mishaps,
    RecordingExecutor,
    Script,
    ScriptedExecutor,
    instant,
    make_capacity,
    oracle_tokens,
)
from headway.testing.clock import Clock
from headway.testing.scripted import Duration
from headway.testing.text import ByteTokenizer

GREEDY = SamplingParams(temperature=0.0)
EOS = 0


@dataclass(frozen=True)
class Rig:
    """An engine and what it stands on."""

    engine: Engine
    executor: ScriptedExecutor
    scheduler: Scheduler
    clock: Clock

    def idle(self) -> bool:
        """Whether nothing is held or alive."""
        snapshot = self.engine.snapshot()
        return snapshot.idle and snapshot.device.used == 0 and snapshot.host.used == 0


def make_rig(
    capacity: Capacity | None = None,
    script: Script | None = None,
    mishaps: Mishaps | None = None,
    clock: Clock | None = None,
    duration: Duration = instant,
    options: LoopOptions | None = None,
    observers: Sequence[Observer] = (),
    make_scheduler: Callable[[Capacity, SchedulerConfig], Scheduler] = Scheduler,
) -> Rig:
    capacity = capacity or make_capacity()
    clock = clock or ManualClock()
    executor = ScriptedExecutor(capacity, script, mishaps, duration, clock)
    scheduler = make_scheduler(capacity, SchedulerConfig())
    engine = Engine(
        scheduler,
        executor,
        ByteTokenizer(),
        ModelLimits.from_capacity(capacity, frozenset({EOS})),
        Surroundings(clock, random.Random(7), observers),
        options,
    )
    return Rig(engine, executor, scheduler, clock)


@contextmanager
def running(rig: Rig) -> Iterator[Rig]:
    """Start the engine, and stop it at the end; no plan may have been at fault."""
    rig.engine.start()
    try:
        yield rig
    finally:
        rig.engine.stop()
    assert not rig.executor.faults


@dataclass
class Answer:
    """All of one choice."""

    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)
    finish: FinishReason | None = None
    usage: Usage | None = None
    message: str = ""

    @property
    def ids(self) -> list[int]:
        return [info.token for info in self.tokens]

    def add(self, delta: Delta) -> None:
        assert self.finish is None, "a delta after the last one"
        self.text += delta.text
        self.tokens += delta.tokens
        self.finish, self.usage, self.message = delta.finish, delta.usage, delta.message


def collect(deltas: Sequence[Delta], n: int = 1) -> list[Answer]:
    answers = [Answer() for _ in range(n)]
    for delta in deltas:
        answers[delta.choice].add(delta)
    return answers


def ask(rig: Rig, request: GenerationRequest) -> list[Answer]:
    """Submit and wait."""
    return collect(list(rig.engine.submit_sync(request)), request.n)


def greedy(
    prompt: Sequence[int] | str,
    max_tokens: int | None = 8,
    service_class: ServiceClass = ServiceClass.STANDARD,
    stop: Sequence[str] = (),
    deadline_s: float | None = None,
) -> GenerationRequest:
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    end = StopConditions(max_tokens=max_tokens, stop=stop, deadline_s=deadline_s)
    return GenerationRequest(ids, service_class, GREEDY, end)


def oracle(rig: Rig, prompt: Sequence[int], max_tokens: int) -> list[int]:
    return oracle_tokens(prompt, SamplingSpec(), max_tokens, rig.executor.script, frozenset({EOS}))


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for something the engine thread does; the limit is counted in looks."""
    for _ in range(round(limit_s / 0.001)):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("the condition didn't come true")


SLOW = LinearDuration(step_s=0.01, token_s=0.001)


@contextmanager
def recorded_engine(
    inner: Executor, interrupt_every: int = 0, lanes: LaneChooser | None = None
) -> Iterator[tuple[Engine, RecordingExecutor]]:
    """An engine that runs on a real executor, what it computes made to look a hundred times as
    dear."""
    executor = RecordingExecutor(inner, interrupt_every, compute_scale=100)
    engine = Engine(
        Scheduler(executor.capacity, SchedulerConfig(), lanes),
        executor,
        ByteTokenizer(),
        ModelLimits.from_capacity(executor.capacity, frozenset({0})),
        Surroundings(time.monotonic, random.Random(1)),
    )
    engine.start()
    try:
        yield engine, executor
    finally:
        engine.stop()
