"""The real engine on a tiny random model and a tiny pool, in time that only its steps move.

    test → Engine → WatchedScheduler → Conductor → NativeExecutor

The conductor reports times of its own making and moves a manual clock by them, so that decisions
do not depend on the machine, and lets tests act just before a numbered step is submitted. The
engine, the scheduler and the copies and products of the model are the ones users get.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from headway.core.config import SchedulerConfig
from headway.core.invariants import check
from headway.core.plan import Capacity, Executor, StepFailure, StepPlan, StepResult
from headway.core.request import Committed, Preempted, Verdict
from headway.core.scheduler import Scheduler
from headway.core.types import FinishReason, Lane, RequestId, ServiceClass
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import LoopOptions, ModelLimits
from headway.engine.streams import SyncGeneration
from headway.engine.text import Detokenizer
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.executors.native import NativeExecutor, NativeOptions
from headway.server.metrics import Metrics
from headway.server.metrics_families import Build, Scrape, exposition
from headway.testing import ManualClock
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import Answer, collect, until
from tests.faults.conductor import Conductor
from tests.tiny import LLAMA, tiny_weights

REALTIME, STANDARD, BATCH = ServiceClass
WEIGHTS = tiny_weights(LLAMA, scale=3.0)
EOS = 0
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
SEEDED = SamplingParams(temperature=1.0, seed=29, logprobs=0)
NO_INTERRUPTS = LoopOptions(interrupt_gain_s=float("inf"))

Ask = Callable[[GenerationRequest], Answer]
"""Answers a request alone, on an idle engine with a large pool: the oracle."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A tiny machine: 64 blocks of 16 tokens. Without host blocks victims are recomputed; copies
    are cheap here, so with them they are swapped as long as the host pool has room."""

    kv_blocks: int = 64
    host_blocks: int = 64
    max_seqs: int = 8
    max_step_tokens: int = 64
    max_model_len: int = 1024
    slow_copy_s: float = 0.0
    config: SchedulerConfig = SchedulerConfig()
    loop: LoopOptions = NO_INTERRUPTS

    @property
    def sizes(self) -> NativeOptions:
        """The executor's options."""
        return NativeOptions(
            kv_blocks=self.kv_blocks,
            host_blocks=self.host_blocks,
            max_seqs=self.max_seqs,
            max_step_tokens=self.max_step_tokens,
            max_model_len=self.max_model_len,
            threads=1,
        )


class WatchedScheduler(Scheduler):
    """Checks every invariant around every step, and keeps what each commit said.

    commits: by the number of plans planned before it, empty ones included.
    """

    def __init__(self, capacity: Capacity, config: SchedulerConfig) -> None:
        super().__init__(capacity, config)
        self.commits: list[tuple[StepPlan, Committed]] = []

    def plan(self, lane: Lane, now: float, unready: Set[RequestId] = frozenset()) -> StepPlan:
        plan = super().plan(lane, now, unready)
        check(self)
        return plan

    def commit(
        self,
        plan: StepPlan,
        outcome: StepResult | StepFailure,
        verdicts: Mapping[RequestId, Verdict],
        now: float,
    ) -> Committed:
        committed = super().commit(plan, outcome, verdicts, now)
        check(self)
        if not plan.empty or committed != Committed():
            self.commits.append((plan, committed))
        return committed


@dataclass
class Rig:
    """An engine, what it stands on, and the requests it was given, in order: their core ids are
    their indices here."""

    engine: Engine
    scheduler: WatchedScheduler
    executor: Conductor
    metrics: Metrics
    asked: list[GenerationRequest] = field(default_factory=list)
    under_way: list[SyncGeneration] = field(default_factory=list)
    _answers: list[Answer] = field(default_factory=list)

    def start(self, request: GenerationRequest) -> int:
        """Submit a request now; its index."""
        self.under_way.append(self.engine.submit_sync(request))
        self.asked.append(request)
        return len(self.asked) - 1

    def cancel(self, index: int) -> None:
        """The client of a request goes away."""
        self.under_way[index].close()

    def play(self, arrivals: Iterable[tuple[int, GenerationRequest]]) -> list[Answer]:
        """Submit each request while the step of its number is about to start, wait for all, and
        return their answers in order. Steps count from here."""
        wanted = list(arrivals)
        first = self.begin(wanted)
        answers = self.finish()[first + 1 :]
        assert len(answers) == len(wanted), "all had ended before the last arrival"
        return answers

    def begin(self, arrivals: Iterable[tuple[int, GenerationRequest]]) -> int:
        """As `play`, without waiting; the index of the request that opens the play. The first
        arrival has the next. It begins on an engine at rest: whatever is left of an earlier play
        would fall before or after its first step, as threads happen to run."""
        until(lambda: self.engine.snapshot().idle and self.executor.resting)
        begun = len(self.executor.plans)
        for step, request in arrivals:
            self.executor.at(begun + step, partial(self.start, request))
        opener = GenerationRequest([1], STANDARD, GREEDY, StopConditions(1, ignore_eos=True))
        return self.start(opener)

    def at(self, step: int, action: Callable[[], object]) -> None:
        """Act while step `step`, counted from the engine's first, is about to start."""
        self.executor.at(step, action)

    def finish(self) -> list[Answer]:
        """Wait until nothing is alive and nothing is due; every answer so far. Where nothing is
        alive before all is done that is due, openers keep the steps coming."""
        while len(self.under_way) > len(self._answers) or self.executor.due:
            count = len(self.under_way)
            if count == len(self._answers):
                self.begin([])
            self._answers += [self._read(g) for g in self.under_way[len(self._answers) : count]]
        return list(self._answers)

    def token_steps(self, index: int) -> list[int]:
        """The step of each of a request's tokens; a step is a plan that was not empty."""
        return [
            step
            for step, (_, committed) in enumerate(self.scheduler.commits)
            for emitted in committed.emitted
            if emitted.request == index
        ]

    def chunk_steps(self, index: int) -> list[int]:
        """The steps that computed for a request."""
        return [
            step
            for step, (plan, _) in enumerate(self.scheduler.commits)
            if any(chunk.request == index for chunk in plan.chunks)
        ]

    def preemptions(self, index: int) -> list[Preempted]:
        """The times a request lost its blocks."""
        gone = [p for _, committed in self.scheduler.commits for p in committed.preempted]
        return [p for p in gone if p.request == index]

    def gauges(self) -> dict[str, float]:
        """What /metrics shows, by name and labels."""
        build = Build("", "")
        scrape = Scrape(self.metrics, self.engine.snapshot(), self.engine.healthy, build, {})
        lines = exposition(scrape)[0].decode().splitlines()
        parts = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in parts}

    @staticmethod
    def _read(generation: SyncGeneration) -> Answer:
        return collect(list(generation))[0]


@contextmanager
def engine_of(machine: Machine, words: Detokenizer | None = None) -> Iterator[Rig]:
    """A started engine; stopped at the end."""
    clock = ManualClock()
    executor: Executor = NativeExecutor(WEIGHTS, machine.sizes)
    conductor = Conductor(executor, clock, machine.slow_copy_s)
    scheduler = WatchedScheduler(executor.capacity, machine.config)
    metrics = Metrics()
    engine = Engine(
        scheduler,
        conductor,
        words or ByteTokenizer(),
        ModelLimits.from_capacity(executor.capacity, frozenset({EOS})),
        Surroundings(clock, random.Random(3), [metrics]),
        machine.loop,
    )
    engine.start()
    try:
        yield Rig(engine, scheduler, conductor, metrics)
    finally:
        engine.stop()


@contextmanager
def clean_rig(machine: Machine, alone: Ask, words: Detokenizer | None = None) -> Iterator[Rig]:
    """`engine_of`, and afterwards nothing may be left behind and the next request is served."""
    with engine_of(machine, words) as rig:
        yield rig
        assert_nothing_left(rig, alone)


def assert_nothing_left(rig: Rig, alone: Ask) -> None:
    """Every block is back, nothing is swapped, the gauges are 0, a fresh request succeeds."""
    until(lambda: rig.engine.snapshot().idle)
    assert rig.engine.healthy
    for tier in (rig.engine.snapshot().device, rig.engine.snapshot().host):
        assert tier.used == 0 and tier.free + tier.cached == tier.total
    shown = rig.gauges()
    left = [n for n, v in shown.items() if n.startswith("headway_requests") and v]
    left += [n for n, v in shown.items() if 'state="used"' in n and v]
    assert not left, left
    fresh = ask(range(7, 40), 6)
    assert collect(list(rig.engine.submit_sync(fresh)))[0].tokens == alone(fresh).tokens


def ask(
    prompt: Iterable[int],
    max_tokens: int,
    service_class: ServiceClass = STANDARD,
    sampling: SamplingParams = GREEDY,
    stop: Sequence[str] = (),
) -> GenerationRequest:
    """A request that goes on to `max_tokens`, end of sequence or not."""
    end = StopConditions(max_tokens, stop=stop, ignore_eos=True)
    return GenerationRequest(list(prompt), service_class, sampling, end)


def prompt_of(number: int, length: int) -> list[int]:
    """Tokens of one prompt of its own, by number."""
    rng = random.Random(number)
    return [rng.randrange(1, LLAMA.vocab) for _ in range(length)]


def assert_same(answer: Answer, expected: Answer, name: object = "") -> None:
    """Equal to the token, log probabilities to the bit, text to the character."""
    assert answer.finish is not FinishReason.ERROR, f"{name}: {answer.message}"
    assert answer.ids == expected.ids, f"{name}: other tokens than alone"
    assert answer.tokens == expected.tokens, f"{name}: other log probabilities than alone"
    assert (answer.text, answer.finish) == (expected.text, expected.finish), f"{name}: other text"


def assert_all_same(answers: Sequence[Answer], rig: Rig, alone: Ask) -> None:
    """`assert_same` for the last answers of a rig."""
    asked = rig.asked[-len(answers) :]
    for index, (answer, request) in enumerate(zip(answers, asked, strict=True)):
        assert_same(answer, alone(request), f"request {index}")


@contextmanager
def oracle() -> Iterator[Ask]:
    """An idle engine with a large pool. Each request comes from a tenant of its own, so that none
    finds another's prefix."""
    machine = Machine(kv_blocks=256, host_blocks=0, max_seqs=1, max_step_tokens=512)
    with engine_of(machine) as rig:
        asked = 0

        def alone(request: GenerationRequest) -> Answer:
            nonlocal asked
            asked += 1
            own = replace(request, tenant=f"{request.tenant}#{asked}")
            return collect(list(rig.engine.submit_sync(own)))[0]

        yield alone
