"""Which residents compute in a step, where the rules meet: growth, floor credit, lone residents."""

from collections.abc import Set

import pytest

from headway.core.budget import FloorCredit, Targets
from headway.core.config import SchedulerConfig
from headway.core.request import Request
from headway.core.residency import Residency
from headway.core.sequence import Sequence
from headway.core.step_model import StepLoad
from headway.core.stepping import Stepping
from headway.core.types import Lane, RequestId, ServiceClass, State
from headway.core.world import World
from headway.testing import make_request
from tests.core.helpers import assert_oracle, simulate, trace
from tests.core.worlds import decoding, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def stepping_for(
    world: World,
    lane: Lane = Lane.UNIFIED,
    credit_tokens: int = 0,
    unready: Set[RequestId] = frozenset(),
) -> Stepping:
    credit = FloorCredit(share=1.0, most_tokens=1000)
    credit.settle(credit_tokens, 0)
    return Stepping(world, Residency(world, lane, 1.0), credit, 1.0, unready)


def computing(stepping: Stepping) -> dict[int, int]:
    """Tokens by request."""
    return {c.request: len(c.tokens) for c in stepping.chunks()}


def under_targets(kv_blocks: int) -> World:
    """Realtime was seen just now, and no step is as short as its target."""
    world = world_of(kv_blocks, config=SchedulerConfig(targets=Targets(1e-6, 1e-6)))
    world.realtime_seen_s = 1.0
    return world


def take_back_a_token(sequence: Sequence) -> None:
    """One less, so that its next row needs no block."""
    sequence.tokens.pop()
    sequence.has_computed(len(sequence.tokens) - 1)


def test_a_row_whose_growth_is_for_others_to_give_up_drops_them_from_the_step() -> None:
    """The junior got its row first; then its senior, seated late, needs a block."""
    world = world_of(kv_blocks=2)
    senior, junior = (decoding(world, make_request(i, BATCH, 15), 2) for i in (1, 2))
    take_back_a_token(junior)
    world.roster.unseat(senior)
    stepping = stepping_for(world)
    stepping.decode_rows(BATCH)
    world.roster.seat(senior)
    stepping.decode_rows(BATCH)
    assert junior.state is not State.RUNNING
    assert computing(stepping) == {1: 1}


def test_rows_that_find_no_block_pause() -> None:
    world = world_of(kv_blocks=2)
    senior, junior = (decoding(world, make_request(i, BATCH, 15), 2) for i in (1, 2))
    take_back_a_token(senior)
    stepping = stepping_for(world)
    stepping.decode_rows(BATCH)
    paused = {p.request: p.reason for p in stepping.record().record.paused}
    assert paused == {2: "found no block to grow into but its seniors'"}
    assert computing(stepping) == {1: 1}
    assert junior.state is State.RUNNING


def test_floor_credit_goes_to_whom_it_can_serve() -> None:
    """Request 2 was left out longest but finds no block to grow into; request 3 needs none."""
    world = under_targets(kv_blocks=3)
    rows = [decoding(world, make_request(i, BATCH, 15), 2) for i in (1, 2, 3)]
    for row in (rows[0], rows[2]):
        take_back_a_token(row)
    rows[0].last_step = rows[2].last_step = 5
    rows[1].last_step = 3
    world.promote(rows[2])
    stepping = stepping_for(world, credit_tokens=8)
    stepping.decode_rows(BATCH)
    stepping.floor()
    assert computing(stepping) == {3: 1, 1: 1}


def test_floor_credit_passes_by_a_chunk_that_the_step_has_no_tokens_for() -> None:
    world = world_of(config=SchedulerConfig(targets=Targets(1e-6, 1e-6)), max_step_tokens=10)
    world.realtime_seen_s = 1.0
    decoding(world, make_request(1, BATCH, 100)).has_computed(0)
    decoding(world, make_request(2, BATCH, 20))
    stepping = stepping_for(world, credit_tokens=100)
    stepping.floor()
    assert computing(stepping) == {2: 1}


def test_floor_credit_is_saved_up_for_a_chunk() -> None:
    world = under_targets(kv_blocks=16)
    decoding(world, make_request(1, BATCH, 100)).has_computed(0)
    decoding(world, make_request(2, BATCH, 20)).last_step = 0
    for saved, expected in ((0, {}), (16, {1: 16})):
        credit = FloorCredit(share=0.01, most_tokens=100)
        credit.settle(saved * 100, 0)
        stepping = Stepping(world, Residency(world, Lane.UNIFIED, 1.0), credit, now=1.0)
        stepping.floor()
        assert computing(stepping) == expected


def test_targets_alone_leave_nobody_out_for_ever() -> None:
    """Realtime is remembered for half a minute: its target leaves room for no row, and no floor is
    kept; with nobody else about, the most senior goes on."""
    config = SchedulerConfig(targets=Targets(1e-6, 1e-6), floor_share=0.0)
    simulation = simulate(config=config)
    simulation.add(make_request(1, REALTIME, 16, 1))
    for i in (2, 3):
        simulation.add(make_request(i, BATCH, 16, 20))
    simulation.run()
    assert simulation.clock() < 30.0
    assert trace(simulation, 2).token_times_s[-1] < trace(simulation, 3).token_times_s[1]
    assert_oracle(simulation)


def test_whose_turn_it_is_on_another_lane_is_left_to_that() -> None:
    world = under_targets(kv_blocks=8)
    decoding(world, make_request(1, BATCH, 15))
    for lane, expected in ((Lane.PREFILL, {}), (Lane.DECODE, {1: 1})):
        stepping = stepping_for(world, lane)
        stepping.unstick()
        assert computing(stepping) == expected


def test_with_every_block_in_others_hands_the_most_senior_waits() -> None:
    """A resident that entered in this plan is not displaced in it, so there is no step to make."""
    world = under_targets(kv_blocks=2)
    decoding(world, make_request(1, BATCH, 15), 2)
    junior = decoding(world, make_request(2, BATCH, 15))
    residency = Residency(world, Lane.UNIFIED, 1.0)
    residency.entered[junior] = None
    stepping = Stepping(world, residency, FloorCredit(0.0, 0), now=1.0)
    stepping.unstick()
    assert computing(stepping) == {}


def test_those_that_are_not_ready_are_paused_and_cost_nobody_else_the_step() -> None:
    world = world_of(kv_blocks=16)
    decoding(world, make_request(1, REALTIME, 15))
    decoding(world, make_request(2, STANDARD, 40)).computed = 0
    decoding(world, make_request(3, BATCH, 15))
    unready = frozenset({RequestId(1), RequestId(2)})
    stepping = stepping_for(world, unready=unready)
    for rank in ServiceClass:
        stepping.decode_rows(rank)
        stepping.prefill(rank)
    stepping.floor()
    paused = {p.request: p.reason for p in stepping.record().record.paused}
    assert paused.keys() == unready and "mask" in paused[RequestId(1)]
    assert computing(stepping) == {3: 1}


def test_where_nobody_is_ready_the_step_is_empty() -> None:
    world = world_of(kv_blocks=16)
    decoding(world, make_request(1, BATCH, 15))
    stepping = stepping_for(world, unready=frozenset({RequestId(1)}))
    stepping.decode_rows(BATCH)
    stepping.unstick()
    assert computing(stepping) == {}


def test_a_lower_classes_prompt_makes_no_step_longer_than_pays() -> None:
    """Of 2 ms a step and 1 ms a token, 2 ms are a twentieth of 40 ms."""
    for rank, seen_s, tokens in ((STANDARD, 1.0, 38), (REALTIME, 1.0, 400), (STANDARD, -99.0, 400)):
        world = world_of(
            64, config=SchedulerConfig(targets=Targets(ttft_s=10.0)), max_step_tokens=512
        )
        world.realtime_seen_s = seen_s
        decoding(world, make_request(1, rank, 400), generated=0).has_computed(0)
        stepping = stepping_for(world)
        stepping.prefill(rank)
        assert computing(stepping) == {1: tokens}


def realtime_prompt_beside(row: Request, config: SchedulerConfig) -> World:
    """A realtime prompt of 400 tokens beside a decoding resident. The prior model: 2 ms a step and
    1 ms a token."""
    world = world_of(64, config=config, max_step_tokens=512)
    world.realtime_seen_s = 1.0
    decoding(world, row)
    decoding(world, make_request(9, REALTIME, 400), generated=0).has_computed(0)
    return world


def test_a_realtime_prompt_leaves_time_in_the_step_for_the_floor() -> None:
    """Of 50 ms, 2 are the step's and 1 is that of the row which the floor credit buys."""
    config = SchedulerConfig(targets=Targets(ttft_s=0.2))
    for credit_tokens, expected in ((0, {9: 48}), (1, {9: 47, 1: 1})):
        world = realtime_prompt_beside(make_request(1, BATCH, 15), config)
        credit = FloorCredit(share=0.001, most_tokens=100)
        credit.settle(1000 * credit_tokens, 0)
        stepping = Stepping(world, Residency(world, Lane.UNIFIED, 1.0), credit, now=1.0)
        stepping.prefill(REALTIME)
        stepping.floor()
        assert computing(stepping) == expected


def test_beside_rows_a_realtime_prompt_has_five_sixths_of_a_step_where_no_itl_target_is_given() -> (
    None
):
    """Beside it the step takes 3 ms. With a target of 10 ms, that is what it is."""
    for targets, tokens, limit_s in (
        (Targets(ttft_s=0.2), 15, 0.018),
        (Targets(ttft_s=0.04), 7, 0.010),
        (Targets(itl_s=0.010, ttft_s=0.2), 7, 0.010),
    ):
        row = make_request(1, REALTIME, 1)
        world = realtime_prompt_beside(row, SchedulerConfig(targets=targets))
        stepping = stepping_for(world)
        stepping.decode_rows(REALTIME)
        stepping.prefill(REALTIME)
        assert stepping.limit_s == pytest.approx(limit_s)
        assert computing(stepping) == {1: 1, 9: max(tokens, 16)}


def test_steps_that_end_later_than_predicted_are_planned_shorter() -> None:
    world = realtime_prompt_beside(make_request(1, REALTIME, 1), SchedulerConfig())
    model = world.step_model(Lane.UNIFIED)
    model.observe(StepLoad(decode_rows=1), 0.003)
    before_s = stepping_for(world).limit_s
    model.overrun = 0.04
    assert stepping_for(world).limit_s == pytest.approx(before_s / 1.04)
