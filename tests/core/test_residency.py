"""Entering, growing and displacing: what it costs the others, and what it must not cost them."""

from headway.core.types import ServiceClass
from headway.testing import make_request
from tests.core.helpers import assert_oracle, simulate, trace

REALTIME, STANDARD, BATCH = ServiceClass


def test_nobody_is_displaced_for_a_request_that_reads_their_prefix_and_then_does_not_fit() -> None:
    """Four of the seven blocks that request 3 needs are held by request 2 alone: displacing it
    leaves six for seven."""
    simulation = simulate(kv_blocks=8)
    prompt = tuple(range(200, 266))
    simulation.add(make_request(2, BATCH, prompt, 14))
    simulation.step()
    simulation.add(make_request(1, REALTIME, 16, 16))
    simulation.step()
    simulation.add(
        make_request(3, REALTIME, (*prompt, *range(30)), 4, arrival_s=simulation.clock())
    )
    simulation.run()
    assert not trace(simulation, 2).preempted
    assert_oracle(simulation)
