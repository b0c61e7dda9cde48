"""Which lanes are due, and how one arrangement gives way to another."""

import pytest

from headway.core.config import SchedulerConfig
from headway.core.lane_models import StepModels
from headway.core.outlook import Demand
from headway.core.plan import Sampled, StepPlan, StepResult
from headway.core.scheduler import Scheduler
from headway.core.step_model import StepLoad
from headway.core.types import Arrangement, FinishReason, Lane, ServiceClass
from headway.testing import make_capacity, make_request

UNIFIED, HALVES = Arrangement(), Arrangement(1, 1)
BOTH = (Lane.PREFILL, Lane.DECODE)


class Told:
    """A chooser that wants what it is told, and keeps what it was asked about."""

    first = HALVES
    fixed = False

    def __init__(self) -> None:
        self.wanted = HALVES
        self.asked: list[Demand] = []

    def decide(
        self, present: Arrangement, demand: Demand, models: StepModels, now: float
    ) -> Arrangement:
        self.asked.append(demand)
        return self.wanted


def machine(max_seqs: int = 8) -> tuple[Scheduler, Told]:
    told = Told()
    capacity = make_capacity(max_step_tokens=64, max_seqs=max_seqs, units=2)
    return Scheduler(capacity, SchedulerConfig(), told), told


def finish(scheduler: Scheduler, plan: StepPlan) -> None:
    """Commit a step that went well; every sampled token is 5."""
    sampled = tuple(Sampled(c.request, 5) for c in plan.chunks if c.sample)
    scheduler.commit(plan, StepResult(plan.step, sampled), {}, 0.0)


def in_flight(scheduler: Scheduler) -> tuple[StepPlan, StepPlan]:
    """A prompt on the prefill lane and an answer on the decode lane."""
    scheduler.add(make_request(1, ServiceClass.REALTIME, 16))
    finish(scheduler, scheduler.plan(Lane.PREFILL, 0.0))
    scheduler.add(make_request(2, prompt=200))
    plans = scheduler.plan(Lane.PREFILL, 0.0), scheduler.plan(Lane.DECODE, 0.0)
    assert [[c.request for c in plan.chunks] for plan in plans] == [[2], [1]]
    assert [plan.units for plan in plans] == [1, 1]
    return plans


def test_idle_lanes_are_due() -> None:
    scheduler, _ = machine()
    assert scheduler.due(0.0) == BOTH
    prefill, decode = in_flight(scheduler)
    assert scheduler.due(0.0) == ()
    finish(scheduler, decode)
    assert scheduler.due(0.0) == (Lane.DECODE,)
    finish(scheduler, prefill)
    assert scheduler.due(0.0) == BOTH


def test_decode_goes_on_until_prefill_has_ended_and_then_lanes_change() -> None:
    scheduler, told = machine()
    prefill, decode = in_flight(scheduler)
    told.wanted = UNIFIED
    finish(scheduler, decode)
    for _ in range(3):
        assert scheduler.due(0.0) == (Lane.DECODE,)
        decode = scheduler.plan(Lane.DECODE, 0.0)
        assert decode.chunks
        finish(scheduler, decode)
    decode = scheduler.plan(Lane.DECODE, 0.0)
    finish(scheduler, prefill)
    assert scheduler.due(0.0) == ()
    assert scheduler.snapshot().arrangement == HALVES
    told.wanted = HALVES  # what was decided is carried out first
    finish(scheduler, decode)
    assert scheduler.due(0.0) == (Lane.UNIFIED,)
    assert scheduler.snapshot().arrangement == UNIFIED
    plan = scheduler.plan(Lane.UNIFIED, 0.0)
    assert plan.chunks and plan.units == 0
    assert scheduler.due(0.0) == ()


def test_plans_of_two_arrangements_are_never_under_way_together() -> None:
    scheduler, _ = machine()
    in_flight(scheduler)
    with pytest.raises(RuntimeError, match="excludes"):
        scheduler.plan(Lane.UNIFIED, 0.0)


def test_the_chooser_hears_who_decodes_and_what_waits() -> None:
    scheduler, told = machine()
    prefill, decode = in_flight(scheduler)
    finish(scheduler, prefill)
    finish(scheduler, decode)
    scheduler.due(0.0)
    demand = told.asked[-1]
    realtime, standard = (demand.classes[c] for c in tuple(ServiceClass)[:2])
    assert (realtime.rows, realtime.row_context) == (1, 17)
    done = len(prefill.chunks[0].tokens)
    assert (standard.prompt_tokens, standard.prompt_context) == (200 - done, done)
    assert demand.prompts_due and not demand.one_sided


def test_prompts_are_due_while_some_wait_until_the_lane_finds_none_it_could_take() -> None:
    scheduler, told = machine(max_seqs=1)
    scheduler.add(make_request(1, ServiceClass.REALTIME, 16, max_tokens=100))
    finish(scheduler, scheduler.plan(Lane.PREFILL, 0.0))
    scheduler.due(0.0)
    assert not told.asked[-1].prompts_due
    scheduler.add(make_request(2, prompt=100))
    scheduler.due(0.0)
    assert told.asked[-1].prompts_due
    plan = scheduler.plan(Lane.PREFILL, 0.0)
    assert not plan.chunks, "the only seat is taken"
    finish(scheduler, plan)
    scheduler.due(0.0)
    assert not told.asked[-1].prompts_due


def test_who_has_no_seat_asks_for_nothing() -> None:
    scheduler, told = machine(max_seqs=1)
    for request, rank in ((1, ServiceClass.BATCH), (2, ServiceClass.REALTIME)):
        scheduler.add(make_request(request, rank, 16, max_tokens=100))
        finish(scheduler, scheduler.plan(Lane.PREFILL, 0.0))
    scheduler.due(0.0)
    assert [told.asked[-1].classes[c].rows for c in ServiceClass] == [1, 0, 0]


def test_a_lane_never_run_is_expected_to_take_what_its_units_suggest() -> None:
    models = StepModels(4)
    load = StepLoad(decode_rows=8)
    for _ in range(50):
        models.of(Lane.UNIFIED, 0).observe(load, 0.010)
    whole_s = models.of(Lane.UNIFIED, 0).predict(load)
    half_s = models.of(Lane.DECODE, 2).predict(load)
    assert whole_s == pytest.approx(0.010, rel=0.05)
    assert half_s == pytest.approx(whole_s * 2**0.7, rel=0.01)
    for _ in range(50):
        models.of(Lane.DECODE, 2).observe(load, 0.030)
    assert models.of(Lane.DECODE, 2).predict(load) == pytest.approx(0.030, rel=0.05)
    # The same lane says more than the unified one.
    assert models.of(Lane.DECODE, 1).predict(load) == pytest.approx(0.030 * 2**0.7, rel=0.05)
    models.forget(Lane.DECODE, 2)
    assert models.of(Lane.DECODE, 2).predict(load) == pytest.approx(half_s, rel=0.05)


@pytest.mark.parametrize("first", [0, 7])  # number 0 is a number, too
def test_choices_that_wait_for_the_first_end_before_it_where_it_is_in_flight(first: int) -> None:
    scheduler, _ = machine()
    for choice in range(5):
        request = make_request(first + choice, prompt=200, group=first, deadline_s=1.0)
        scheduler.add(request)
    plan = scheduler.plan(Lane.PREFILL, 0.0)
    assert [chunk.request for chunk in plan.chunks] == [first]
    assert scheduler.overdue(1.5) and not scheduler.overdue(0.5)
    beside = scheduler.plan(Lane.DECODE, 1.5)
    assert not scheduler.overdue(1.5), "what is left ends with its step"
    ended = scheduler.commit(beside, StepResult(beside.step), {}, 1.5).finished
    assert [end.request for end in ended] == [first + choice for choice in range(1, 5)]
    last = scheduler.commit(plan, StepResult(plan.step), {}, 2.0).finished
    assert [end.request for end in last] == [first]
    assert {end.reason for end in (*ended, *last)} == {FinishReason.DEADLINE}
    assert not any(count.waiting for count in scheduler.snapshot().classes.values())
