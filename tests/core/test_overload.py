"""Throughput with more to do than the pool holds, in virtual time.

[S8] Too much admission ends in preemption storms. Against the most conservative admission, which
lets a request in only where its prompt and all of its max_tokens fit: all requests here have the
same limits, so that it is a number of seats.
"""

import random
from collections.abc import Iterator

import pytest

from headway.core.config import SchedulerConfig
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.core.sequence import blocks_for
from headway.core.types import ServiceClass
from headway.testing import (
    LinearDuration,
    ManualClock,
    Script,
    ScriptedExecutor,
    Simulation,
    make_capacity,
    make_request,
)

KV_BLOCKS, BLOCK = 96, 16
PROMPT, MAX_TOKENS = 80, 112
NEEDS = blocks_for(PROMPT + MAX_TOKENS, BLOCK)
RESERVED_SEATS = KV_BLOCKS // NEEDS
AT_ONCE = 2 * RESERVED_SEATS
"""Requests that are there at any time: they would need twice the pool."""
EOS = 7
DURATION = LinearDuration(step_s=0.01, token_s=0.0002, block_s=0.0005)


def requests() -> Iterator[Request]:
    """One after the other, classes in turn."""
    numbers = random.Random(8)
    for i in range(1, 45):
        service_class = numbers.choice([ServiceClass.STANDARD, ServiceClass.BATCH])
        yield make_request(i, service_class, PROMPT, MAX_TOKENS, stop_ids=frozenset({EOS}))


def tokens_per_s(max_seqs: int, host_blocks: int, eos_probability: float) -> float:
    """Of answers, with `AT_ONCE` requests there at any time until no more come."""
    capacity = make_capacity(KV_BLOCKS, host_blocks, BLOCK, max_seqs, max_step_tokens=512)
    clock = ManualClock()
    script = Script(eos_id=EOS, eos_probability=eos_probability)
    executor = ScriptedExecutor(capacity, script, clock=clock, duration=DURATION)
    simulation = Simulation(Scheduler(capacity, SchedulerConfig()), executor, clock)
    coming = requests()
    while True:
        for request in coming:
            simulation.add(request)
            if len(simulation.alive) == AT_ONCE:
                break
        else:
            break
        simulation.run_until(lambda: len(simulation.alive) < AT_ONCE)
    simulation.run()
    return sum(len(t.tokens) for t in simulation.traces.values()) / clock()


@pytest.mark.parametrize("host_blocks", [0, KV_BLOCKS])
@pytest.mark.parametrize("eos_probability", [0.0, 0.02], ids=["all run to the limit", "most end"])
def test_twice_the_pool_keeps_the_throughput(host_blocks: int, eos_probability: float) -> None:
    """Where all run to their limit, reserving for that wastes nothing: the hardest case."""
    adaptive = tokens_per_s(AT_ONCE, host_blocks, eos_probability)
    conservative = tokens_per_s(RESERVED_SEATS, host_blocks, eos_probability)
    assert adaptive >= 0.9 * conservative
    if eos_probability:
        assert adaptive > 1.1 * conservative, "what is reserved and never used is lost"
