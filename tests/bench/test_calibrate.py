"""What bench/calibrate.py and bench/fidelity.py make of what they time."""

from itertools import count

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


def test_a_turn_is_what_lies_between_two_commits_less_the_computing() -> None:
    watch = calibrate.Watch()
    for each in (end(1.0, 0.2, 16), end(1.3, 0.2, 1), end(1.6, 0.2, 1), end(2.0, 0.1, 1, 1)):
        watch.on_step(each)
    assert list(watch.turns_s(1)) == [pytest.approx(0.1)], "both steps decode that many rows"
    assert list(watch.turns_s(2)) == []


def test_a_case_takes_its_computing_and_the_turn_before_it() -> None:
    host = calibrate.Host(step_s=0.5, row_s=0.25, door_s=0.125)
    written = calibrate.document("m", {calibrate.ROWS: [2.0, 1.0]}, host, min)
    assert written["door_s"] == 0.125
    assert [step["seconds"] for step in written["steps"]] == [1.0 + 0.5 + 8 * 0.25]


def test_a_stall_now_and_then_does_not_count() -> None:
    assert fidelity.middle([*[0.002] * 9, 0.1]) == pytest.approx(0.002)
    assert fidelity.middle([1.0, 2.0, 6.0]) == 3.0


def test_what_is_timed_on_both_sides_of_the_load_counts_alike() -> None:
    def half(factor: float) -> tuple[object, object]:
        timed = {case: [factor * 0.001 * (i + 1)] for i, case in enumerate(calibrate.CASES)}
        return timed, calibrate.Host(0.001 * factor, 0.0, 0.001 * factor)

    middle = fidelity._fitted("smollm2-135m", [half(2.0), half(2.0)])
    drifted = fidelity._fitted("smollm2-135m", [half(1.0), half(3.0)])
    assert drifted.device == middle.device
    assert drifted.device.host.door_s == pytest.approx(0.002)
