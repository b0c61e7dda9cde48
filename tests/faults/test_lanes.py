"""Faults that need two steps at once: prefill and decode lanes over one pool of real blocks."""

import random

import pytest

from headway.core.config import SchedulerConfig
from headway.core.plan import SamplingSpec
from headway.core.request import Limits, Request
from headway.core.scheduler import Scheduler
from headway.core.types import PreemptKind, RequestId, ServiceClass
from headway.engine.types import TokenInfo
from headway.executors.native import NativeExecutor
from headway.testing import ManualClock
from tests.faults.conductor import Conductor
from tests.faults.lanes import RealLanes
from tests.faults.rig import BATCH, REALTIME, WEIGHTS, Ask, Machine, ask, prompt_of


def core_request(
    number: int, prompt: list[int], max_tokens: int, service_class: ServiceClass
) -> Request:
    """A greedy request as the scheduler takes it."""
    sampling = SamplingSpec(logprobs=0)
    return Request(RequestId(number), service_class, prompt, Limits(max_tokens), sampling, 0.0)


@pytest.mark.parametrize("host_blocks", [40, 6])
def test_a_block_is_nobodys_while_one_lane_still_copies_it(alone: Ask, host_blocks: int) -> None:
    """[K2, vllm #45704, sglang #30899] Realtime prompts displace batch streams; the other lane goes
    on computing, and taking blocks, while the slow copies have not begun."""
    rng = random.Random(host_blocks)
    arrivals = [(0, core_request(i, prompt_of(i, 20 + 5 * i), 60, BATCH)) for i in range(8)]
    for i in range(8, 40):
        prompt = prompt_of(i % 6, 40 + 30 * (i % 6))
        arrivals.append((rng.randrange(4, 400), core_request(i, prompt, 2, REALTIME)))
    machine = Machine(kv_blocks=20, host_blocks=host_blocks)
    executor, clock = NativeExecutor(WEIGHTS, machine.sizes), ManualClock()
    scheduler = Scheduler(executor.capacity, SchedulerConfig())
    conductor = Conductor(executor, clock, slow_copy_s=0.002)
    lanes = RealLanes(scheduler, conductor, clock)
    try:
        lanes.run(arrivals)
    finally:
        conductor.close()
    kinds = [gone.kind for gone in lanes.preempted]
    assert kinds.count(PreemptKind.SWAP) >= 3
    for _, request in arrivals:
        got = [TokenInfo(e.token, e.logprobs) for e in lanes.emitted[request.id]]
        expected = alone(ask(request.prompt, request.limits.max_tokens))
        assert got == expected.tokens, f"request {request.id}"
    snapshot = scheduler.snapshot()
    assert snapshot.idle and snapshot.device.used == snapshot.host.used == 0
