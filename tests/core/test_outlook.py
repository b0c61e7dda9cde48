"""What an arrangement is worth: seconds of work a second, by class."""

import pytest

from headway.core.budget import Targets
from headway.core.controller import Controller, LaneMode
from headway.core.lane_models import StepModels
from headway.core.outlook import ClassDemand, Demand, Outlook
from headway.core.step_model import StepLoad
from headway.core.types import Arrangement, Lane, ServiceClass
from headway.testing import make_capacity

REALTIME, STANDARD, BATCH = ServiceClass

UNIFIED = Arrangement()


def outlook(demand: dict[ServiceClass, ClassDemand], targets: Targets) -> Outlook:
    """On the prior of the step models: 2 ms a step, 1 ms a row or prompt token."""
    classes = {rank: demand.get(rank, ClassDemand()) for rank in ServiceClass}
    capacity = make_capacity(max_step_tokens=64, units=2)
    return Outlook(Demand(classes, prompts_due=True), StepModels(2), targets, capacity)


def test_lower_rows_fill_a_step_up_to_the_target() -> None:
    """Eight realtime rows take 10 ms; three rows more are within the target of 13 ms. A row counts
    with an eighth of 10 ms, and realtime's come soon enough at the target."""
    demand = {REALTIME: ClassDemand(rows=8), STANDARD: ClassDemand(rows=20)}
    values = outlook(demand, Targets(0.0131, 2.0)).of(UNIFIED).values
    assert values[REALTIME] == pytest.approx(8 * 0.00125 / 0.0131)
    assert values[STANDARD] == pytest.approx(3 * 0.00125 / 0.013)
    assert values[BATCH] == 0.0


def test_lower_rows_are_none_where_realtime_alone_misses_the_target() -> None:
    """None, not fewer than none: a step is not shortened by what it does not hold."""
    demand = {REALTIME: ClassDemand(rows=8), STANDARD: ClassDemand(rows=20)}
    values = outlook(demand, Targets(0.005, 2.0)).of(UNIFIED).values
    assert values[STANDARD] == 0.0
    assert values[REALTIME] == pytest.approx(8 * 0.00125 / 0.010)


def test_rows_that_cost_nothing_all_fit() -> None:
    """Steps that were shorter the more rows they had: noise, which no weight below 0 explains."""
    models = StepModels(2)
    model = models.of(Lane.UNIFIED, 0)
    for i in range(400):
        rows = 1 + i % 16
        model.observe(StepLoad(decode_rows=rows), 0.01 - 0.0002 * rows)
    classes = dict.fromkeys(ServiceClass, ClassDemand())
    classes |= {REALTIME: ClassDemand(rows=1), BATCH: ClassDemand(rows=30)}
    capacity = make_capacity(max_step_tokens=64, units=2)
    demand = Demand(classes, prompts_due=True)
    one = Outlook(demand, models, Targets(1e-6, 2.0), capacity).of(UNIFIED).values
    assert one[BATCH] == pytest.approx(30 * one[REALTIME])


def test_a_prompt_that_no_target_leaves_room_for_is_worth_nothing_in_one_lane() -> None:
    demand = {REALTIME: ClassDemand(rows=8), BATCH: ClassDemand(prompt_tokens=500)}
    view = outlook(demand, Targets(0.012, 2.0))
    assert view.of(UNIFIED).values[BATCH] == 0.0
    assert view.of(Arrangement(1, 1)).values[BATCH] > 0.0


def test_a_prompt_of_the_highest_class_gets_a_block_in_any_case() -> None:
    """Beside a row that takes 3 ms; and while it is computed, the classes below wait."""
    demand = {
        REALTIME: ClassDemand(rows=1, prompt_tokens=500),
        STANDARD: ClassDemand(rows=4, prompt_tokens=500),
    }
    values = outlook(demand, Targets(0.001, 0.004)).of(UNIFIED).values
    assert values[REALTIME] == pytest.approx((0.003 + 16 * 0.001) / 0.019)
    assert values[STANDARD] == 0.0


def test_without_realtime_rows_no_target_shortens_a_prompts_chunk() -> None:
    """It fills the step's 64 tokens."""
    demand = {REALTIME: ClassDemand(prompt_tokens=500)}
    values = outlook(demand, Targets(0.001, 0.004)).of(UNIFIED).values
    assert values[REALTIME] == pytest.approx(64 * 0.001 / 0.066)


def test_lanes_that_must_be_split_stay_so_when_one_has_nothing_to_do() -> None:
    targets = Targets(0.02, 2.0)
    controller = Controller(LaneMode.SPLIT, make_capacity(units=4), targets)
    idle = Demand({rank: ClassDemand() for rank in ServiceClass}, prompts_due=False)
    present = Arrangement(1, 3)
    assert idle.one_sided
    assert controller.decide(present, idle, StepModels(4), 1.0) == present
