"""What bench/calibrate.py and bench/fidelity.py make of what they time."""

from itertools import count
from typing import Any

import pytest

from headway.core.plan import Chunk, StepPlan, StepResult, StepTiming
from headway.core.record import StepRecord
from headway.core.types import BlockId, Lane, RequestId
from headway.engine.types import StepEnd
from tests.bench.scripts import script

calibrate, fidelity = script("calibrate.py"), script("fidelity.py")
numbers = count()


def end(when_s: float, compute_s: float, *tokens: int) -> StepEnd:
    """A step of chunks of so many tokens."""
    step = next(numbers)
    chunks = tuple(
        Chunk(RequestId(i), range(n), 0, [BlockId(0)], 1, True) for i, n in enumerate(tokens)
    )
    record = StepRecord(step, Lane.UNIFIED, 1.0, 0.1)
    outcome = StepResult(step, timing=StepTiming(0.0, 0.0, compute_s))
    return StepEnd(StepPlan(step, Lane.UNIFIED, chunks=chunks), record, outcome, {}, when_s)


def test_a_step_in_an_engine_lasts_from_commit_to_commit() -> None:
    watch = calibrate.Watch()
    for each in (end(1.0, 0.2, 16), end(1.3, 0.2, 1), end(1.6, 0.2, 1), end(2.0, 0.1, 1, 1)):
        watch.on_step(each)
    assert list(watch.decoded(1)) == [pytest.approx((0.3, 0.2))], "both decode that many rows"
    assert list(watch.decoded(2)) == []


def test_a_case_takes_its_computing_and_the_turn_before_it_or_what_a_whole_step_took() -> None:
    host = calibrate.Host(step_s=0.5, row_s=0.25, door_s=0.125)
    computed, whole = {calibrate.CASES[0]: [2.0, 1.0]}, {calibrate.LONE: [4.0, 3.0]}
    written = calibrate.document("m", computed, whole, host, min)
    assert written["door_s"] == 0.125
    assert [step["seconds"] for step in written["steps"]] == [3.0, 1.0 + 0.5 + 16 * 0.25]


def test_a_stall_now_and_then_does_not_count() -> None:
    assert fidelity.middle([*[0.002] * 9, 0.1]) == pytest.approx(0.002)
    assert fidelity.middle([1.0, 2.0, 6.0]) == 3.0


def test_what_is_timed_on_both_sides_of_the_load_counts_alike() -> None:
    def half(factor: float) -> Any:
        computed = {case: [factor * 0.001 * (i + 1)] for i, case in enumerate(calibrate.CASES)}
        whole = {case: [factor * 0.001 * case.rows] for case in calibrate.ENGINE_CASES}
        return fidelity.Half(computed, whole, calibrate.Host(0.001 * factor, 0.0, 0.001 * factor))

    middle = fidelity._fitted("smollm2-135m", [half(2.0), half(2.0)])
    drifted = fidelity._fitted("smollm2-135m", [half(1.0), half(3.0)])
    assert drifted.device == middle.device
    names = fidelity._cases(half(1.0))
    assert (len(names), names[0]) == (len(drifted.errors), calibrate.LONE.name)
    assert drifted.device.host.door_s == pytest.approx(0.002)
