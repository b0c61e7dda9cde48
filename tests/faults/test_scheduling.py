"""Kinds of fault in scheduling, priority and capacity, on the real engine.

Their bounds in seconds are tests in virtual time, in tests/core/test_rules.py and
tests/core/test_promise.py; README.md lists which.
"""

import itertools
from functools import partial

import pytest

from headway.core.types import FinishReason, PreemptKind
from headway.errors import NeverFitsError
from tests.faults.rig import (
    BATCH,
    REALTIME,
    STANDARD,
    Ask,
    Machine,
    ask,
    assert_all_same,
    clean_rig,
    prompt_of,
)


def test_realtime_gets_a_seat_from_long_batch_streams(alone: Ask) -> None:
    """[S1, vllm #40004] Two seats, both held; the first token comes with the next step."""
    batch = [ask(prompt_of(i, 20), 60, BATCH) for i in range(2)]
    urgent = ask(prompt_of(9, 20), 8, REALTIME)
    with clean_rig(Machine(max_seqs=2), alone) as rig:
        answers = rig.play([(0, batch[0]), (0, batch[1]), (12, urgent)])
        assert rig.token_steps(3)[0] <= 12 + 2
        assert not rig.preemptions(1) and not rig.preemptions(2), "a seat costs no blocks"
        assert_all_same(answers, rig, alone)


@pytest.mark.parametrize("host_blocks", [0, 64])
@pytest.mark.parametrize(("seats", "kv_blocks"), [(16, 16), (4, 64)])
def test_realtime_preempts_for_blocks_and_for_seats(
    alone: Ask, seats: int, kv_blocks: int, host_blocks: int
) -> None:
    """[S2, sglang #14872] Many seats and a tiny pool; few seats and a large one."""
    count = 4
    arrivals = [(0, ask(prompt_of(i, 40), 24, BATCH)) for i in range(count)]
    arrivals.append((16, ask(prompt_of(99, 90), 6, REALTIME)))
    machine = Machine(kv_blocks=kv_blocks, host_blocks=host_blocks, max_seqs=seats)
    with clean_rig(machine, alone) as rig:
        answers = rig.play(arrivals)
        computed, first = rig.chunk_steps(count + 1), rig.token_steps(count + 1)[0]
        assert computed[0] <= 16 + 2, "realtime waited"
        assert first - computed[0] < 5, "its prefill was held up"
        taken = [p.kind for i in range(1, count + 1) for p in rig.preemptions(i)]
        wanted = PreemptKind.SWAP if host_blocks else PreemptKind.RECOMPUTE
        assert set(taken) == ({wanted} if kv_blocks == 16 else set())
        assert_all_same(answers, rig, alone)


@pytest.mark.parametrize("host_blocks", [0, 64])
def test_preempted_work_resumes_before_fresh_work_of_its_class(
    alone: Ask, host_blocks: int
) -> None:
    """[S3, vllm #41951] Twenty fresh batch requests wait when one is preempted."""
    arrivals = [(0, ask(prompt_of(0, 100), 40, BATCH))]
    arrivals.append((6, ask(prompt_of(99, 180), 20, REALTIME)))
    arrivals += [(7, ask(prompt_of(1 + i, 20), 4, BATCH)) for i in range(20)]
    with clean_rig(Machine(kv_blocks=14, host_blocks=host_blocks, max_seqs=4), alone) as rig:
        answers = rig.play(arrivals)
        (lost, *more) = rig.preemptions(1)
        assert lost.kind is (PreemptKind.SWAP if host_blocks else PreemptKind.RECOMPUTE)
        assert len(more) <= 2
        last_realtime = rig.token_steps(2)[-1]
        resumed = next(step for step in rig.chunk_steps(1) if step > rig.chunk_steps(2)[0])
        assert resumed <= last_realtime + 2
        assert all(rig.chunk_steps(3 + i)[0] >= resumed for i in range(20))
        assert_all_same(answers, rig, alone)


def test_a_victim_taken_in_mid_step_makes_nobody_else_skip(alone: Ask) -> None:
    """[S4, vllm #49097] Three classes under pressure: who is no victim gets a token each step, or
    pauses for a few."""
    classes = (REALTIME, STANDARD, BATCH)
    arrivals = [(3 * i, ask(prompt_of(i, 30 + i), 40, classes[i % 3])) for i in range(12)]
    with clean_rig(Machine(kv_blocks=28, host_blocks=12, max_seqs=12), alone) as rig:
        answers = rig.play(arrivals)
        assert sum(len(rig.preemptions(1 + i)) for i in range(12)) > 0
        for index, (_, request) in enumerate(arrivals, 1):
            if not rig.preemptions(index):
                steps = rig.token_steps(index)
                gap = max(b - a for a, b in itertools.pairwise(steps))
                assert gap <= (1 if request.service_class is REALTIME else 60), f"{index}: {gap}"
        assert_all_same(answers, rig, alone)


def test_prompts_without_pause_do_not_starve_decoding(alone: Ask) -> None:
    """[S5, sglang #32549] A prompt of three chunks arrives every other step."""
    arrivals = [(0, ask(prompt_of(0, 20), 40))]
    arrivals += [(2 * i, ask(prompt_of(1 + i, 150), 1)) for i in range(25)]
    with clean_rig(Machine(kv_blocks=128), alone) as rig:
        answers = rig.play(arrivals)
        assert max(b - a for a, b in itertools.pairwise(rig.token_steps(1))) == 1
        assert_all_same(answers, rig, alone)


def test_decoding_without_end_does_not_starve_a_long_prefill(alone: Ask) -> None:
    """[S5, sglang #32549] The mirror: seven streams decode all the time."""
    arrivals = [(0, ask(prompt_of(i, 10), 90)) for i in range(7)]
    arrivals.append((5, ask(prompt_of(9, 400), 4)))
    with clean_rig(Machine(max_step_tokens=24), alone) as rig:
        answers = rig.play(arrivals)
        assert rig.token_steps(8)[0] <= 5 + 400 / (24 - 7) + 3
        assert_all_same(answers, rig, alone)


def test_first_in_first_out_for_clients_that_ask_again(alone: Ask) -> None:
    """[S6, llama.cpp #15008] Four closed-loop clients, one seat: each turn serves all of them."""
    first = [(0, ask(prompt_of(client, 20), 5)) for client in range(4)]
    with clean_rig(Machine(max_seqs=1), alone) as rig:

        def again(number: int) -> None:
            """The client whose answer ends now asks its next question, and so on."""
            rig.start(ask(prompt_of(number, 20), 5))
            if number < 27:
                rig.at(len(rig.executor.plans) + 5, partial(again, number + 1))

        opener = rig.begin(first)
        rig.at(6, partial(again, 4))
        answers = rig.finish()[opener + 1 :]
        starts = [rig.token_steps(i + 1)[0] for i in range(len(answers))]
        assert len(answers) == 28 and starts == sorted(starts)
        assert max(b - a for a, b in itertools.pairwise(starts)) <= 6
        assert_all_same(answers, rig, alone)


def test_a_document_under_way_delays_chat_by_a_chunk(alone: Ask) -> None:
    """[S7, llama.cpp #22916] A batch prompt of 900 tokens prefills when realtime arrives."""
    arrivals = [(0, ask(prompt_of(0, 900), 4, BATCH)), (4, ask(prompt_of(1, 30), 6, REALTIME))]
    with clean_rig(Machine(), alone) as rig:
        answers = rig.play(arrivals)
        assert rig.token_steps(2)[0] <= 4 + 2
        assert rig.token_steps(1)[0] > rig.token_steps(2)[0], "the document was done already"
        assert_all_same(answers, rig, alone)


def test_the_cheap_victim_goes(alone: Ask) -> None:
    """[S9, vllm #54644] One batch request is nearly finished, one has just started."""
    arrivals = [(0, ask(prompt_of(0, 140), 30, BATCH)), (24, ask(prompt_of(1, 60), 30, BATCH))]
    arrivals.append((28, ask(prompt_of(2, 40), 2, REALTIME)))
    with clean_rig(Machine(kv_blocks=16, host_blocks=0), alone) as rig:
        answers = rig.play(arrivals)
        assert not rig.preemptions(1) and rig.preemptions(2)
        assert_all_same(answers, rig, alone)


def test_prompts_around_the_size_of_the_pool(alone: Ask) -> None:
    """[S11, vllm-rbln #957, vllm #35570, #52530] Pool - 1, pool and pool + 1 blocks, and an
    answer that does not fit: refused or `length`, and the next request is served each time."""
    pool_tokens = 8 * 16
    with clean_rig(Machine(kv_blocks=8, host_blocks=8), alone) as rig:
        for length, max_tokens in ((112, 16), (127, 1), (100, 500)):
            (answer,) = rig.play([(0, ask(prompt_of(length, length), max_tokens))])
            fits = min(max_tokens, pool_tokens - length)
            assert answer.finish is FinishReason.LENGTH and len(answer.ids) == fits
            assert answer.ids == alone(ask(prompt_of(length, length), fits)).ids
        for length in (128, 129, 144, 5000):
            with pytest.raises(NeverFitsError, match="at most 127"):
                rig.start(ask(prompt_of(length, length), 1))
        assert_all_same(rig.play([(0, ask(prompt_of(1, 20), 6))]), rig, alone)
