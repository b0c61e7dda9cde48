"""Three properties of docs/scheduling.md, over random loads.

Residency          a higher-class request never waits, beyond one step in flight on each lane, for
                   seats or blocks that displaceable lower-class residents hold
Floor              over any steps in each of which a lower-class resident was left out, or got less
                   than it had tokens to compute, the lower classes got at least share x tokens -
                   one chunk
Work conserving    a head whose need <= free + evictable - headroom - reserved, with a seat left,
                   is in the plan
"""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headway.core.budget import Targets
from headway.core.config import Reserve, SchedulerConfig
from headway.core.request import Request
from headway.core.sequence import blocks_for
from headway.core.types import Arrangement, Lane, RequestId, ServiceClass
from headway.testing import (
    LinearDuration,
    ManualClock,
    ScriptedExecutor,
    Simulation,
    make_capacity,
    make_request,
)
from headway.testing.lanes import LaneSimulation, Restless
from tests.core.helpers import assert_empty
from tests.core.scenarios import scenarios
from tests.core.test_liveness import Load, loads
from tests.core.witness import Step, Witness

REALTIME, STANDARD, BATCH = ServiceClass
BLOCK = 4
APART = Arrangement(2, 2)
FIXED = 10**9


@dataclass(frozen=True, slots=True)
class Rush:
    """Requests of one class that fit together, among as many of the lower ones as may come."""

    kv_blocks: int
    host_blocks: int
    max_seqs: int
    urgent: tuple[Request, ...]
    others: tuple[Request, ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        """All of them."""
        return (*self.urgent, *self.others)


@st.composite
def rushes(draw: st.DrawFn) -> Rush:
    """The urgent ones need three quarters of the pool at their longest, and have seats for all."""
    kv_blocks, max_seqs = draw(st.integers(16, 40)), draw(st.integers(2, 6))
    higher = draw(st.sampled_from([REALTIME, STANDARD]))
    left = 3 * kv_blocks // 4
    urgent: list[Request] = []
    for number in range(1, draw(st.integers(1, max_seqs)) + 1):
        prompt, answer = draw(st.integers(1, 40)), draw(st.integers(1, 20))
        left -= blocks_for(prompt + answer, BLOCK) + 1
        if left < 0:
            break
        urgent.append(make_request(number, higher, prompt, answer, draw(st.floats(0.2, 2))))
    others = [
        make_request(
            100 + i,
            draw(st.sampled_from(list(ServiceClass)[higher + 1 :])),
            draw(st.integers(1, kv_blocks * BLOCK - 1)),
            draw(st.integers(1, 60)),
            draw(st.floats(0, 0.5)),
        )
        for i in range(draw(st.integers(4, 14)))
    ]
    host_blocks = draw(st.sampled_from([0, 3, 40]))
    return Rush(kv_blocks, host_blocks, max_seqs, tuple(urgent), tuple(others))


def witnessed(
    rush: Rush | Load, config: SchedulerConfig, split: bool = False
) -> tuple[Simulation, Witness]:
    """A machine for a load, on one lane or two."""
    capacity = make_capacity(
        kv_blocks=rush.kv_blocks,
        host_blocks=rush.host_blocks,
        block_size=BLOCK,
        max_seqs=rush.max_seqs,
        max_step_tokens=rush.max_seqs + 12,
        units=4,
    )
    clock = ManualClock()
    executor = ScriptedExecutor(capacity, clock=clock, duration=LinearDuration())
    if not split:
        witness = Witness(capacity, config)
        return Simulation(witness, executor, clock), witness
    witness = Witness(capacity, config, Restless(FIXED, (APART,)))
    return LaneSimulation(witness, executor, clock), witness


def admission(witness: Witness, request: RequestId) -> Step:
    """The step that brought a request in."""
    return next(step for step in witness.steps if request in step.admitted)


def first_look(witness: Witness, request: Request, lane: Lane) -> Step:
    """The lane's first plan after a request came."""
    return next(s for s in witness.steps if s.lane is lane and s.planned_s >= request.arrival_s)


NO_RESERVE = SchedulerConfig(reserve=Reserve(share=0.0))


@scenarios("residency, one lane")
@given(rushes())
def test_what_lower_classes_hold_is_not_waited_for(rush: Rush) -> None:
    """Residency, one lane: in the first plan after it came."""
    simulation, witness = witnessed(rush, NO_RESERVE)
    simulation.add_all(rush.requests)
    simulation.run()
    for request in rush.urgent:
        assert admission(witness, request.id) is first_look(witness, request, Lane.UNIFIED)
    assert_empty(simulation)


@scenarios("residency, two lanes")
@given(rushes())
def test_on_two_lanes_only_a_step_in_flight_is_waited_for(rush: Rush) -> None:
    """Residency, two lanes: once the steps have ended that are in flight when it is first seen."""
    simulation, witness = witnessed(rush, NO_RESERVE, split=True)
    simulation.add_all(rush.requests)
    simulation.run()
    for request in rush.urgent:
        seen, entered = first_look(witness, request, Lane.PREFILL), admission(witness, request.id)
        latest_s = max(step.ended_s for step in seen.in_flight)
        assert entered is seen or entered.planned_s <= latest_s
    assert_empty(simulation)


@st.composite
def busy(draw: st.DrawFn) -> Rush:
    """Realtime at nearly all times, and lower classes with seats and blocks for all they have."""
    sizes = st.tuples(st.integers(1, 60), st.integers(10, 60))
    realtime, lower = (draw(st.lists(sizes, min_size=2, max_size=4)) for _ in range(2))
    return Rush(
        200,
        0,
        10,
        tuple(make_request(i, REALTIME, *s, 0.3 * i) for i, s in enumerate(realtime, 1)),
        tuple(make_request(10 + i, (BATCH, STANDARD)[i % 2], *s) for i, s in enumerate(lower)),
    )


@scenarios("floor")
@given(
    st.one_of(loads(), busy()),
    st.sampled_from([0.02, 0.1, 0.3]),
    st.sampled_from([1e-6, 0.1, 100.0]),
)
def test_lower_classes_get_their_floor_over_any_window(
    load: Load | Rush, share: float, target_s: float
) -> None:
    """Floor, with targets from one that leaves room for nothing else to one that never binds."""
    config = SchedulerConfig(targets=Targets(itl_s=target_s, ttft_s=target_s), floor_share=share)
    simulation, witness = witnessed(load, config)
    simulation.add_all(load.requests)
    simulation.run(max_steps=20_000)
    ahead = most = 0.0
    for step in witness.steps:
        if not step.lower_left_out:
            ahead = most = 0.0
            continue
        ahead += step.lower_tokens - share * step.tokens
        most = max(most, ahead)
        assert ahead >= most - BLOCK - 1e-9, f"{most - ahead} tokens behind"


@scenarios("work conserving")
@given(loads())
def test_nobody_waits_beside_room(load: Load) -> None:
    """Work conserving."""
    reserve = Reserve(share=load.reserve_share, guard_s=0.5, preemptions=2)
    simulation, witness = witnessed(load, SchedulerConfig(reserve=reserve, pass_s=0.05))
    simulation.add_all(load.requests)
    simulation.run(max_steps=20_000)
    assert [idle for step in witness.steps for idle in step.idle_heads] == []
