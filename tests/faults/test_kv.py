"""Kinds of fault in KV accounting, swapping and resuming, on the real engine.

The rig checks every invariant around every step (each block in one state, free + used + cached =
total on both tiers, references as held), so each test here checks those too.
"""

import itertools
import random
from dataclasses import replace
from functools import partial

import pytest

from headway.core.plan import Penalties, Truncation
from headway.core.types import FinishReason, PreemptKind, ServiceClass
from headway.engine.types import GenerationRequest, SamplingParams
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import Answer
from tests.faults.rig import (
    BATCH,
    GREEDY,
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
    prompt_of,
)

LETTERS = ByteTokenizer({token: chr(0x3042 + token).encode() for token in range(256)})
"""One character a token, so that any text can be a stop string."""


def preempted(rig: Rig, kind: PreemptKind | None = None) -> int:
    """How often anybody lost its blocks, by one kind or any."""
    every = [p for i in range(len(rig.asked)) for p in rig.preemptions(i)]
    return sum(1 for p in every if kind in (None, p.kind))


def test_no_answer_holds_another_ones_secret(alone: Ask) -> None:
    """[K1, TensorRT-LLM #8813] 32 prompts that repeat a word of their own, swapped all the time."""
    secrets = [prompt_of(1000 + i, 4) for i in range(32)]
    arrivals = [(i, ask(secrets[i] * 8, 48, BATCH, SEEDED)) for i in range(16)]
    arrivals += [(5 * i, ask(secrets[i] * 24, 4, REALTIME, SEEDED)) for i in range(16, 32)]
    with clean_rig(Machine(kv_blocks=20, host_blocks=48, max_seqs=12), alone) as rig:
        answers = rig.play(arrivals)
        assert preempted(rig, PreemptKind.SWAP) >= 12
        assert_all_same(answers, rig, alone)
    for i, answer in enumerate(answers):
        words = {tuple(answer.ids[at : at + 4]) for at in range(len(answer.ids) - 3)}
        strangers = {tuple(secret) for j, secret in enumerate(secrets) if j != i}
        assert not words & strangers


@pytest.mark.parametrize("host_blocks", [40, 6])
def test_preempted_at_random_points_while_copies_are_slow(alone: Ask, host_blocks: int) -> None:
    """[K2, vllm #45704, sglang #30899] At 100 points with a host pool for all victims, and at 100
    with one for some of them."""
    rng = random.Random(host_blocks)
    streams = [ask(prompt_of(i, 20 + 5 * i), 120, BATCH, (GREEDY, SEEDED)[i % 2]) for i in range(8)]
    expected = [alone(stream) for stream in streams]
    bursts = [ask(prompt_of(100 + i, 40 + 30 * i), 2, REALTIME) for i in range(6)]
    expected_bursts = [alone(burst) for burst in bursts]
    machine = Machine(kv_blocks=20, host_blocks=host_blocks, slow_copy_s=0.0003)
    with clean_rig(machine, alone) as rig:
        rounds = 0
        while preempted(rig) < 100 or preempted(rig, PreemptKind.SWAP) < 12:
            # Each stream takes 120 steps at the least.
            urgent = [(step, rng.randrange(6)) for step in range(3, 118) if not rng.randrange(2)]
            arrivals = [(0, stream) for stream in streams]
            answers = rig.play([*arrivals, *((step, bursts[i]) for step, i in urgent)])
            for i, (answer, same) in enumerate(zip(answers, expected, strict=False)):
                assert_same(answer, same, f"stream {i}")
            for answer, (_, i) in zip(answers[8:], urgent, strict=True):
                assert_same(answer, expected_bursts[i], "realtime")
            rounds += 1
            assert rounds < 12, "too few preemptions, or swaps among them"


def random_load(rig: Rig, rng: random.Random, count: int, span: int) -> list[int]:
    """`count` requests of all classes at random steps within `span`, half of them from trees of
    shared prefixes; a third are cancelled at random. Their indices."""
    trunk = prompt_of(5, 48)
    started: list[int] = []

    def act(request: GenerationRequest) -> None:
        started.append(rig.start(request))
        if not rng.randrange(3):
            victim = rng.choice(started[-12:])
            rig.at(len(rig.executor.plans) + rng.randrange(1, 6), lambda: rig.cancel(victim))

    for _ in range(count):
        own = prompt_of(rng.randrange(10**6), rng.randrange(1, 40))
        prompt = trunk[: 16 * rng.randrange(4)] + prompt_of(rng.randrange(3), 16) + own
        request = ask(prompt, rng.randrange(1, 12), ServiceClass(rng.randrange(3)), GREEDY)
        rig.at(1 + rng.randrange(span), partial(act, request))
    rig.begin([])
    rig.finish()
    return started


def test_counters_of_both_tiers_add_up_after_each_of_1000_operations(alone: Ask) -> None:
    """[K3, TensorRT-LLM #12834] Admissions, growth, swaps both ways, recomputes, ends, aborts."""
    with clean_rig(Machine(kv_blocks=24, host_blocks=8), alone) as rig:
        random_load(rig, random.Random(1), 500, span=500)
        operations = 0
        for plan, committed in rig.scheduler.commits:
            operations += len(plan.swap_in) + len(plan.swap_out)
            operations += len(committed.admitted) + len(committed.preempted)
            operations += len(committed.finished)
        assert operations >= 1000
        assert preempted(rig, PreemptKind.SWAP) and preempted(rig, PreemptKind.RECOMPUTE)


def test_an_arrival_waits_when_every_block_is_pinned(alone: Ask) -> None:
    """[K4, TensorRT-LLM #1687] Two realtime requests hold the pool when a third arrives."""
    holders = [(0, ask(prompt_of(i, 60), 4, REALTIME)) for i in range(2)]
    with clean_rig(Machine(kv_blocks=8), alone) as rig:
        answers = rig.play([*holders, (2, ask(prompt_of(9, 60), 4, REALTIME))])
        assert not preempted(rig)
        assert rig.chunk_steps(3)[0] > min(rig.token_steps(1)[-1], rig.token_steps(2)[-1])
        assert_all_same(answers, rig, alone)


@pytest.mark.parametrize("host_blocks", [0, 5])
def test_a_full_host_pool_stops_nothing(alone: Ask, host_blocks: int) -> None:
    """[K5, vllm #546] More victims than the host pool holds; and none at all. Afterwards a stream
    has a token each step again."""
    arrivals = [(0, ask(prompt_of(i, 48), 20, BATCH)) for i in range(4)]
    arrivals.append((9, ask(prompt_of(9, 200), 10, REALTIME)))
    with clean_rig(Machine(kv_blocks=16, host_blocks=host_blocks), alone) as rig:
        answers = rig.play(arrivals)
        assert preempted(rig, PreemptKind.RECOMPUTE) > 0
        assert (preempted(rig, PreemptKind.SWAP) > 0) is (host_blocks > 0)
        assert_all_same(answers, rig, alone)
        later = len(rig.asked) + 1
        rig.play([(0, ask(prompt_of(20, 30), 20))])
        steps = rig.token_steps(later)
        assert all(b - a == 1 for a, b in itertools.pairwise(steps))


def test_whoever_was_swapped_out_emits_again_when_the_load_has_gone(alone: Ask) -> None:
    """[K6, xinfer #69] Realtime, which displaced them all, goes away; nobody else comes."""
    arrivals = [(0, ask(prompt_of(i, 40), 16, BATCH)) for i in range(4)]
    arrivals.append((8, ask(prompt_of(9, 230), 200, REALTIME)))
    with clean_rig(Machine(kv_blocks=16), alone) as rig:
        opener = rig.begin(arrivals)
        rig.at(24, lambda: rig.cancel(5))
        answers = rig.finish()[opener + 1 :]
        assert answers[4].finish is FinishReason.ABORT
        for index in range(1, 5):
            assert [p.kind for p in rig.preemptions(index)] == [PreemptKind.SWAP]
            assert len([step for step in rig.token_steps(index) if step > 24]) > 2
        for answer, (_, request) in zip(answers[:4], arrivals, strict=False):
            assert_same(answer, alone(request))


def overtaken(rig: Rig, victim: GenerationRequest, step: int) -> Answer:
    """The victim's answer when realtime takes its blocks at a step of its life."""
    index = len(rig.asked) + 1
    urgent = ask(prompt_of(99, 180), 2, REALTIME)
    unseen = replace(victim, tenant=f"tenant {index}")  # finds no prefix of an earlier run
    answer = rig.play([(0, unseen), (step, urgent)])[0]
    assert rig.preemptions(index), f"not preempted at step {step}"
    return answer


STATEFUL = {
    "penalties": SamplingParams(temperature=0.0, penalties=Penalties(1.4, 0.9, 0.7), logprobs=1),
    "seed": SEEDED,
    "bias": SamplingParams(temperature=1.0, seed=4, bias={9: 6.0, 17: -8.0}, logprobs=0),
    "all": SamplingParams(
        temperature=0.8,
        truncation=Truncation(top_k=30, top_p=0.95, min_p=0.01),
        penalties=Penalties(1.2, 0.3, 0.2),
        seed=11,
        bias={5: 2.0},
        logprobs=2,
    ),
}


@pytest.mark.parametrize("host_blocks", [0, 64])
@pytest.mark.parametrize("kind", STATEFUL)
def test_sampling_state_survives_preemption(alone: Ask, kind: str, host_blocks: int) -> None:
    """[K7, sglang #35957] What penalties have counted, where the generator stands, the bias."""
    victim = ask(prompt_of(1, 50), 24, BATCH, STATEFUL[kind])
    expected = alone(victim)
    with clean_rig(Machine(kv_blocks=14, host_blocks=host_blocks), alone) as rig:
        for step in (1, 4, 11, 20):
            assert_same(overtaken(rig, victim, step), expected, f"preempted at step {step}")


@pytest.mark.parametrize("host_blocks", [0, 64])
def test_a_half_matched_stop_string_survives_preemption(alone: Ask, host_blocks: int) -> None:
    """[K7, sglang #35957] Preempted before, within and after each token of the stop string."""
    text = LETTERS.decode(alone(ask(prompt_of(1, 50), 24, BATCH, SEEDED)).ids)
    stop = [text[8:13] + "!", text[10:15]]
    victim = ask(prompt_of(1, 50), 24, BATCH, SEEDED, stop)
    with clean_rig(Machine(kv_blocks=14, host_blocks=host_blocks), alone, LETTERS) as rig:
        for step in range(7, 14):
            answer = overtaken(rig, victim, step)
            assert (answer.text, answer.finish) == (text[:10], FinishReason.STOP)
            assert len(answer.ids) == 10


def test_a_prefix_evicted_between_refusal_and_admission_is_not_believed_in(alone: Ask) -> None:
    """[K8, vllm #18957] Refused for space while its prefix was cached; then others evict it."""
    prefix = prompt_of(1, 96)
    with clean_rig(Machine(kv_blocks=16, host_blocks=0), alone) as rig:
        rig.play([(0, ask([*prefix, 3], 1))])
        again = rig.play([(0, ask([*prefix, 4], 1))])[0].usage
        assert again is not None and again.cached == 96
        arrivals = [
            (0, ask(prompt_of(2, 100), 60)),
            (1, ask([*prefix, *prompt_of(3, 60)], 8)),
            (2, ask(prompt_of(4, 60), 30, REALTIME)),
        ]
        late = len(rig.asked) + 2
        answers = rig.play(arrivals)
        assert rig.chunk_steps(late)[0] > rig.chunk_steps(late + 1)[0], "it was not refused"
        usage = answers[1].usage
        assert usage is not None and usage.cached < 96, "the prefix was never evicted"
        assert_all_same(answers, rig, alone)


@pytest.mark.parametrize("host_blocks", [0, 64])
def test_log_probabilities_have_no_holes_whenever_preempted(alone: Ask, host_blocks: int) -> None:
    """[K9, vllm #29071] Preempted in mid-prefill, and at each decode step."""
    sampling = SamplingParams(temperature=0.0, logprobs=3)
    victim = ask(prompt_of(1, 100), 12, BATCH, sampling)
    expected = alone(victim)
    assert all(info.logprobs and len(info.logprobs.top) == 3 for info in expected.tokens)
    with clean_rig(Machine(kv_blocks=14, host_blocks=host_blocks), alone) as rig:
        for step in range(1, 13):
            answer = overtaken(rig, victim, step)
            assert len(answer.tokens) == 12
            assert_same(answer, expected, f"preempted at step {step}")


@pytest.mark.parametrize("host_blocks", [0, 8])
def test_streams_that_outgrow_the_pool_together_all_finish(alone: Ask, host_blocks: int) -> None:
    """[K10, llama.cpp #23652] Four streams, each of which needs more than half of the pool."""
    arrivals = [(i, ask(prompt_of(i, 30), 120, STANDARD)) for i in range(4)]
    with clean_rig(Machine(kv_blocks=16, host_blocks=host_blocks), alone) as rig:
        answers = rig.play(arrivals)
        assert preempted(rig) > 0
        assert_all_same(answers, rig, alone)


def test_every_block_comes_back_from_1000_mixed_ends(alone: Ask) -> None:
    """[K11, llama.cpp #25566, sglang #6778] Ended by length, by stop string, by abort."""
    rng = random.Random(2)

    def start(rig: Rig) -> None:
        stop = [LETTERS.decode([rng.randrange(1, 203)]) for _ in range(12)]
        prompt = prompt_of(rng.randrange(60), rng.randrange(1, 50))
        index = rig.start(ask(prompt, 6, ServiceClass(rng.randrange(3)), SEEDED, stop))
        if not rng.randrange(3):
            rig.at(len(rig.executor.plans) + rng.randrange(1, 12), partial(rig.cancel, index))

    with clean_rig(Machine(kv_blocks=64, host_blocks=16, max_seqs=24), alone, LETTERS) as rig:
        for _ in range(4):
            begun = len(rig.executor.plans)
            for _ in range(250):
                rig.at(begun + 1 + rng.randrange(80), partial(start, rig))
            rig.begin([])
            rig.finish()
            device, host = rig.engine.snapshot().device, rig.engine.snapshot().host
            assert (device.free + device.cached, host.free) == (64, 16)
        ends = [answer.finish for answer in rig.finish()]
        reasons = (FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORT)
        assert min(ends.count(reason) for reason in reasons) > 50
        assert sum(ends.count(reason) for reason in reasons) >= 1000


@pytest.mark.parametrize("host_blocks", [0, 8])
def test_many_cross_a_block_boundary_at_once_with_nothing_free(
    alone: Ask, host_blocks: int
) -> None:
    """[K12, transformers #46587] 16 sequences of one block each, and 16 blocks."""
    arrivals = [(0, ask(prompt_of(i, 14), 20)) for i in range(16)]
    machine = Machine(kv_blocks=16, host_blocks=host_blocks, max_seqs=16, max_step_tokens=256)
    with clean_rig(machine, alone) as rig:
        answers = rig.play(arrivals)
        assert preempted(rig) >= 6, "the boundary was not crossed at once"
        gaps = [
            max(b - a for a, b in itertools.pairwise(rig.token_steps(index)))
            for index in range(1, 17)
        ]
        assert max(gaps) <= 3 * 20, "somebody stalled for longer than the others need to end"
        assert_all_same(answers, rig, alone)


@pytest.mark.parametrize("seed", range(3))
def test_trees_of_shared_prefixes_keep_their_tokens(alone: Ask, seed: int) -> None:
    """[K13, vllm #37076] With aborts and preemptions; cached blocks are evicted under pressure."""
    with clean_rig(Machine(kv_blocks=18, host_blocks=6), alone) as rig:
        started = random_load(rig, random.Random(10 + seed), 60, span=120)
        answers = rig.finish()
        assert preempted(rig) > 0
        usages = [answer.usage for answer in answers if answer.usage]
        assert sum(usage.cached for usage in usages) > 0
        for index in started:
            answer, expected = answers[index], alone(rig.asked[index])
            if answer.finish is FinishReason.ABORT:
                assert answer.tokens == expected.tokens[: len(answer.tokens)]
            else:
                assert_same(answer, expected, index)
