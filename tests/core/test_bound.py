"""The throughput bound: never exceeded, and nearly reached by one class alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.bound import BoundMeter, StepRoom
from headway.core.types import ServiceClass
from headway.testing import make_capacity, make_request
from tests.core.helpers import simulate
from tests.core.scenarios import scenarios


@scenarios("bound")
@given(
    st.integers(8, 40),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 60)), min_size=1, max_size=20),
)
def test_achieved_never_exceeds_the_bound(
    kv_blocks: int, max_seqs: int, sizes: list[tuple[int, int]]
) -> None:
    simulation = simulate(kv_blocks=kv_blocks, max_seqs=max_seqs)
    for i, (prompt, max_tokens) in enumerate(sizes, start=1):
        simulation.add(make_request(i, list(ServiceClass)[i % 3], prompt, max_tokens))
    while not simulation.finished:
        simulation.step()
        throughput = simulation.scheduler.snapshot().throughput
        assert throughput.achieved <= throughput.bound * (1 + 1e-9)


def test_one_class_without_sharing_reaches_nine_tenths_of_the_bound() -> None:
    """Seats for more than the pool holds, answers four times the prompt."""
    simulation = simulate(kv_blocks=200, host_blocks=200, max_seqs=64)
    for i in range(1, 161):
        simulation.add(make_request(i, ServiceClass.STANDARD, 30 + i % 20, 120 + (i * 37) % 80))
    while simulation.scheduler.snapshot().classes[ServiceClass.STANDARD].waiting or not (
        simulation.plans
    ):
        simulation.step()
    assert simulation.scheduler.snapshot().throughput.ratio >= 0.9


def test_rates_are_those_of_the_window() -> None:
    meter = BoundMeter(make_capacity(kv_blocks=100, block_size=16))
    assert meter.read().ratio == 0.0
    meter.add_step(StepRoom(0, 0.0), 5.0)
    for _ in range(1500):
        meter.add_step(StepRoom(4, 8.0), 0.5)
    meter.add_final_length(160)
    throughput = meter.read()
    assert throughput.achieved == pytest.approx(8.0)
    assert throughput.bound == pytest.approx(16.0)
    assert throughput.ratio == pytest.approx(0.5)
    assert throughput.paper == pytest.approx(100 * 16 / 160 * 2)
