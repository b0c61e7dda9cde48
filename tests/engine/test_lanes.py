"""The engine with prefill and decode on lanes of their own, in real time."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from headway.core.config import SchedulerConfig
from headway.core.controller import Controller, LaneMode
from headway.core.lanes import LaneChooser
from headway.core.plan import Capacity, StepPlan, StepTiming
from headway.core.scheduler import Scheduler
from headway.core.types import Arrangement, FinishReason, Lane, ServiceClass
from headway.engine.options import LoopOptions
from headway.engine.streams import SyncGeneration
from headway.errors import EngineStoppedError
from headway.testing import Mishaps, Script, WallClock, make_capacity
from headway.testing.builders import make_prompt
from headway.testing.lanes import Restless
from tests.engine.helpers import EOS, Rig, ask, collect, greedy, make_rig, oracle, running, until

REALTIME, STANDARD, BATCH = ServiceClass


@dataclass(frozen=True)
class Phases:
    """Steps last by lane; a unified one as long as both.

    token_s: added for each prompt token; where it is 0, computing again costs nothing, and nobody
        is swapped.
    """

    prefill_s: float = 0.02
    decode_s: float = 0.005
    copy_s: float = 0.0
    token_s: float = 0.0

    def __call__(self, plan: StepPlan) -> StepTiming:
        seconds = {Lane.PREFILL: self.prefill_s, Lane.DECODE: self.decode_s}
        compute_s = seconds.get(plan.lane, self.prefill_s + self.decode_s) if plan.chunks else 0.0
        compute_s += self.token_s * sum(len(c.tokens) for c in plan.chunks if len(c.tokens) > 1)
        return StepTiming(
            copy_out_s=len(plan.swap_out) * self.copy_s,
            copy_in_s=len(plan.swap_in) * self.copy_s,
            compute_s=compute_s,
        )


def split_rig(
    capacity: Capacity | None = None,
    duration: Phases | None = None,
    mishaps: Mishaps | None = None,
    options: LoopOptions | None = None,
    chooser: LaneChooser | None = None,
    script: Script | None = None,
) -> Rig:
    """An engine whose two lanes take real time."""

    def scheduler(capacity: Capacity, config: SchedulerConfig) -> Scheduler:
        split = Controller(LaneMode.SPLIT, capacity, config.targets)
        return Scheduler(capacity, config, chooser or split)

    return make_rig(
        capacity or make_capacity(units=2),
        script,
        mishaps,
        WallClock(),
        duration or Phases(),
        options,
        make_scheduler=scheduler,
    )


def gaps(generation: Iterator[object]) -> list[float]:
    """Seconds between deltas."""
    times = [time.monotonic() for _ in generation]
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("restless", [False, True])
@pytest.mark.parametrize("host_blocks", [0, 8])
def test_many_requests_match_their_oracles(restless: bool, host_blocks: int) -> None:
    chooser = Restless(3, (Arrangement(1, 1), Arrangement())) if restless else None
    capacity = make_capacity(kv_blocks=16, host_blocks=host_blocks, max_seqs=6, units=2)
    script = Script(eos_id=EOS, eos_probability=0.02)
    duration = Phases(prefill_s=0.004, decode_s=0.002, copy_s=0.0005, token_s=0.0002)
    prompts = [make_prompt(i, 10 + 4 * i) for i in range(24)]
    with running(split_rig(capacity, duration, chooser=chooser, script=script)) as rig:
        generations = []
        for i, prompt in enumerate(prompts):
            generations.append(rig.engine.submit_sync(greedy(prompt, 24, ServiceClass(i % 3))))
            if i % 5 == 4:
                time.sleep(0.02)
        answers = [collect(list(g))[0] for g in generations]
        until(rig.idle)
        lanes = {plan.lane for plan in rig.executor.submitted if plan.chunks}
        assert any(p.swap_out for p in rig.executor.submitted) or not host_blocks
    assert lanes >= {Lane.PREFILL, Lane.DECODE}
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.ids == oracle(rig, prompt, 24)


def test_tokens_keep_coming_while_a_long_prompt_is_computed() -> None:
    with running(split_rig(duration=Phases(prefill_s=0.4, decode_s=0.005))) as rig:
        stream = rig.engine.submit_sync(greedy(make_prompt(1, 16), 60))
        next(stream)
        prompt = rig.engine.submit_sync(greedy(make_prompt(2, 200), 1))
        assert max(gaps(stream)[1:]) < 0.3, "tokens waited for the prompt"
        assert collect(list(prompt))[0].finish is FinishReason.LENGTH


def test_an_arrival_does_not_wait_for_the_other_lane() -> None:
    with running(split_rig(duration=Phases(prefill_s=0.01, decode_s=0.4))) as rig:
        stream = rig.engine.submit_sync(greedy(make_prompt(1, 16), 3))
        next(stream)
        time.sleep(0.05)
        started_s = time.monotonic()
        assert len(ask(rig, greedy(make_prompt(2, 16), 1))[0].ids) == 1
        assert time.monotonic() - started_s < 0.2
        assert len(collect(list(stream))[0].ids) == 2


def test_realtime_interrupts_prefill_and_leaves_decode_alone() -> None:
    phases = Phases(prefill_s=0.5, decode_s=0.01)
    mishaps = Mishaps(layers=50)
    with running(split_rig(duration=phases, mishaps=mishaps)) as rig:
        stream = rig.engine.submit_sync(greedy(make_prompt(1, 16), 100, BATCH))
        next(stream)
        long = rig.engine.submit_sync(greedy(make_prompt(2, 48), 1, BATCH))
        time.sleep(0.1)
        started_s = time.monotonic()
        urgent = rig.engine.submit_sync(greedy(make_prompt(3, 16), 1, REALTIME))
        (answer,) = collect(list(urgent))
        took_s = time.monotonic() - started_s
        assert answer.ids == oracle(rig, make_prompt(3, 16), 1)
        assert took_s < 0.75, "the batch prompt was computed first"
        assert max(gaps(stream)) < 0.3
        assert collect(list(long))[0].ids == oracle(rig, make_prompt(2, 48), 1)


def test_a_failed_step_takes_its_own_lanes_requests_only() -> None:
    # Step 0 is the stream's prefill, step 8 one of its decode steps.
    mishaps = Mishaps(fail_steps=frozenset({8}))
    with running(split_rig(duration=Phases(0.3, 0.02), mishaps=mishaps)) as rig:
        stream = rig.engine.submit_sync(greedy(make_prompt(1, 16), 60))
        next(stream)
        prompt = make_prompt(2, 100)
        long = rig.engine.submit_sync(greedy(prompt, 2))
        (failed,) = collect(list(stream))
        assert failed.finish is FinishReason.ERROR and "failed, as its script" in failed.message
        assert collect(list(long))[0].ids == oracle(rig, prompt, 2)
        until(rig.idle)


def test_a_lane_that_fails_and_fails_turns_health_red_though_the_other_succeeds() -> None:
    # Requests come one by one: prefill steps 0, 2, 4 succeed, decode steps 1, 3 fail.
    mishaps = Mishaps(fail_steps=frozenset({1, 3}))
    with running(split_rig(duration=Phases(0.002, 0.002), mishaps=mishaps)) as rig:
        for i in range(2):
            assert ask(rig, greedy(make_prompt(i, 16), 4))[0].finish is FinishReason.ERROR
        assert not rig.engine.healthy
        assert ask(rig, greedy(make_prompt(2, 16), 4))[0].finish is FinishReason.LENGTH
        assert rig.engine.healthy


def test_stop_lets_both_lanes_end() -> None:
    rig = split_rig()
    rig.engine.start()
    generations = [rig.engine.submit_sync(greedy(make_prompt(i, 60), 10)) for i in range(4)]
    rig.engine.stop(10.0)
    for i, generation in enumerate(generations):
        assert collect(list(generation))[0].ids == oracle(rig, make_prompt(i, 60), 10)
    assert not rig.executor.faults


def test_stop_without_time_ends_everyone_with_an_error() -> None:
    rig = split_rig(duration=Phases(prefill_s=3.0, decode_s=0.01))
    rig.engine.start()
    stream = rig.engine.submit_sync(greedy(make_prompt(1, 16), 400))
    long = rig.engine.submit_sync(greedy(make_prompt(2, 200), 1))
    time.sleep(0.05)
    started_s = time.monotonic()
    rig.engine.stop(0.1)
    assert time.monotonic() - started_s < 1.0
    for generation in (stream, long):
        (answer,) = collect(list(generation))
        assert answer.finish is FinishReason.ERROR and "shutting down" in answer.message
    with pytest.raises(EngineStoppedError):
        rig.engine.submit_sync(greedy([1], 1))


def test_a_stalled_lane_tells_every_client() -> None:
    rig = split_rig(duration=Phases(0.01, 60.0), options=LoopOptions(stall_limit_s=0.2))
    rig.engine.start()
    generations: list[SyncGeneration] = [
        rig.engine.submit_sync(greedy(make_prompt(i, 16), 8)) for i in range(3)
    ]
    for generation in generations:
        (answer,) = collect(list(generation))
        assert answer.finish is FinishReason.ERROR
        assert "has not ended after 0.2 s" in answer.message
    until(lambda: not rig.engine.healthy)
    rig.engine.stop()


def test_aborts_at_the_hand_over_leave_nothing_behind() -> None:
    duration = Phases(prefill_s=0.002, decode_s=0.001)
    with running(split_rig(duration=duration)) as rig:
        for i in range(40):
            generation = rig.engine.submit_sync(greedy(make_prompt(i, 20), 50))
            if i % 2:
                next(generation)
            else:
                time.sleep(0.0005 * (i % 8))
            generation.close()
        until(rig.idle)
        prompt = make_prompt(99, 20)
        assert ask(rig, greedy(prompt, 5))[0].ids == oracle(rig, prompt, 5)
        until(lambda: not rig.executor.open_requests)


@pytest.mark.parametrize("alone", [True, False])
def test_a_deadline_is_kept_by_what_waits_while_a_long_step_goes_on(alone: bool) -> None:
    """Choices that wait for the first one's prompt, and whole requests that wait for others'."""
    with running(split_rig(duration=Phases(prefill_s=1.0))) as rig:
        other = None if alone else rig.engine.submit_sync(greedy(make_prompt(1, 200), 1))
        time.sleep(0.05)
        began_s = time.monotonic()
        timed = replace(greedy(make_prompt(2, 200), 40, deadline_s=0.1), n=5)
        generation = rig.engine.submit_sync(timed)
        first = next(generation)
        assert first.finish is FinishReason.DEADLINE
        assert time.monotonic() - began_s < 0.6
        assert {delta.finish for delta in generation} == {FinishReason.DEADLINE}
        if other is not None:
            assert collect(list(other))[0].finish is FinishReason.LENGTH
        until(rig.idle)
