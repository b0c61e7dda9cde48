"""What the engine's own code costs a decode step, beside scheduler and executor.

    python bench/engine_overhead.py [--rows 64] [--steps 500] [--stops] [--logprobs]

Prints microseconds per step, median over the steps: the engine (delivery, verdicts, observers),
the scheduler (plan, commit, snapshot), and what the readers' side takes to decode the step's text.
The executor is a stub that answers at once.
"""

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from headway.core.config import SchedulerConfig
from headway.core.plan import (
    Capacity,
    Masks,
    Sampled,
    StepFailure,
    StepPlan,
    StepResult,
    StepTiming,
    TokenLogprobs,
)
from headway.core.request import Committed, Snapshot, Verdict
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, RequestId
from headway.engine.arrivals import core_requests
from headway.engine.choices import Choices, Live
from headway.engine.flight import Flight
from headway.engine.loop import StepLoop
from headway.engine.masks import MaskMaker
from headway.engine.observers import Observers
from headway.engine.options import LoopOptions, ModelLimits
from headway.engine.queues import Burden, WaitingRoom
from headway.engine.streams import Assembler, Mailbox, ThreadBell
from headway.engine.text import ChoiceText
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.testing import make_capacity
from headway.testing.text import ByteTokenizer

PROMPT_TOKENS = 32


@dataclass
class Stopwatch:
    """Seconds spent since the last lap."""

    seconds: float = 0.0
    laps: list[float] = field(default_factory=list)

    def lap(self) -> None:
        self.laps.append(self.seconds)
        self.seconds = 0.0

    def median_us(self) -> float:
        return statistics.median(self.laps) * 1e6


class TimedScheduler(Scheduler):
    """The scheduler, its time taken."""

    def __init__(self, capacity: Capacity, config: SchedulerConfig) -> None:
        super().__init__(capacity, config)
        self.watch = Stopwatch()

    def plan(self, lane: Lane, now: float, unready: Set[RequestId] = frozenset()) -> StepPlan:
        start_s = time.perf_counter()
        plan = super().plan(lane, now, unready)
        self.watch.seconds += time.perf_counter() - start_s
        return plan

    def commit(
        self,
        plan: StepPlan,
        outcome: StepResult | StepFailure,
        verdicts: Mapping[RequestId, Verdict],
        now: float,
    ) -> Committed:
        start_s = time.perf_counter()
        committed = super().commit(plan, outcome, verdicts, now)
        self.watch.seconds += time.perf_counter() - start_s
        return committed

    def snapshot(self) -> Snapshot:
        start_s = time.perf_counter()
        snapshot = super().snapshot()
        if hasattr(self, "watch"):
            self.watch.seconds += time.perf_counter() - start_s
        return snapshot


class StubStep:
    """A step that is done."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self, timeout_s: float | None = None) -> StepResult:
        return self._result

    def done(self) -> bool:
        return True

    def interrupt(self) -> None:
        return None


class StubExecutor:
    """Answers every row with a letter, at once; its time is taken too."""

    def __init__(self, capacity: Capacity, logprobs: bool) -> None:
        self._capacity = capacity
        self._logprobs = TokenLogprobs(-1.0, ((97, -1.0), (98, -2.0))) if logprobs else None
        self.watch = Stopwatch()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, plan: StepPlan, masks: Masks) -> StubStep:
        start_s = time.perf_counter()
        sampled = tuple(
            Sampled(c.request, 97 + plan.step % 26, self._logprobs) for c in plan.chunks if c.sample
        )
        step = StubStep(StepResult(plan.step, sampled, timing=StepTiming(compute_s=0.005)))
        self.watch.seconds += time.perf_counter() - start_s
        return step

    def close(self) -> None:
        return None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--stops", action="store_true", help="each request has a stop string")
    parser.add_argument("--logprobs", action="store_true")
    options = parser.parse_args()
    length = PROMPT_TOKENS + options.steps + 64
    capacity = make_capacity(
        kv_blocks=options.rows * (length // 16 + 2),
        max_seqs=options.rows,
        max_step_tokens=2048,
        max_model_len=length,
    )
    scheduler = TimedScheduler(capacity, SchedulerConfig())
    executor = StubExecutor(capacity, options.logprobs)
    waiting = WaitingRoom(LoopOptions(), time.monotonic)
    choices = Choices(waiting, Observers([]), MaskMaker(lambda: None))
    loop = StepLoop(
        scheduler, executor, time.monotonic, LoopOptions(), choices, _unwatched, lambda: 0.0
    )
    limits = ModelLimits.from_capacity(capacity, frozenset({0}))
    stops = ("never",) if options.stops else ()
    readers = [_add(loop, limits, i, stops, waiting) for i in range(options.rows)]
    for _ in range(20):
        loop.turn()
    whole, reading = Stopwatch(), Stopwatch()
    for watch in (scheduler.watch, executor.watch):
        watch.seconds, watch.laps = 0.0, []
    for _ in range(options.steps):
        start_s = time.perf_counter()
        loop.turn()
        whole.seconds = time.perf_counter() - start_s
        reading.seconds = _read(readers)
        for watch in (whole, reading, scheduler.watch, executor.watch):
            watch.lap()
    engine_us = whole.median_us() - scheduler.watch.median_us() - executor.watch.median_us()
    print(f"rows {options.rows}, stop strings {options.stops}, logprobs {options.logprobs}")
    print(f"engine    {engine_us:8.0f} us a step")
    print(f"scheduler {scheduler.watch.median_us():8.0f} us a step")
    print(f"readers   {reading.median_us():8.0f} us a step")


def _add(
    loop: StepLoop, limits: ModelLimits, i: int, stops: tuple[str, ...], waiting: WaitingRoom
) -> tuple[Mailbox, Assembler]:
    tokenizer = ByteTokenizer()
    rng = random.Random(i)
    prompt = [rng.randrange(97, 122) for _ in range(PROMPT_TOKENS)]
    sampling, end = SamplingParams(temperature=0.0), StopConditions(stop=stops)
    request = GenerationRequest(prompt, sampling=sampling, stop=end)
    (core,) = core_requests(request, limits, i, 0, time.monotonic())
    mailbox = Mailbox(ThreadBell(), lambda: None)
    text = ChoiceText(tokenizer.stream(), stops) if stops else None
    waiting.enter(Burden(request.service_class, 1, PROMPT_TOKENS))
    loop.add([Live(core, 0, mailbox, text)])
    return mailbox, Assembler([ChoiceText(tokenizer.stream())])


def _unwatched(flight: Flight) -> None:
    """The unified lane is waited for in the turn itself."""


def _read(readers: list[tuple[Mailbox, Assembler]]) -> float:
    start_s = time.perf_counter()
    for mailbox, assembler in readers:
        assembler.assemble(mailbox.take_all())
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
