"""What comes of a plan: tokens and ends, verdicts, errors of one request, steps that fail."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headway.core.budget import Targets
from headway.core.config import SchedulerConfig
from headway.core.invariants import check
from headway.core.plan import Capacity, RequestError, Sampled, StepFailure, StepPlan, StepResult
from headway.core.request import Committed, Request, Verdict, VerdictKind
from headway.core.scheduler import Scheduler
from headway.core.types import FinishReason, Lane, RequestId, ServiceClass
from headway.errors import ConfigError
from headway.testing import make_capacity, make_request
from tests.core.helpers import assert_empty, simulate, trace

REALTIME, STANDARD, BATCH = ServiceClass
LANE = Lane.UNIFIED


def scheduler_with(*requests: Request, kv_blocks: int = 64) -> Scheduler:
    scheduler = Scheduler(make_capacity(kv_blocks=kv_blocks, host_blocks=16), SchedulerConfig())
    for request in requests:
        scheduler.add(request)
    return scheduler


def result_of(plan: StepPlan, token: int = 7) -> StepResult:
    """Every chunk that samples gets the same token."""
    return StepResult(plan.step, tuple(Sampled(c.request, token) for c in plan.chunks if c.sample))


def commit(
    scheduler: Scheduler,
    plan: StepPlan,
    result: StepResult | StepFailure,
    verdicts: Mapping[RequestId, Verdict] | None = None,
) -> Committed:
    committed = scheduler.commit(plan, result, verdicts or {}, 0.01)
    check(scheduler)
    return committed


def ends(committed: Committed) -> list[tuple[int, FinishReason, str]]:
    return [(f.request, f.reason, f.message) for f in committed.finished]


def test_an_error_of_one_request_leaves_its_neighbours_alone() -> None:
    scheduler = scheduler_with(make_request(1), make_request(2))
    plan = scheduler.plan(LANE, 0.0)
    result = result_of(plan)
    kept = tuple(s for s in result.sampled if s.request == 2)
    failed = replace(result, sampled=kept, errors=(RequestError(RequestId(1), "NaN logits"),))
    committed = commit(scheduler, plan, failed)
    assert ends(committed) == [(1, FinishReason.ERROR, "NaN logits")]
    assert [(e.request, e.token) for e in committed.emitted] == [(2, 7)]
    assert scheduler.plan(LANE, 0.1).closes == (1,)


def test_a_token_that_ends_the_answer_belongs_to_it() -> None:
    scheduler = scheduler_with(make_request(1, max_tokens=50, stop_ids=frozenset({7})))
    committed = commit(scheduler, plan := scheduler.plan(LANE, 0.0), result_of(plan))
    assert [e.token for e in committed.emitted] == [7]
    assert ends(committed) == [(1, FinishReason.STOP, "")]
    assert committed.finished[0].usage.generated == 1


@pytest.mark.parametrize(
    ("verdict", "end"),
    [
        (Verdict(VerdictKind.CONTINUE), []),
        (Verdict(VerdictKind.STOP, keep_tokens=1), [(1, FinishReason.STOP, "")]),
        (Verdict(VerdictKind.ERROR, message="no match"), [(1, FinishReason.ERROR, "no match")]),
    ],
)
def test_verdicts_of_the_engine(verdict: Verdict, end: list[tuple[int, FinishReason, str]]) -> None:
    scheduler = scheduler_with(make_request(1))
    plan = scheduler.plan(LANE, 0.0)
    committed = commit(scheduler, plan, result_of(plan), {RequestId(1): verdict})
    assert ends(committed) == end
    assert len(committed.emitted) == (verdict.kind is not VerdictKind.ERROR)


def test_an_abort_during_the_step_discards_its_token() -> None:
    scheduler = scheduler_with(make_request(1))
    plan = scheduler.plan(LANE, 0.0)
    scheduler.abort(RequestId(1))
    scheduler.abort(RequestId(1))
    scheduler.abort(RequestId(99))
    committed = commit(scheduler, plan, result_of(plan))
    assert committed.emitted == ()
    assert ends(committed) == [(1, FinishReason.ABORT, "")]


def test_who_may_not_read_the_prefix_cache_fills_none_either() -> None:
    scheduler = scheduler_with(replace(make_request(1, prompt=40), cacheable=False))
    commit(scheduler, plan := scheduler.plan(LANE, 0.0), result_of(plan))
    scheduler.abort(RequestId(1))
    scheduler.plan(LANE, 0.1)
    assert scheduler.snapshot().device.cached == 0


def test_a_failed_step_ends_its_requests_and_computes_again_what_it_copied() -> None:
    """Realtime displaces request 1, by a copy; the step fails: the copy's contents are unknown."""
    simulation = simulate(kv_blocks=8)
    simulation.add(make_request(1, BATCH, 100, 8))
    simulation.step()
    simulation.step()
    scheduler = simulation.scheduler
    scheduler.add(make_request(2, REALTIME, 60, 4, arrival_s=simulation.clock()))
    plan = scheduler.plan(LANE, simulation.clock())
    assert plan.swap_out
    assert [c.request for c in plan.chunks] == [2]
    committed = scheduler.commit(plan, StepFailure(plan.step, "lost"), {}, simulation.clock())
    check(scheduler)
    assert ends(committed) == [(2, FinishReason.ERROR, "lost")]
    assert scheduler.snapshot().host.used == 0
    plan = scheduler.plan(LANE, simulation.clock())
    assert (plan.swap_in, [c.request for c in plan.chunks]) == ((), [1])
    committed = scheduler.commit(plan, StepFailure(plan.step, "again"), {}, simulation.clock())
    assert ends(committed) == [(1, FinishReason.ERROR, "again")]
    assert_empty(simulation)


def test_kv_that_was_coming_back_when_the_step_failed_is_computed_again() -> None:
    """Request 1 comes back without computing, since request 2 decodes under a tight target."""
    config = SchedulerConfig(targets=Targets(1e-6, 1e-6), floor_share=0.0)
    simulation = simulate(kv_blocks=8, config=config)
    simulation.add(make_request(1, BATCH, 60, 8))
    simulation.step()
    simulation.step()
    simulation.add(make_request(2, REALTIME, 16, 60, arrival_s=simulation.clock()))
    simulation.add(make_request(3, REALTIME, 90, 1, arrival_s=simulation.clock()))
    simulation.run_until(lambda: trace(simulation, 3).finished is not None)
    scheduler = simulation.scheduler
    assert scheduler.snapshot().classes[BATCH].swapped == 1
    plan = scheduler.plan(LANE, simulation.clock())
    assert plan.swap_in
    assert [c.request for c in plan.chunks] == [2]
    committed = scheduler.commit(plan, StepFailure(plan.step, "lost"), {}, simulation.clock())
    check(scheduler)
    assert ends(committed) == [(2, FinishReason.ERROR, "lost")]
    assert scheduler.snapshot().host.used == 0
    assert scheduler.snapshot().classes[BATCH].waiting == 1


def test_a_step_that_fails_bringing_kv_back_ends_who_computed() -> None:
    simulation = simulate(kv_blocks=16, max_seqs=4)
    for i in (1, 2):
        simulation.add(make_request(i, BATCH, 60, 12))
    for _ in range(4):
        simulation.step()
    simulation.add(make_request(9, REALTIME, 230, 1, arrival_s=simulation.clock()))
    simulation.run_until(lambda: trace(simulation, 9).finished is not None)
    scheduler = simulation.scheduler
    plan = scheduler.plan(LANE, simulation.clock())
    assert plan.swap_in
    scheduler.abort(RequestId(1))
    scheduler.commit(plan, StepFailure(plan.step, "lost"), {}, simulation.clock())
    check(scheduler)
    assert scheduler.snapshot().host.used == 0


def test_plans_and_commits_alternate() -> None:
    scheduler = scheduler_with(make_request(1))
    plan = scheduler.plan(LANE, 0.0)
    for lane in Lane:
        with pytest.raises(RuntimeError, match="is not committed yet"):
            scheduler.plan(lane, 0.0)
    commit(scheduler, plan, result_of(plan))
    with pytest.raises(RuntimeError, match="not under way"):
        scheduler.commit(plan, result_of(plan), {}, 0.0)
    later = scheduler.plan(LANE, 0.1)
    with pytest.raises(RuntimeError, match="plan 1 is not under way"):
        scheduler.commit(plan, result_of(plan), {}, 0.0)
    assert later.step == 2


def test_an_interrupted_step_commits_no_token() -> None:
    scheduler = scheduler_with(make_request(1))
    plan = scheduler.plan(LANE, 0.0)
    assert commit(scheduler, plan, StepResult(plan.step, interrupted=True)).emitted == ()
    again = scheduler.plan(LANE, 0.1)
    assert again.chunks == plan.chunks
    assert again.opens == ()


def test_an_interrupted_step_commits_what_it_kept() -> None:
    simulation = simulate(config=SchedulerConfig(targets=Targets(itl_s=1.0)))
    for request in (make_request(1, REALTIME, 16, 100), make_request(2, BATCH, 16, 100)):
        simulation.add(request)
    for _ in range(3):  # both prompts, and a row each
        simulation.step()
    scheduler = simulation.scheduler
    plan = scheduler.plan(LANE, simulation.clock())
    assert [c.request for c in plan.chunks] == [1, 2] and plan.kept == 1
    end = result_of(plan)
    kept = replace(end, sampled=end.sampled[:1], interrupted=True)
    assert [e.request for e in commit(scheduler, plan, kept).emitted] == [1]
    later = {c.request: c.start for c in scheduler.plan(LANE, 0.1).chunks}
    assert later[RequestId(1)] == plan.chunks[0].start + len(plan.chunks[0].tokens)
    assert later.get(RequestId(2), plan.chunks[1].start) == plan.chunks[1].start


def test_policies_that_ignore_classes_keep_all_chunks() -> None:
    scheduler = Scheduler(make_capacity(), SchedulerConfig(policy="fcfs"))
    for request in (make_request(1, REALTIME), make_request(2, BATCH)):
        scheduler.add(request)
    plan = scheduler.plan(LANE, 0.0)
    assert plan.kept == len(plan.chunks) == 2


def test_without_records_none_is_kept() -> None:
    scheduler = Scheduler(make_capacity(), SchedulerConfig(records=0))
    scheduler.add(make_request(1))
    scheduler.plan(LANE, 0.0)
    assert scheduler.records.latest() is None


def test_further_choices_of_a_group_count_as_waiting_until_the_first_has_its_prompt() -> None:
    scheduler = scheduler_with(*(make_request(i, STANDARD, 20, group=1) for i in (1, 2, 3)))
    plan = scheduler.plan(LANE, 0.0)
    assert [c.request for c in plan.chunks] == [1]
    counts = scheduler.snapshot().classes[STANDARD]
    assert (counts.running, counts.waiting) == (1, 2)
    commit(scheduler, plan, result_of(plan))
    assert [c.request for c in scheduler.plan(LANE, 0.1).chunks] == [1, 2, 3]


def test_a_choice_may_end_before_the_first_has_its_prompt() -> None:
    """Which takes two steps of 256 tokens."""
    scheduler = scheduler_with(*(make_request(i, STANDARD, 300, group=1) for i in (1, 2, 3)))
    plan = scheduler.plan(LANE, 0.0)
    scheduler.abort(RequestId(2))
    committed = commit(scheduler, plan, result_of(plan))
    assert ends(committed) == [(2, FinishReason.ABORT, "")]
    commit(scheduler, plan := scheduler.plan(LANE, 0.1), result_of(plan))
    assert [c.request for c in scheduler.plan(LANE, 0.1).chunks] == [1, 3]


def test_an_end_that_falls_due_on_a_step_in_flight_comes_with_its_commit() -> None:
    """Another lane is planned meanwhile."""
    scheduler = scheduler_with(make_request(1, STANDARD, 20), make_request(2, STANDARD, 20))
    plan = scheduler.plan(Lane.PREFILL, 0.0)
    scheduler.abort(RequestId(1))
    other = scheduler.plan(Lane.DECODE, 0.0)
    assert commit(scheduler, other, StepResult(other.step)).finished == ()
    committed = commit(scheduler, plan, result_of(plan))
    assert ends(committed) == [(1, FinishReason.ABORT, "")]


def test_an_id_is_taken_while_its_request_lives() -> None:
    scheduler = scheduler_with(make_request(1, max_tokens=1))
    with pytest.raises(ValueError, match="request 1 is already known"):
        scheduler.add(make_request(1))
    commit(scheduler, plan := scheduler.plan(LANE, 0.0), result_of(plan))
    scheduler.add(make_request(1))


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (make_capacity(kv_blocks=0), "at least one KV block"),
        (make_capacity(block_size=0), "one token a block"),
        (make_capacity(max_seqs=0), "one seat"),
        (make_capacity(max_seqs=8, block_size=16, max_step_tokens=23), "plus a block: 24"),
    ],
)
def test_capacities_that_can_not_work_are_refused(capacity: Capacity, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scheduler(capacity, SchedulerConfig())
