"""The promise to realtime, in steps and virtual time.

Seats full of batch streams, or blocks full of batch streams: in both, a realtime request has its
first token within max_step x 2 + its prefill alone + the copies.
"""

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.budget import Targets
from headway.core.request import Request
from headway.core.types import RequestId, ServiceClass
from headway.testing import LinearDuration, make_request
from headway.testing.driver import Simulation
from tests.core.helpers import assert_oracle, simulate
from tests.core.scenarios import scenarios

REALTIME, STANDARD, BATCH = ServiceClass
DURATION = LinearDuration(step_s=0.01, token_s=0.001, block_s=0.0005)
MAX_STEP_S = Targets().max_step(DURATION.step_s + DURATION.token_s)
URGENT = 99
"""Id of the request that is looked at."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A machine full of batch streams, and a realtime request that comes at any moment.

    streams: prompt tokens of each. steps: how long they run before. offset_s: when within a step.
    """

    kv_blocks: int
    host_blocks: int
    max_seqs: int
    streams: tuple[int, ...]
    steps: int
    offset_s: float
    prompt: int

    def machine(self) -> Simulation:
        """An idle one of this size."""
        return simulate(self.kv_blocks, self.host_blocks, self.max_seqs, duration=DURATION)


def crowds(kv_blocks: int, max_seqs: int) -> st.SearchStrategy[Crowd]:
    """More streams than the seats or the blocks hold, some still in their prompts."""
    return st.builds(
        Crowd,
        st.just(kv_blocks),
        st.sampled_from([0, 10, 64]),
        st.just(max_seqs),
        st.lists(st.integers(1, 300), min_size=8, max_size=16).map(tuple),
        st.integers(3, 60),
        st.floats(0, MAX_STEP_S),
        st.integers(1, 300),
    )


SEATS_FULL = crowds(kv_blocks=512, max_seqs=4)
BLOCKS_FULL = crowds(kv_blocks=32, max_seqs=16)


def alone_s(crowd: Crowd) -> float:
    """Its time to the first token on the idle machine, which has seen a request like it."""
    machine = crowd.machine()
    warm_up(machine)
    machine.add(urgent(crowd, machine.clock()))
    machine.run()
    ttft_s = machine.traces[RequestId(URGENT)].ttft_s
    assert ttft_s is not None
    return ttft_s


def urgent(crowd: Crowd, arrival_s: float) -> Request:
    """The request that is looked at."""
    return make_request(URGENT, REALTIME, crowd.prompt, 4, arrival_s)


def warm_up(machine: Simulation) -> None:
    """Realtime has been about, and the step model has seen steps."""
    machine.add(make_request(1, REALTIME, 100, 30))
    machine.run()


def overtake(crowd: Crowd) -> tuple[Simulation, int]:
    """Fill the machine, let the request come, and run until all have ended; the number of the
    first plan after it came."""
    machine = crowd.machine()
    warm_up(machine)
    for i, prompt in enumerate(crowd.streams, start=2):
        machine.add(make_request(i, BATCH, prompt, 60, machine.clock()))
    for _ in range(crowd.steps):
        machine.step()
    arrival_s = machine.clock() + crowd.offset_s
    machine.add(urgent(crowd, arrival_s))
    machine.run_until(lambda: machine.clock() >= arrival_s)
    first_plan = len(machine.plans)
    machine.run()
    return machine, first_plan


def check_promise(crowd: Crowd) -> None:
    """Steps: it computes in each step from its arrival to its first token. Time: the bound."""
    machine, first_plan = overtake(crowd)
    trace = machine.traces[RequestId(URGENT)]
    assert trace.first_token_step is not None and trace.ttft_s is not None
    steps = machine.plans[first_plan : trace.first_token_step + 1]
    assert all(any(c.request == URGENT for c in plan.chunks) for plan in steps)
    copies_s = sum(len(p.swap_out) + len(p.swap_in) for p in steps) * DURATION.block_s
    assert trace.ttft_s <= 2 * MAX_STEP_S + alone_s(crowd) + copies_s + 1e-9
    assert_oracle(machine)


@scenarios("seats full")
@given(SEATS_FULL)
@example(Crowd(512, 0, 4, (16,) * 8, 20, 0.0, 200))
@example(Crowd(512, 0, 4, (300,) * 8, 3, 0.001, 100))
def test_seats_full_of_batch_streams(crowd: Crowd) -> None:
    """[S1, S7]"""
    check_promise(crowd)


@scenarios("blocks full")
@given(BLOCKS_FULL)
@example(Crowd(32, 64, 16, (40,) * 12, 20, 0.0, 300))
def test_blocks_full_of_batch_streams(crowd: Crowd) -> None:
    """[S2, S7]"""
    check_promise(crowd)


def test_the_crowds_do_fill_seats_and_blocks() -> None:
    """Else the promise would be cheap."""
    seats, _ = overtake(Crowd(512, 64, 4, (16,) * 8, 20, 0.0, 200))
    assert not any(trace.preempted for trace in seats.traces.values())
    assert max(len(plan.chunks) for plan in seats.plans) == 4
    blocks, first = overtake(Crowd(32, 64, 16, (40,) * 12, 20, 0.0, 300))
    assert len(blocks.plans[first].swap_out) > 10
