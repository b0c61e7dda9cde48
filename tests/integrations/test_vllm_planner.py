"""The pass before vLLM's steps: properties over random steps, then the rules one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.types import ServiceClass
from headway_vllm.members import Candidate, Decision, Picture
from tests.integrations.residents import CountedPool, candidate, decide, picture, resident

REALTIME, STANDARD, BATCH = ServiceClass
CLASSES = st.sampled_from(list(ServiceClass))


@st.composite
def steps(draw: st.DrawFn) -> Picture:
    """A step of up to eight residents, some with shared blocks, and as many that wait."""
    shared = list(range(100, 100 + draw(st.integers(0, 3))))
    residents, taken = [], 0
    for number in range(draw(st.integers(0, 8))):
        own = draw(st.integers(0, 5))
        blocks = [*(shared if draw(st.booleans()) else []), *range(taken, taken + own)]
        taken += own
        entry = resident(
            number,
            draw(CLASSES),
            blocks,
            growth=draw(st.integers(0, 2)),
            tokens=draw(st.sampled_from([1, 1, 40])),
            freeable=draw(st.sampled_from([True, True, True, False])),
        )
        entry.member.promoted = draw(st.sampled_from([False, False, False, True]))
        entry.member.protected_until = draw(st.sampled_from([0, 0, 999]))
        residents.append(entry)
    waiting = [
        candidate(
            number,
            draw(CLASSES),
            need=draw(st.integers(1, 8)),
            tokens=draw(st.sampled_from([1, 20, 60])),
            arrival_s=draw(st.sampled_from([0.0, 9.9])),
        )
        for number in range(10, 10 + draw(st.integers(0, 8)))
    ]
    return picture(
        residents,
        waiting,
        free=draw(st.integers(0, 8)),
        seats=draw(st.integers(0, 3)),
        step_tokens=64,
        now_s=10.0,
    )


def gained(step: Picture, decision: Decision) -> int:
    """Blocks that the victims really free: those nobody else holds."""
    before, victims = CountedPool(step.residents), CountedPool(decision.victims)
    blocks = {block for victim in decision.victims for block in victim.blocks}
    return sum(1 for b in blocks if before.references(b) == victims.references(b))


def spent(step: Picture, decision: Decision) -> int:
    """Blocks that growth and admission take."""
    idle = {*decision.victims, *decision.paused}
    grown = sum(r.growth_blocks for r in step.residents if r not in idle)
    return grown + sum(c.need_blocks for c in decision.entering)


@settings(max_examples=150, deadline=None)
@given(steps())
def test_what_is_decided_fits(step: Picture) -> None:
    """The invariant that leaves vLLM's own loop nothing to preempt. Prompts that pause only for
    their tokens had been given their blocks, so they are not counted against the plan."""
    decision = decide(step)
    assert spent(step, decision) <= step.free_blocks + gained(step, decision)
    assert len(decision.entering) <= step.seats + len(decision.victims) or not decision.entering
    assert not {*decision.victims} & {*decision.paused}
    assert len(set(decision.entering)) == len(decision.entering)


@settings(max_examples=150, deadline=None)
@given(steps())
def test_nobody_is_displaced_for_nothing_or_against_the_rules(step: Picture) -> None:
    decision = decide(step)
    if decision.victims and not any(r.growth_blocks for r in step.residents):
        top = min(c.member.service_class for c in decision.entering)
        assert all(v.rank > top for v in decision.victims)
    assert all(v.freeable for v in decision.victims)
    senior = min(step.residents, key=lambda r: r.member.seniority, default=None)
    others = [r for r in step.residents if r not in decision.victims and r is not senior]
    if any(r not in decision.paused for r in others):
        assert not any(v.member.promoted for v in decision.victims), "only to keep anything going"


@settings(max_examples=150, deadline=None)
@given(steps())
def test_the_most_senior_is_never_a_victim_and_goes_on(step: Picture) -> None:
    decision = decide(step)
    if not step.residents:
        return
    senior = min(step.residents, key=lambda r: r.member.seniority)
    assert senior not in decision.victims or decision.entering
    stays = [r for r in step.residents if r not in decision.victims]
    may_give = [r for r in stays if r.freeable and r is not senior]
    if stays and all(r in decision.paused for r in stays) and not decision.entering:
        assert not may_give


@settings(max_examples=100, deadline=None)
@given(steps())
def test_the_same_step_has_the_same_decision(step: Picture) -> None:
    first, second = decide(step), decide(step)
    assert first == second


def test_realtime_takes_a_seat_from_batch_in_the_step_it_arrives() -> None:
    batch = [resident(n, BATCH, [n]) for n in range(4)]
    arrival = candidate(9, REALTIME, need=1)
    decision = decide(picture(batch, [arrival], free=10, seats=0))
    assert decision.entering == (arrival,)
    assert [v.number for v in decision.victims] == [3], "of equals the latest"


def test_and_blocks_from_the_cheapest_for_what_is_missing() -> None:
    batch = [resident(1, BATCH, range(8)), resident(2, BATCH, range(8, 12))]
    arrival = candidate(9, REALTIME, need=4)
    cheap_large = decide(picture(batch, [arrival], free=0, seats=2), {1: 1.0, 2: 3.0})
    assert [v.number for v in cheap_large.victims] == [1]
    cheap_small = decide(picture(batch, [arrival], free=0, seats=2), {1: 3.0, 2: 1.0})
    assert [v.number for v in cheap_small.victims] == [2]


def test_a_seat_comes_with_the_blocks() -> None:
    batch = [resident(n, BATCH, [10 * n, 10 * n + 1]) for n in range(3)]
    decision = decide(picture(batch, [candidate(9, REALTIME, need=2)], free=0, seats=0))
    assert len(decision.victims) == 1


def test_blocks_that_others_hold_too_gain_nothing() -> None:
    sharing = [resident(1, BATCH, [1, 2, 3]), resident(2, BATCH, [1, 2, 3])]
    alone = resident(3, BATCH, [4])
    decision = decide(picture([*sharing, alone], [candidate(9, REALTIME, 1)], free=0, seats=9))
    assert [v.number for v in decision.victims] == [3]


@pytest.mark.parametrize("rank", [STANDARD, BATCH])
def test_nobody_displaces_their_own_class(rank: ServiceClass) -> None:
    running = [resident(1, rank, range(8))]
    decision = decide(picture(running, [candidate(9, rank, need=4)], free=0, seats=0))
    assert decision == Decision()


def test_standard_takes_from_batch_and_not_from_realtime() -> None:
    running = [resident(1, REALTIME, range(8)), resident(2, BATCH, range(8, 16))]
    decision = decide(picture(running, [candidate(9, STANDARD, need=4)], free=0, seats=0))
    assert [v.number for v in decision.victims] == [2]


def test_nobody_is_displaced_where_it_would_not_do() -> None:
    running = [resident(1, REALTIME, range(8)), resident(2, BATCH, [8, 9])]
    decision = decide(picture(running, [candidate(9, REALTIME, need=4)], free=0, seats=5))
    assert decision.victims == ()


def test_a_promoted_request_is_not_displaced() -> None:
    batch = [resident(1, BATCH, range(8)), resident(2, BATCH, range(8, 16))]
    batch[1].member.promoted = True
    decision = decide(picture(batch, [candidate(9, REALTIME, need=4)], free=0, seats=5))
    assert [v.number for v in decision.victims] == [1]


def test_a_promoted_request_has_the_first_turn_at_tokens_and_no_other_rank() -> None:
    running = [resident(1, BATCH, []), resident(2, BATCH, []), resident(3, REALTIME, [])]
    running[1].member.promoted = True
    assert [r.number for r in sorted(running, key=lambda r: r.member.turn)] == [2, 3, 1]
    assert [r.number for r in sorted(running, key=lambda r: r.member.seniority)] == [3, 2, 1]


def test_what_comes_free_goes_to_a_promoted_request_first() -> None:
    waiting = [candidate(1, BATCH, need=4), candidate(2, STANDARD, need=2)]
    waiting[0].member.promoted = True
    short = decide(picture([], waiting, free=3, seats=4))
    assert short.entering == (), "blocks accumulate for the promoted one"
    enough = decide(picture([], waiting, free=6, seats=4))
    assert enough.entering == (waiting[0], waiting[1])


def test_realtime_finds_its_blocks_beside_a_promoted_request() -> None:
    batch = [resident(1, BATCH, range(8))]
    waiting = [candidate(2, BATCH, need=4), candidate(3, REALTIME, need=3)]
    waiting[0].member.promoted = True
    decision = decide(picture(batch, waiting, free=2, seats=0))
    assert decision.entering == (waiting[1],)
    assert [v.number for v in decision.victims] == [1]


def test_one_whose_blocks_a_step_in_flight_may_write_is_left_alone() -> None:
    batch = [resident(1, BATCH, range(8), freeable=False), resident(2, BATCH, range(8, 12))]
    decision = decide(picture(batch, [candidate(9, REALTIME, need=2)], free=0, seats=5))
    assert [v.number for v in decision.victims] == [2]


def test_growth_takes_lower_classes_then_juniors_then_pauses() -> None:
    running = [
        resident(1, STANDARD, [1], growth=1),
        resident(2, STANDARD, [2]),
        resident(3, BATCH, [3]),
    ]
    first = decide(picture(running, [], free=0, seats=5))
    assert [v.number for v in first.victims] == [3]
    second = decide(picture(running[:2], [], free=0, seats=5))
    assert [v.number for v in second.victims] == [2]
    junior = [resident(1, STANDARD, [1]), resident(2, STANDARD, [2], growth=1)]
    third = decide(picture(junior, [], free=0, seats=5))
    assert third.victims == ()
    assert [p.number for p in third.paused] == [2]


def test_one_that_has_just_come_back_is_not_taken_by_its_own_class() -> None:
    running = [resident(1, BATCH, [1], growth=1), resident(2, BATCH, [2]), resident(3, BATCH, [3])]
    running[2].member.protected_until = 17
    decision = decide(picture(running, [], free=0, seats=5))
    assert [v.number for v in decision.victims] == [2]


def test_where_all_would_pause_the_most_senior_goes_on_at_any_cost() -> None:
    running = [resident(n, BATCH, [n], growth=1) for n in (1, 2, 3)]
    for entry in running:
        entry.member.protected_until = 99
    decision = decide(picture(running, [], free=0, seats=5))
    assert [v.number for v in decision.victims] == [3]
    assert [p.number for p in decision.paused] == [2]


def test_others_pass_a_head_that_does_not_fit_until_it_has_waited() -> None:
    line = [
        candidate(1, STANDARD, need=9),
        candidate(2, STANDARD, need=3),
        candidate(3, STANDARD, need=2),
    ]
    young = decide(picture([], line, free=5, seats=5, now_s=0.9))
    assert young.entering == (line[1], line[2])
    old = decide(picture([], line, free=5, seats=5, now_s=1.0))
    assert old.entering == ()


def test_as_many_pass_as_fit() -> None:
    line = [candidate(1, BATCH, need=9), *(candidate(n, BATCH, need=5 - n) for n in (2, 3, 4))]
    decision = decide(picture([], line, free=3, seats=5))
    assert {c.need_blocks for c in decision.entering} == {1, 2}


def test_prompts_of_lower_classes_stand_back_when_the_step_is_full() -> None:
    batch = [
        resident(1, BATCH, [1], tokens=200),
        resident(2, BATCH, [2], tokens=56),
        resident(3, BATCH, [3], tokens=1),
    ]
    arrival = candidate(9, REALTIME, need=1, tokens=64)
    decision = decide(picture(batch, [arrival], free=9, seats=5))
    assert decision.entering == (arrival,)
    assert [p.number for p in decision.paused] == [2, 1], "least senior first, decode rows never"


def test_nobody_is_displaced_for_a_step_that_has_no_tokens_left() -> None:
    running = [resident(1, REALTIME, [1], tokens=256), resident(2, BATCH, range(2, 9))]
    decision = decide(picture(running, [candidate(9, REALTIME, need=4)], free=0, seats=0))
    assert decision.victims == ()


def test_a_quiet_step_decides_nothing() -> None:
    running = [resident(n, BATCH, [n], growth=1) for n in range(3)]
    assert decide(picture(running, [], free=3, seats=0)) == Decision()


def entering_numbers(decision: Decision) -> list[int]:
    return [c.member.number for c in decision.entering]


def test_classes_enter_in_order() -> None:
    waiting: list[Candidate] = [
        candidate(n, c, need=1) for n, c in ((1, BATCH), (2, STANDARD), (3, REALTIME))
    ]
    assert entering_numbers(decide(picture([], waiting, free=9, seats=9))) == [3, 2, 1]
