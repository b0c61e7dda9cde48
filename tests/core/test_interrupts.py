"""When a realtime arrival takes the lower classes out of a step."""

from math import inf

from headway.core.interrupts import Interrupts, given_up_tokens
from headway.core.plan import Chunk, StepPlan
from headway.core.types import BlockId, Lane, RequestId


def plan_of(realtime: int, lower: int, lane: Lane = Lane.UNIFIED) -> StepPlan:
    """A step with so many tokens of each."""
    chunks = [
        Chunk(RequestId(i), [7] * count, 0, [BlockId(0)], 1, False)
        for i, count in enumerate((realtime, lower))
        if count
    ]
    return StepPlan(0, lane, chunks=tuple(chunks), kept=int(realtime > 0))


def test_what_an_interrupt_takes_out() -> None:
    assert given_up_tokens(plan_of(3, 5)) == 5
    assert given_up_tokens(plan_of(3, 0)) == 0
    assert given_up_tokens(plan_of(0, 5)) == 5


def test_it_pays_where_the_rest_ends_early_enough() -> None:
    interrupts = Interrupts(0.02)
    assert interrupts.pays(plan_of(0, 10), left_s=0.02)
    assert not interrupts.pays(plan_of(0, 10), left_s=0.019)
    assert interrupts.pays(plan_of(5, 5), left_s=0.04)
    assert not interrupts.pays(plan_of(5, 5), left_s=0.039)
    assert not interrupts.pays(plan_of(5, 0), left_s=9.0)
    assert not interrupts.pays(StepPlan(0, Lane.UNIFIED), left_s=9.0)
    assert not interrupts.pays(plan_of(0, 10, Lane.DECODE), left_s=9.0)
    assert interrupts.pays(plan_of(0, 10, Lane.PREFILL), left_s=9.0)
    assert not Interrupts(inf).pays(plan_of(0, 10), left_s=9.0)


def test_a_step_of_the_lower_classes_alone_settles_what_they_lost() -> None:
    interrupts = Interrupts(0.0)
    interrupts.note(plan_of(0, 100), interrupted=True)
    assert not interrupts.pays(plan_of(0, 10), left_s=9.0)
    interrupts.note(plan_of(5, 0), interrupted=False)
    interrupts.note(plan_of(0, 3, Lane.DECODE), interrupted=False)
    interrupts.note(StepPlan(0, Lane.UNIFIED), interrupted=False)
    assert not interrupts.pays(plan_of(0, 10), left_s=9.0)
    interrupts.note(plan_of(0, 3), interrupted=False)
    assert interrupts.pays(plan_of(0, 10), left_s=9.0)


def test_beside_realtime_they_get_as_many_tokens_as_they_lost() -> None:
    interrupts = Interrupts(0.0)
    interrupts.note(plan_of(2, 10), interrupted=True)
    interrupts.note(plan_of(2, 6), interrupted=False)
    assert not interrupts.pays(plan_of(2, 6), left_s=9.0)
    interrupts.note(plan_of(2, 4), interrupted=False)
    assert interrupts.pays(plan_of(2, 6), left_s=9.0)
