"""What a step may hold: targets, room for rows and chunks, floor credit; and settings' ranges."""

from math import inf

import pytest

from headway.core.budget import FloorCredit, StepBudget, Targets
from headway.core.config import Reserve, SchedulerConfig
from headway.core.step_model import StepLoad, StepModel
from headway.errors import ConfigError

LIMIT_S = 0.0065


def test_targets_not_given_follow_the_realtime_only_step() -> None:
    assert Targets().itl(0.02) == pytest.approx(0.03)
    assert Targets(itl_s=0.05).itl(0.02) == 0.05
    assert Targets().max_step(0.001) == pytest.approx(0.05), "200 ms at least"
    assert Targets().max_step(0.1) == pytest.approx(0.2), "eight steps if that is longer"
    assert Targets(ttft_s=1.0).max_step(0.1) == 0.25


def test_a_budget_holds_what_fits_into_tokens_and_time() -> None:
    """The prior: 2 ms a step and 1 ms a token."""
    budget = StepBudget(StepModel(), max_tokens=8, limit_s=LIMIT_S)
    assert budget.chunk_room(0, LIMIT_S) == 4
    budget.take(2, 0, decoding=False)
    budget.take(1, 100, decoding=True)
    assert budget.load == StepLoad(2, 2, 1, 100)
    assert budget.tokens_left == 5
    assert budget.rows_room([0, 0]) == 1
    budget.take_rows([0])
    assert budget.load == StepLoad(2, 2, 2, 100)
    assert budget.rows_room([0, 0]) == 0, "the time is up"
    assert budget.chunk_room(0, LIMIT_S) == 0


def test_a_budget_without_tokens_takes_nothing_however_long_the_step() -> None:
    budget = StepBudget(StepModel(), max_tokens=2, limit_s=float("inf"))
    assert budget.chunk_room(0, inf) == budget.rows_room([5] * 4) == 2
    budget.take(2, 0, decoding=False)
    assert budget.rows_room([0, 0]) == 0
    assert budget.chunk_room(0, inf) == 0


def test_a_chunk_leaves_time_and_tokens_for_what_is_to_come_beside_it() -> None:
    """The prior: 2 ms a step and 1 ms a token, in whatever kind of chunk."""
    budget = StepBudget(StepModel(), max_tokens=8, limit_s=LIMIT_S)
    assert budget.chunk_room(0, LIMIT_S, StepLoad(1, 0, 1, 0)) == 2
    assert budget.chunk_room(0, inf, StepLoad(1, 0, 1, 0)) == 6
    assert budget.chunk_room(0, inf, StepLoad(4, 0, 5, 0)) == 0


def test_prompts_of_realtime_may_have_five_sixths_of_a_step_up_to_its_longest() -> None:
    assert Targets().prompt_step(0.001, 0.002) == pytest.approx(0.012)
    assert Targets().prompt_step(0.001, 0.02) == pytest.approx(0.05)


def test_floor_credit_is_a_share_of_what_was_computed_less_what_was_served() -> None:
    credit = FloorCredit(share=0.25, most_tokens=10)
    assert (credit.tokens(0), credit.tokens(4)) == (0, 1)
    credit.settle(20, 0)
    assert (credit.tokens(0), credit.tokens(3), credit.tokens(4)) == (5, 5, 6)
    credit.settle(4, 4)
    assert credit.tokens(0) == 2
    credit.settle(4, 40)
    assert credit.tokens(0) == 0, "nothing is owed"
    for _ in range(10):
        credit.settle(20, 0)
    assert credit.tokens(0) == 10, "no more is kept than that"


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_shares_outside_their_range_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="reserve share"):
        Reserve(share=share)
    with pytest.raises(ConfigError, match="floor share"):
        SchedulerConfig(floor_share=share)
    Reserve(share=0.99, seats=0, guard_s=0.0, preemptions=1)


@pytest.mark.parametrize(
    ("seats", "guard_s", "preemptions"), [(-1, 60.0, 3), (1, -1.0, 3), (1, 60.0, 0)]
)
def test_the_reserves_bounds(seats: int, guard_s: float, preemptions: int) -> None:
    with pytest.raises(ConfigError, match="at least"):
        Reserve(seats=seats, guard_s=guard_s, preemptions=preemptions)
