"""The simulated executor: virtual time, two lanes that share memory, interrupts."""

from collections.abc import Mapping

import pytest

from headway.core.plan import Capacity, Chunk, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ExecutorError
from headway.executors.simulated import (
    ANSWER_TOKEN,
    END_TOKEN,
    SimulatedExecutor,
    StepCost,
    VirtualClock,
)
from headway.testing import make_capacity

BANDWIDTH = 100.0


class FixedCosts:
    """What each step costs, by its number."""

    bytes_per_s = BANDWIDTH

    def __init__(self, costs: Mapping[int, StepCost]) -> None:
        self._costs = costs

    def cost(self, plan: StepPlan) -> StepCost:
        return self._costs[plan.step]


class CostOfChunks:
    """A second of copying out, then four parts of a second each for every chunk."""

    bytes_per_s = BANDWIDTH

    def cost(self, plan: StepPlan) -> StepCost:
        return StepCost(1.0, 0.0, 4.0 * len(plan.chunks), 0.0, 0.0, parts=4)


def cost(seconds: float, memory: float = 0.0) -> StepCost:
    """A step that, while bound by memory, asks for all of the bandwidth."""
    return StepCost(0.0, 0.0, seconds, memory, memory * BANDWIDTH)


def executor_of(
    costs: Mapping[int, StepCost], lengths: Mapping[RequestId, int] | None = None
) -> tuple[SimulatedExecutor, VirtualClock]:
    capacity: Capacity = make_capacity()
    clock = VirtualClock()
    return SimulatedExecutor(capacity, FixedCosts(costs), clock, lengths or {}), clock


def chunk(request: int, start: int, tokens: int, sample: bool) -> Chunk:
    return Chunk(RequestId(request), [2] * tokens, start, [BlockId(0)], 1, sample)


def test_a_step_takes_what_it_costs() -> None:
    executor, clock = executor_of({1: StepCost(0.5, 0.25, 2.0, 0.0, 0.0)})
    step = executor.submit(StepPlan(1, Lane.UNIFIED), {})
    assert not step.done()
    result = step.result()
    assert clock() == pytest.approx(2.75)
    assert result.timing.copy_out_s == 0.5
    assert result.timing.copy_in_s == 0.25
    assert result.timing.compute_s == pytest.approx(2.0)
    assert step.done()
    assert step.result() is result


def test_an_answer_ends_where_it_was_said_to() -> None:
    lengths = {RequestId(1): 12, RequestId(2): 30}
    executor, _ = executor_of({1: cost(1)}, lengths)
    chunks = (chunk(1, 10, 1, True), chunk(2, 0, 20, True), chunk(3, 0, 8, False))
    sampled = executor.submit(StepPlan(1, Lane.UNIFIED, chunks=chunks), {}).result().sampled
    assert [(s.request, s.token) for s in sampled] == [(1, END_TOKEN), (2, ANSWER_TOKEN)]


def test_a_result_that_is_not_waited_for_long_enough() -> None:
    executor, clock = executor_of({1: cost(2)})
    step = executor.submit(StepPlan(1, Lane.UNIFIED), {})
    with pytest.raises(TimeoutError):
        step.result(timeout_s=0.5)
    assert clock() == pytest.approx(0.5)
    step.result(timeout_s=5)
    assert clock() == pytest.approx(2)


def test_one_step_a_lane() -> None:
    executor, _ = executor_of({1: cost(1), 2: cost(1)})
    executor.submit(StepPlan(1, Lane.DECODE), {})
    with pytest.raises(ExecutorError, match="decode"):
        executor.submit(StepPlan(2, Lane.DECODE), {})


def test_lanes_bound_by_arithmetic_do_not_slow_each_other() -> None:
    executor, clock = executor_of({1: cost(2), 2: cost(3)})
    prefill = executor.submit(StepPlan(1, Lane.PREFILL), {})
    decode = executor.submit(StepPlan(2, Lane.DECODE), {})
    prefill.result()
    assert clock() == pytest.approx(2)
    decode.result()
    assert clock() == pytest.approx(3)


def test_lanes_that_both_want_all_bandwidth_take_twice_as_long() -> None:
    """Both wholly bound by memory: each at half speed until the shorter one ends at 2, then the
    other does its second half alone in 1 s."""
    executor, clock = executor_of({1: cost(1, memory=1), 2: cost(2, memory=2)})
    prefill = executor.submit(StepPlan(1, Lane.PREFILL), {})
    decode = executor.submit(StepPlan(2, Lane.DECODE), {})
    assert prefill.end_s == pytest.approx(2)
    assert decode.end_s == pytest.approx(3)
    decode.result()
    assert clock() == pytest.approx(3)
    assert prefill.done()
    assert prefill.result().timing.compute_s == pytest.approx(2)


def test_a_step_half_bound_by_memory_is_slowed_by_half_of_the_crowding() -> None:
    """Wanted: 50 + 100 of 100 bytes/s, so memory time stretches by 1.5: 2 s become 1 + 1.5."""
    costs = {
        1: StepCost(0, 0, 2.0, 1.0, 100.0),
        2: StepCost(0, 0, 10.0, 10.0, 1000.0),
    }
    executor, _ = executor_of(costs)
    half = executor.submit(StepPlan(1, Lane.PREFILL), {})
    whole = executor.submit(StepPlan(2, Lane.DECODE), {})
    assert half.end_s == pytest.approx(2.5)
    # By 2.5 s the other has done 2.5 / 15 of its work; the rest alone.
    assert whole.end_s == pytest.approx(2.5 + (1 - 2.5 / 15) * 10)


def test_an_interrupted_step_ends_at_a_layer_boundary() -> None:
    costs = {1: StepCost(1.0, 0.0, 4.0, 0.0, 0.0, parts=4)}
    executor, clock = executor_of(costs, {RequestId(1): 99})
    plan = StepPlan(1, Lane.UNIFIED, chunks=(chunk(1, 0, 8, True),))
    step = executor.submit(plan, {})
    clock.jump_to(2.5)
    step.interrupt()
    result = step.result()
    assert clock() == pytest.approx(3.0)
    assert result.interrupted
    assert result.sampled == ()


def test_an_interrupted_step_goes_on_with_what_it_keeps() -> None:
    clock = VirtualClock()
    lengths = {RequestId(i): 99 for i in range(4)}
    executor = SimulatedExecutor(make_capacity(), CostOfChunks(), clock, lengths)
    chunks = tuple(chunk(i, 0, 8, True) for i in range(4))
    step = executor.submit(StepPlan(1, Lane.UNIFIED, chunks=chunks, kept=1), {})
    clock.jump_to(2.5)  # in the first of four parts of 4 s
    step.interrupt()
    result = step.result()
    assert clock() == pytest.approx(1.0 + 4.0 + 3 * 1.0)
    assert result.interrupted
    assert [s.request for s in result.sampled] == [0]


def test_interrupting_the_last_layer_or_a_device_that_can_not_changes_nothing() -> None:
    executor, clock = executor_of(
        {1: StepCost(0, 0, 4.0, 0, 0, parts=4), 2: cost(4)}, {RequestId(1): 99}
    )
    chunks = (chunk(1, 0, 8, True),)
    step = executor.submit(StepPlan(1, Lane.UNIFIED, chunks=chunks), {})
    clock.jump_to(3.5)
    step.interrupt()
    assert not step.result().interrupted
    assert clock() == pytest.approx(4)
    other = executor.submit(StepPlan(2, Lane.UNIFIED, chunks=chunks), {})
    other.interrupt()
    assert not other.result().interrupted
    assert clock() == pytest.approx(8)


def test_a_clock_does_not_go_back() -> None:
    clock = VirtualClock()
    clock.jump_to(3)
    clock.jump_to(1)
    assert clock() == 3
