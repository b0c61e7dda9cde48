"""What goes wrong, and who hears of it."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from headway.core.plan import StepFailure, StepPlan, StepResult, StepTiming
from headway.core.request import Committed, Usage, Verdict
from headway.core.scheduler import Scheduler
from headway.core.types import FinishReason, RequestId, ServiceClass
from headway.engine.options import LoopOptions, QueueLimits
from headway.engine.streams import SyncGeneration
from headway.engine.types import RequestEnd, StepEnd
from headway.errors import ConfigError, EngineStoppedError, OverloadedError
from headway.testing import LinearDuration, Mishaps, WallClock, make_capacity
from headway.testing.builders import make_prompt
from tests.engine.helpers import SLOW, Rig, ask, collect, greedy, make_rig, oracle, running, until

ENDLESS = LinearDuration(step_s=3600.0)


class Diary:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.admitted: list[float] = []
        self.gaps: list[tuple[ServiceClass, float, bool]] = []
        self.preempted: list[str] = []
        self.finished: list[tuple[FinishReason, Usage]] = []
        self.steps: list[StepEnd] = []

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        self.admitted.append(queued_s)

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        self.gaps += [(service_class, gap_s, first) for gap_s in gaps_s]

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        self.preempted.append(kind)

    def on_finished(self, end: RequestEnd) -> None:
        self.finished.append((end.reason, end.usage))

    def on_step(self, end: StepEnd) -> None:
        self.steps.append(end)


class Saboteur(Diary):
    """An observer that raises at the second token."""

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        super().on_tokens(service_class, gaps_s, first)
        if len(self.gaps) == 2:
            raise RuntimeError("sabotage")


class Doomed:
    """Steps last 10 ms, until they hang."""

    def __init__(self) -> None:
        self.hang = False

    def __call__(self, plan: StepPlan) -> StepTiming:
        return StepTiming(compute_s=3600.0 if self.hang else 0.01)


class BrokenScheduler(Scheduler):
    """A scheduler with a bug that shows at its fifth commit."""

    def commit(
        self,
        plan: StepPlan,
        outcome: StepResult | StepFailure,
        verdicts: Mapping[RequestId, Verdict],
        now: float,
    ) -> Committed:
        if plan.step == 5:
            raise RuntimeError("a bug")
        return super().commit(plan, outcome, verdicts, now)


def test_failed_step_ends_its_requests_and_the_next_is_served() -> None:
    with running(make_rig(mishaps=Mishaps(fail_steps=frozenset({3})))) as rig:
        (answer,) = ask(rig, greedy(make_prompt(1, 16), 20))
        assert answer.finish is FinishReason.ERROR and "failed, as its script" in answer.message
        assert len(answer.ids) == 3
        assert rig.engine.healthy
        prompt = make_prompt(2, 16)
        assert ask(rig, greedy(prompt, 5))[0].ids == oracle(rig, prompt, 5)
        until(rig.idle)


def test_two_failures_in_a_row_turn_health_red_until_a_step_succeeds() -> None:
    with running(make_rig(mishaps=Mishaps(fail_steps=frozenset({0, 1})))) as rig:
        ask(rig, greedy(make_prompt(1, 16), 4))
        ask(rig, greedy(make_prompt(2, 16), 4))
        assert not rig.engine.healthy
        (answer,) = ask(rig, greedy(make_prompt(3, 16), 4))
        assert answer.finish is FinishReason.LENGTH and rig.engine.healthy


def test_error_of_one_request_leaves_its_neighbour_alone() -> None:
    mishaps = Mishaps(nan_at={RequestId(0): 3})
    with running(make_rig(mishaps=mishaps, clock=WallClock(), duration=SLOW)) as rig:
        prompts = [make_prompt(1, 16), make_prompt(2, 16)]
        generations = [rig.engine.submit_sync(greedy(p, 10)) for p in prompts]
        bad, good = [collect(list(g))[0] for g in generations]
        until(rig.idle)
    assert bad.finish is FinishReason.ERROR and "not numbers" in bad.message
    assert len(bad.ids) == 3 and good.ids == oracle(rig, prompts[1], 10)


async def test_dead_loop_tells_every_client() -> None:
    rig = make_rig(make_scheduler=BrokenScheduler)
    rig.engine.start()
    requests = [greedy(make_prompt(i, 16), 100) for i in range(3)]
    generations = [rig.engine.submit(r) for r in requests]
    for generation in generations:
        (answer,) = collect([delta async for delta in generation])
        assert answer.finish is FinishReason.ERROR and "a bug" in answer.message
    assert not rig.engine.healthy
    with pytest.raises(EngineStoppedError, match="failed: a bug"):
        rig.engine.submit(requests[0])
    rig.engine.stop()


def test_a_dead_engine_shows_nobody_alive_and_no_block_in_use() -> None:
    duration = Doomed()
    options = LoopOptions(stall_limit_s=0.3)
    rig = make_rig(clock=WallClock(), duration=duration, options=options)
    rig.engine.start()
    generations = [rig.engine.submit_sync(greedy(make_prompt(i, 40), 100)) for i in range(2)]
    for generation in generations:
        next(generation)
    until(lambda: rig.engine.snapshot().device.used > 0)
    duration.hang = True
    for generation in generations:
        assert collect(list(generation))[0].finish is FinishReason.ERROR
    snapshot = rig.engine.snapshot()
    assert snapshot.idle and snapshot.device.used == 0 == snapshot.headroom_blocks
    assert snapshot.device.free + snapshot.device.cached == snapshot.device.total


def test_stalled_step_tells_every_client() -> None:
    rig = make_rig(duration=ENDLESS, options=LoopOptions(stall_limit_s=60.0))
    rig.engine.start()
    (answer,) = ask(rig, greedy(make_prompt(1, 16), 4))
    assert answer.finish is FinishReason.ERROR and "has not ended after 60 s" in answer.message
    until(lambda: not rig.engine.healthy)
    with pytest.raises(EngineStoppedError):
        rig.engine.submit_sync(greedy([1], 1))


def test_health_is_red_while_a_step_lasts_too_long() -> None:
    clock = WallClock()
    rig = make_rig(
        clock=clock,
        duration=LinearDuration(step_s=0.5),
        options=LoopOptions(stall_limit_s=0.2),
    )
    rig.engine.start()
    generation = rig.engine.submit_sync(greedy(make_prompt(1, 16), 1))
    assert rig.engine.healthy
    (answer,) = collect(list(generation))
    assert answer.finish is FinishReason.ERROR
    until(lambda: not rig.engine.healthy)


def test_observer_that_raises_is_dropped_and_nothing_else() -> None:
    saboteur, diary = Saboteur(), Diary()
    prompt = make_prompt(1, 16)
    with running(make_rig(observers=[saboteur, diary])) as rig:
        assert ask(rig, greedy(prompt, 6))[0].ids == oracle(rig, prompt, 6)
    assert len(saboteur.gaps) == 2 and not saboteur.finished
    assert len(diary.gaps) == 6 and len(diary.finished) == 1


def test_observers_hear_of_every_milestone() -> None:
    diary = Diary()
    capacity = make_capacity(kv_blocks=6, max_seqs=2, max_model_len=90)
    with running(make_rig(capacity, clock=WallClock(), duration=SLOW, observers=[diary])) as rig:
        slow = rig.engine.submit_sync(greedy(make_prompt(1, 30), 55, ServiceClass.BATCH))
        next(slow)
        ask(rig, greedy(make_prompt(2, 40), 30, ServiceClass.REALTIME))
        (answer,) = collect(list(slow))
    assert len(diary.admitted) == 2 and diary.preempted == ["recompute"]
    firsts = [gap for gap in diary.gaps if gap[2]]
    assert [c for c, _, _ in firsts] == [ServiceClass.BATCH, ServiceClass.REALTIME]
    assert all(gap_s >= 0.01 for _, gap_s, _ in diary.gaps)
    assert sum(1 for gap in diary.gaps if not gap[2]) == 54 + 29
    assert [reason for reason, _ in diary.finished] == [FinishReason.LENGTH] * 2
    assert diary.finished[1][1].recomputed > 0 and answer.finish is FinishReason.LENGTH
    check_steps(diary, rig)


def check_steps(diary: Diary, rig: Rig) -> None:
    """Every step is told, in order, with the classes of those it names."""
    steps = [end.record.step for end in diary.steps]
    assert steps == sorted(set(steps))
    assert all(end.plan.step == end.record.step == end.outcome.step for end in diary.steps)
    named = dict.fromkeys(ServiceClass, 0)
    for end in diary.steps:
        for computed in end.record.computed:
            named[end.classes[computed.request]] += computed.decoding
    # The first token comes with the prompt, and once more after a recompute.
    assert named[ServiceClass.REALTIME] == 29
    assert named[ServiceClass.BATCH] >= 53
    (evicted,) = [e for end in diary.steps for e in end.record.evicted]
    assert (evicted.request, evicted.wanted_by) == (0, 1)


async def test_a_picture_is_taken_while_the_engine_works_and_while_it_idles() -> None:
    with running(make_rig(clock=WallClock(), duration=SLOW)) as rig:
        idle = await rig.engine.picture()
        assert idle.sequences == () and len(idle.device) == rig.engine.capacity.kv_blocks
        generation = rig.engine.submit(greedy(make_prompt(1, 30), 20, ServiceClass.BATCH))
        async for _ in generation:
            picture = await rig.engine.picture()
            break
        await generation.aclose()
        assert [view.request for view in picture.sequences] == [0]
        assert picture.device.count(0) == 2
    with pytest.raises(EngineStoppedError):
        await rig.engine.picture()


def test_stop_lets_running_requests_end() -> None:
    rig = make_rig(clock=WallClock(), duration=SLOW)
    rig.engine.start()
    generation = rig.engine.submit_sync(greedy(make_prompt(1, 16), 10))
    stopper = threading.Thread(target=rig.engine.stop, args=(5.0,))
    stopper.start()
    until(lambda: bool(rig.engine._refusal))
    with pytest.raises(EngineStoppedError, match="shutting down"):
        rig.engine.submit_sync(greedy([1], 1))
    (answer,) = collect(list(generation))
    stopper.join()
    assert answer.finish is FinishReason.LENGTH and not rig.engine.healthy


def test_stop_ends_what_is_left_when_the_time_is_up() -> None:
    rig = make_rig(clock=WallClock(), duration=SLOW)
    rig.engine.start()
    generation = rig.engine.submit_sync(greedy(make_prompt(1, 16), 400))
    next(generation)
    started_s = time.monotonic()
    rig.engine.stop(0.1)
    rig.engine.stop(0.1)
    assert 0.05 < time.monotonic() - started_s < 2.0
    (answer,) = collect(list(generation))
    assert answer.finish is FinishReason.ERROR and "shutting down" in answer.message


def test_stop_without_start_closes_the_executor() -> None:
    rig = make_rig()
    rig.engine.stop()
    with pytest.raises(EngineStoppedError):
        rig.engine.submit_sync(greedy([1], 1))
    assert not rig.engine.healthy


def overload(rig: Rig, count: int, service_class: ServiceClass) -> list[SyncGeneration]:
    """Submit so many; those that are accepted."""
    accepted = []
    for i in range(count):
        with contextlib.suppress(OverloadedError):
            request = greedy(make_prompt(i, 16), 400, service_class)
            accepted.append(rig.engine.submit_sync(request))
    return accepted


def test_queue_limit_counts_exactly_and_by_class() -> None:
    options = LoopOptions(queues=QueueLimits(realtime=4, standard=5, batch=6))
    duration = LinearDuration(step_s=0.3)
    capacity = make_capacity(max_seqs=1)
    with running(make_rig(capacity, clock=WallClock(), duration=duration, options=options)) as rig:
        first = rig.engine.submit_sync(greedy(make_prompt(1, 16), 400))
        until(lambda: len(rig.executor.submitted) == 1)
        accepted = [overload(rig, 20, c) for c in ServiceClass]
        # The first one counts until the step that admits it is committed.
        assert [len(generations) for generations in accepted] == [4, 4, 6]
        next(first)
        assert len(overload(rig, 20, ServiceClass.STANDARD)) == 1


def test_a_request_beyond_a_queue_limit_is_let_in_where_none_waits_and_none_after_it() -> None:
    tokens = QueueLimits(realtime=100)
    options = LoopOptions(
        interrupt_gain_s=math.inf, queues=QueueLimits(standard=2), queue_tokens=tokens
    )
    capacity, duration = make_capacity(max_seqs=1), LinearDuration(step_s=1.0)
    with running(make_rig(capacity, clock=WallClock(), duration=duration, options=options)) as rig:
        first = rig.engine.submit_sync(greedy(make_prompt(1, 16), 400, ServiceClass.BATCH))
        next(first)
        many = replace(greedy(make_prompt(2, 16), 400), n=50)
        long = greedy(make_prompt(3, 200), 400, ServiceClass.REALTIME)
        rig.engine.submit_sync(many)
        with pytest.raises(OverloadedError, match="50 standard requests are waiting"):
            rig.engine.submit_sync(greedy(make_prompt(4, 16), 1))
        rig.engine.submit_sync(long)
        with pytest.raises(OverloadedError, match="realtime requests of 200 tokens are waiting"):
            rig.engine.submit_sync(greedy(make_prompt(5, 16), 1, ServiceClass.REALTIME))


async def test_admitted_and_aborted_requests_leave_the_queue() -> None:
    options = LoopOptions(queues=QueueLimits(standard=2))
    with running(make_rig(clock=WallClock(), duration=SLOW, options=options)) as rig:
        for _ in range(5):
            generation = rig.engine.submit(greedy(make_prompt(1, 16), 400))
            other = rig.engine.submit(greedy(make_prompt(1, 16), 2))
            async for _ in other:
                pass
            await generation.aclose()
            await asyncio.to_thread(until, rig.idle)


def test_limits_must_be_sensible() -> None:
    for build in (lambda: QueueLimits(batch=0), lambda: LoopOptions(max_choices=0)):
        with pytest.raises(ConfigError):
            build()
