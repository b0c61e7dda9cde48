"""Kinds of fault in coming back, in numbers of answers and in numbers of requests, on the real
engine."""

import gc
import random
from dataclasses import replace

import pytest

from headway.core.types import FinishReason, PreemptKind
from headway.engine.options import LoopOptions, QueueLimits
from headway.errors import OverloadedError
from tests.engine.helpers import Answer, collect, until
from tests.faults.rig import (
    BATCH,
    REALTIME,
    SEEDED,
    STANDARD,
    Ask,
    Machine,
    Rig,
    ask,
    assert_all_same,
    assert_same,
    clean_rig,
    engine_of,
    prompt_of,
)


@pytest.mark.parametrize("host_blocks", [0, 32])
def test_two_that_hold_over_half_the_pool_each_come_back_one_after_the_other(
    alone: Ask, host_blocks: int
) -> None:
    """Two standard requests fill the pool, half each, when realtime takes both halves: to come back
    each needs a block more than half, and may not hold what it finds while it waits for more."""
    halves = [(0, ask(prompt_of(i, 112), 15)) for i in (1, 2)]
    urgent = [(step, ask(prompt_of(step, 230), 3, REALTIME)) for step in (7, 17)]
    with clean_rig(Machine(kv_blocks=16, host_blocks=host_blocks), alone) as rig:
        answers = rig.play([*halves, *urgent])
        first = rig.chunk_steps(3)[0]
        for index in (1, 2):
            assert rig.chunk_steps(index)[0] < first, "not yet resident when realtime came"
            assert rig.preemptions(index)
        assert len(rig.preemptions(1) + rig.preemptions(2)) < 8, "they take it from each other"
        assert_all_same(answers, rig, alone)


@pytest.mark.parametrize("host_blocks", [0, 32])
def test_preempted_and_resumed_fifty_times(alone: Ask, host_blocks: int) -> None:
    """A standard answer loses its blocks to one realtime burst after the other, and nothing else:
    it computes between any two of them, and ends as it would alone."""
    long = ask(prompt_of(1, 40), 400, sampling=SEEDED)
    with clean_rig(Machine(kv_blocks=32, host_blocks=host_blocks), alone) as rig:
        opener = rig.begin([(0, long)])
        bursts = 0

        def burst() -> None:
            nonlocal bursts
            bursts += 1
            rig.start(ask(prompt_of(100 + bursts, 500), 1, REALTIME))
            if bursts < 60:
                rig.at(len(rig.executor.plans) + 14, burst)

        rig.at(6, burst)
        answers = rig.finish()[opener + 1 :]
        lost = rig.preemptions(1)
        assert len(lost) >= 50
        assert {p.kind for p in lost} == {
            PreemptKind.SWAP if host_blocks else PreemptKind.RECOMPUTE
        }
        assert len(rig.token_steps(1)) == 400
        assert_same(answers[0], alone(long))


def choices_of(rig: Rig, index: int) -> list[Answer]:
    return collect(list(rig.under_way[index]), 4)


@pytest.mark.parametrize("leaves", [1, 2, 4, 6, 7, 9, 14, 22])
def test_four_choices_go_as_one(alone: Ask, leaves: int) -> None:
    """Aborted while queued, in the first one's prefill, as the others start, decoding, swapped."""
    four = replace(ask(prompt_of(1, 150), 30, BATCH, SEEDED), n=4)
    stays = ask(prompt_of(2, 20), 40)
    with clean_rig(Machine(kv_blocks=24, max_step_tokens=32), alone) as rig:
        rig.begin([(0, stays), (0, four), (16, ask(prompt_of(3, 250), 6, REALTIME))])
        rig.at(leaves, lambda: rig.cancel(2))
        (answer,) = collect(list(rig.under_way[0]))
        until(lambda: len(rig.under_way) == 4 and not rig.executor.due)
        ended = choices_of(rig, 2)
        assert {choice.finish for choice in ended} == {FinishReason.ABORT}
        (answer,) = collect(list(rig.under_way[1]))
        assert_same(answer, alone(stays), "who stays")
        collect(list(rig.under_way[3]))
        after = [
            chunk.request
            for plan in rig.executor.plans[leaves + 1 :]
            for chunk in plan.chunks
            if 2 <= chunk.request < 6
        ]
        assert not after, "computed for a client that has gone"


def test_an_accepted_request_is_never_refused_when_it_comes_back(alone: Ask) -> None:
    """[S10, sglang #37260] The queues are full while it is preempted: queue limits are for those
    who have not been let in."""
    limits = LoopOptions(queues=QueueLimits(1, 1, 1), interrupt_gain_s=float("inf"))
    victim = ask(prompt_of(1, 100), 30, BATCH)
    refused = 0
    with clean_rig(Machine(kv_blocks=14, loop=limits), alone) as rig:
        opener = rig.begin([(0, victim), (8, ask(prompt_of(2, 180), 10, REALTIME))])

        def crowd() -> None:
            nonlocal refused
            assert rig.preemptions(1)
            for i in range(4):
                try:
                    rig.start(ask(prompt_of(10 + i, 20), 2, BATCH))
                except OverloadedError:
                    refused += 1

        rig.at(14, crowd)
        answers = rig.finish()[opener + 1 :]
        assert refused == 3
        assert_same(answers[0], alone(victim))
        assert all(answer.finish is FinishReason.LENGTH for answer in answers)


def test_nothing_of_the_cancelled_piles_up(alone: Ask) -> None:
    """[C4, TensorRT-LLM #8131, lmdeploy #1619] Ten rounds of 200 requests started and killed: as
    many objects are alive after the last as after the third."""
    rng = random.Random(5)
    counts = []
    with clean_rig(Machine(), alone) as rig:
        # 1,000 steps, which is what the scheduler keeps of the last ones.
        list(rig.engine.submit_sync(ask(prompt_of(1, 10), 1005, BATCH)))
        for _ in range(10):
            going = [
                rig.engine.submit_sync(
                    ask(prompt_of(rng.randrange(99), 30), 50, (BATCH, STANDARD)[i % 2])
                )
                for i in range(200)
            ]
            rng.shuffle(going)
            for generation in going:
                generation.close()
            del going, generation
            until(lambda: rig.engine.snapshot().idle)
            rig.scheduler.commits.clear()
            rig.executor.plans.clear()
            gc.collect()
            counts.append(len(gc.get_objects()))
    # What is under way at the moment of counting comes and goes by some dozens; what is kept of a
    # request adds up, by 1,000 for each object in five rounds.
    assert min(counts[7:]) - min(counts[2:5]) < 400, counts


def test_unrelated_chats_do_not_meet_in_the_prefix_cache(alone: Ask) -> None:
    """[K14, llama.cpp #27148] Sixteen chats take turns, idle in between, in a cache that holds a
    few of them: each finds its own beginning or nothing, and says truly how much it found."""
    histories = {i: prompt_of(i, 40) for i in range(16)}
    rng = random.Random(3)
    found = 0
    with engine_of(Machine(kv_blocks=40)) as rig:
        for _ in range(64):
            chat = rng.randrange(16)
            request = ask(histories[chat], 8)
            (answer,) = collect(list(rig.engine.submit_sync(request)))
            expected = alone(request)
            assert_same(answer, expected, f"chat {chat}")
            assert answer.usage is not None
            cached = answer.usage.cached
            assert cached % 16 == 0 and cached < len(histories[chat])
            found += cached
            computed = sum(
                len(chunk.tokens) for plan in rig.executor.plans for chunk in plan.chunks
            )
            assert computed == len(histories[chat]) - cached + 7
            rig.executor.plans.clear()
            histories[chat] = (histories[chat] + answer.ids + prompt_of(rng.randrange(999), 9))[
                :200
            ]
    assert found > 0
