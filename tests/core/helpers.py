"""Small set-ups for scheduler tests in steps and virtual time."""

from headway.core.config import SchedulerConfig
from headway.core.invariants import check
from headway.core.scheduler import Scheduler
from headway.core.types import RequestId
from headway.testing import (
    LinearDuration,
    ManualClock,
    ScriptedExecutor,
    Simulation,
    make_capacity,
    oracle_tokens,
)
from headway.testing.driver import Trace


def simulate(
    kv_blocks: int = 64,
    host_blocks: int = 64,
    max_seqs: int = 8,
    max_step_tokens: int = 256,
    config: SchedulerConfig | None = None,
    max_model_len: int = 2048,
    duration: LinearDuration | None = None,
) -> Simulation:
    """A scheduler over the scripted executor; a step takes 10 ms and 1 ms a token by default."""
    capacity = make_capacity(
        kv_blocks=kv_blocks,
        host_blocks=host_blocks,
        max_seqs=max_seqs,
        max_step_tokens=max_step_tokens,
        max_model_len=max_model_len,
    )
    clock = ManualClock()
    executor = ScriptedExecutor(capacity, duration=duration or LinearDuration(), clock=clock)
    return Simulation(Scheduler(capacity, config or SchedulerConfig()), executor, clock)


def trace(simulation: Simulation, request: int) -> Trace:
    """What happened to a request."""
    return simulation.traces[RequestId(request)]


def assert_oracle(simulation: Simulation) -> None:
    """Every answer is the one the request gets alone, and nothing is left behind."""
    assert isinstance(simulation.executor, ScriptedExecutor)
    script = simulation.executor.script
    for t in simulation.traces.values():
        r = t.request
        expected = oracle_tokens(r.prompt, r.sampling, r.limits.max_tokens, script)
        assert t.tokens == expected, f"request {r.id}"
    assert_empty(simulation)


def assert_empty(simulation: Simulation) -> None:
    """No block, seat or counter is left taken."""
    snapshot = simulation.scheduler.snapshot()
    assert snapshot.idle
    assert snapshot.device.used == 0
    assert snapshot.host.used == 0
    check(simulation.scheduler)
