"""Faults that need two steps at once: prefill and decode lanes over one pool of real blocks."""

import random

import pytest

from headway.core.config import SchedulerConfig
from headway.core.invariants import check
from headway.core.plan import SamplingSpec, StepPlan, StepResult
from headway.core.request import Limits, Request
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, PreemptKind, RequestId, ServiceClass
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
    on computing, and taking blocks that small prompts left over, while the slow copies have not
    begun."""
    rng = random.Random(host_blocks)
    arrivals = [(0, core_request(i, prompt_of(i, 20 + 5 * i), 90, BATCH)) for i in range(8)]
    for i in range(8, 72):
        prompt = prompt_of(i % 6, 10 + 40 * (i % 6))
        arrivals.append((rng.randrange(4, 900), core_request(i, prompt, 2, REALTIME)))
    machine = Machine(kv_blocks=20, host_blocks=host_blocks)
    executor = NativeExecutor(WEIGHTS, machine.sizes)
    scheduler = Scheduler(executor.capacity, SchedulerConfig())
    conductor = Conductor(executor, ManualClock(), slow_copy_s=0.01)
    lanes = RealLanes(scheduler, conductor, copy_wait_s=0.05)
    try:
        lanes.run(arrivals)
    finally:
        conductor.close()
    kinds = [gone.kind for gone in lanes.preempted]
    assert kinds.count(PreemptKind.SWAP) >= 8
    assert len(lanes.overtakers) >= 40, "the other lane waited for the copies"
    for _, request in arrivals:
        got = [TokenInfo(e.token, e.logprobs) for e in lanes.emitted[request.id]]
        expected = alone(ask(request.prompt, request.limits.max_tokens))
        assert got == expected.tokens, f"request {request.id}"
    snapshot = scheduler.snapshot()
    assert snapshot.idle and snapshot.device.used == snapshot.host.used == 0


@pytest.mark.parametrize("moment", range(6))
def test_aborted_exactly_at_the_hand_over_between_the_lanes(alone: Ask, moment: int) -> None:
    """0: the prompt's last chunk is planned, 1: under way, 2: committed, 3: the decode lane has
    planned the answer's first row, 4: that is under way and prefill plans again, 5: committed."""
    executor = NativeExecutor(WEIGHTS, Machine().sizes)
    scheduler = Scheduler(executor.capacity, SchedulerConfig())
    goes = core_request(0, prompt_of(1, 40), 20, REALTIME)
    stays = core_request(1, prompt_of(2, 30), 12, BATCH)
    tokens: dict[RequestId, list[int]] = {goes.id: [], stays.id: []}

    def commit(plan: StepPlan, result: StepResult) -> None:
        committed = scheduler.commit(plan, result, {}, 0.0)
        check(scheduler)
        for emitted in committed.emitted:
            tokens[emitted.request].append(emitted.token)

    def run(lane: Lane) -> None:
        plan = scheduler.plan(lane, 0.0)
        commit(plan, StepResult(plan.step) if plan.empty else executor.submit(plan, {}).result(60))

    def abort_if(reached: int) -> None:
        if moment == reached:
            scheduler.abort(goes.id)
            check(scheduler)

    try:
        scheduler.add(goes)
        scheduler.add(stays)
        prefill = scheduler.plan(Lane.PREFILL, 0.0)
        assert any(c.request == goes.id and c.sample for c in prefill.chunks)
        abort_if(0)
        handle = executor.submit(prefill, {})
        abort_if(1)
        commit(prefill, handle.result(60))
        abort_if(2)
        decode = scheduler.plan(Lane.DECODE, 0.0)
        assert (goes.id in {c.request for c in decode.chunks}) is (moment > 2)
        abort_if(3)
        rows = executor.submit(decode, {}) if not decode.empty else None
        held = scheduler.snapshot().device.used
        run(Lane.PREFILL)
        assert scheduler.snapshot().device.used >= held, "the decode lane still writes them"
        abort_if(4)
        commit(decode, StepResult(decode.step) if rows is None else rows.result(60))
        abort_if(5)
        for _ in range(80):
            run(Lane.DECODE)
            run(Lane.PREFILL)
    finally:
        executor.close()
    assert len(tokens[goes.id]) == (0, 0, 1, 1, 1, 2)[moment]
    assert tokens[stays.id] == alone(ask(stays.prompt, 12)).ids
    snapshot = scheduler.snapshot()
    assert snapshot.idle and snapshot.device.used == snapshot.host.used == 0
