"""The rules one by one, in steps and virtual time. Names in brackets are kinds of public faults."""

import itertools

import pytest

from headway.core.budget import Targets
from headway.core.config import Reserve, SchedulerConfig
from headway.core.scheduler import Scheduler
from headway.core.types import FinishReason, PreemptKind, RequestId, ServiceClass
from headway.errors import ConfigError, NeverFitsError
from headway.testing import LinearDuration, make_capacity, make_request
from headway.testing.driver import Simulation
from tests.core.helpers import assert_empty, assert_oracle, simulate, trace

REALTIME, STANDARD, BATCH = ServiceClass


def flood(simulation: Simulation, count: int, prompt: int, max_tokens: int, first: int = 1) -> None:
    """Batch requests from id `first` on, and a few steps for them to settle in."""
    for i in range(first, first + count):
        simulation.add(make_request(i, BATCH, prompt, max_tokens))
    for _ in range(6):
        simulation.step()


def test_realtime_takes_a_seat_from_batch_which_keeps_its_blocks() -> None:
    """[vllm #40004] All seats are held by batch; realtime starts in the next step."""
    simulation = simulate(max_seqs=2)
    flood(simulation, 2, prompt=16, max_tokens=60)
    simulation.add(make_request(9, REALTIME, 16, 4, arrival_s=simulation.clock()))
    before = len(simulation.plans)
    simulation.run()
    assert trace(simulation, 9).first_token_step == before
    assert not trace(simulation, 1).preempted
    assert not trace(simulation, 2).preempted
    assert_oracle(simulation)


@pytest.mark.parametrize("host_blocks", [0, 64])
def test_realtime_takes_blocks_from_batch(host_blocks: int) -> None:
    """[sglang #14872] All blocks are held by batch, seats are plenty."""
    simulation = simulate(
        kv_blocks=16, host_blocks=host_blocks, duration=LinearDuration(0.01, 0.01)
    )
    flood(simulation, 4, prompt=47, max_tokens=17)
    assert simulation.scheduler.snapshot().device.free == 0
    simulation.add(make_request(9, REALTIME, 40, 4, arrival_s=simulation.clock()))
    before = len(simulation.plans)
    simulation.run()
    first = trace(simulation, 9).first_token_step
    assert first is not None
    chunks = [c for p in simulation.plans[before : first + 1] for c in p.chunks if c.request == 9]
    assert len(chunks) == first + 1 - before, "realtime computes in every step from its arrival on"
    kinds = {p.kind for i in range(1, 5) for p in trace(simulation, i).preempted}
    assert kinds == {PreemptKind.SWAP if host_blocks else PreemptKind.RECOMPUTE}
    assert_oracle(simulation)


def test_preempted_work_returns_before_fresh_work_of_its_class() -> None:
    """[vllm #41951] and it is not preempted over and over."""
    simulation = simulate(kv_blocks=8, max_seqs=4)
    flood(simulation, 1, prompt=64, max_tokens=40)
    simulation.add(make_request(50, REALTIME, 80, 30, arrival_s=simulation.clock()))
    for i in range(2, 22):
        simulation.add(make_request(i, BATCH, 48, 4, arrival_s=simulation.clock()))
    simulation.run()
    assert trace(simulation, 1).preempted
    resumed = next(
        p.step
        for p in simulation.plans
        if p.step > 8
        and any(c.request == 1 for c in p.chunks)
        and p.step > simulation.plans[trace(simulation, 50).token_steps[0]].step
    )
    fresh = [simulation.plans[trace(simulation, i).admitted_step or 0].step for i in range(2, 22)]
    late = [step for step in fresh if step < resumed]
    assert not late, f"fresh requests started in steps {late}, before {resumed}"
    assert all(len(t.preempted) <= 4 for t in simulation.traces.values())
    assert_oracle(simulation)


def test_what_can_never_fit_is_refused_by_the_arithmetic_that_allocates() -> None:
    """[vllm-rbln #957] prompts around the size of the pool, and more tokens than it holds."""
    simulation = simulate(kv_blocks=4, max_seqs=2)
    for request, tokens in ((1, 47), (2, 48), (3, 63)):
        simulation.add(make_request(request, STANDARD, tokens, 3 if tokens < 63 else 1))
    for request, tokens in ((4, 64), (5, 65), (6, 1000)):
        with pytest.raises(NeverFitsError, match="longest is 63"):
            simulation.scheduler.add(make_request(request, STANDARD, tokens, 1))
    simulation.run()
    assert_oracle(simulation)


def test_an_answer_that_outgrows_the_pool_ends_with_length() -> None:
    simulation = simulate(kv_blocks=4, max_seqs=2)
    simulation.add(make_request(1, STANDARD, 40, 1000))
    simulation.add(make_request(2, STANDARD, 40, 5))
    simulation.run()
    first = trace(simulation, 1)
    assert first.finished is not None
    assert first.finished.reason is FinishReason.LENGTH
    assert len(first.tokens) == 64 - 40
    assert len(trace(simulation, 2).tokens) == 5
    assert_empty(simulation)


def test_an_arrival_waits_when_every_block_is_held_by_its_own_class() -> None:
    """[TensorRT-LLM #1687]"""
    simulation = simulate(kv_blocks=8, max_seqs=8)
    for i in (1, 2):
        simulation.add(make_request(i, REALTIME, 60, 4))
    simulation.step()
    simulation.add(make_request(3, REALTIME, 60, 4))
    simulation.step()
    assert simulation.scheduler.snapshot().classes[REALTIME].waiting == 1
    simulation.run()
    assert not any(t.preempted for t in simulation.traces.values())
    assert_oracle(simulation)


def test_first_in_first_out_within_a_class() -> None:
    """[llama.cpp #15008] One seat, equal sizes."""
    simulation = simulate(max_seqs=1)
    for i in range(1, 9):
        simulation.add(make_request(i, STANDARD, 16, 3))
    simulation.run()
    ends = [trace(simulation, i).token_steps[-1] for i in range(1, 9)]
    assert ends == sorted(ends)
    assert_oracle(simulation)


def test_a_large_request_is_not_passed_for_ever() -> None:
    """Small requests keep arriving; past T_pass blocks accumulate for the head of the line."""
    config = SchedulerConfig(pass_s=0.2)
    simulation = simulate(kv_blocks=12, max_seqs=8, config=config)
    for i in range(60):
        simulation.add(make_request(100 + i, STANDARD, 30, 20, arrival_s=i * 0.05))
    simulation.add(make_request(1, STANDARD, 160, 4, arrival_s=0.1))
    simulation.run()
    waited = simulation.traces[RequestId(1)].ttft_s
    assert waited is not None
    assert waited < 2.5
    assert_oracle(simulation)


def test_a_starved_batch_request_is_promoted_and_then_stays() -> None:
    """Realtime without end holds every block; past its guard time batch gets what comes free."""
    config = SchedulerConfig(reserve=Reserve(share=0.3, guard_s=1.0))
    simulation = simulate(kv_blocks=16, max_seqs=4, config=config)
    for i in range(200):
        simulation.add(make_request(100 + i, REALTIME, 60, 12, arrival_s=i * 0.05))
    simulation.add(make_request(1, BATCH, 30, 10, arrival_s=0.2))
    simulation.run_until(lambda: simulation.scheduler.snapshot().promoted == 1)
    simulation.run()
    batch, last = trace(simulation, 1), trace(simulation, 299)
    assert batch.finished is not None
    assert batch.token_times_s[-1] < last.token_times_s[0]
    promoted_at = batch.token_steps[0]
    assert not [p for p in batch.preempted if promoted_at < 0]
    assert_oracle(simulation)


def test_the_floor_keeps_lower_classes_going() -> None:
    """Realtime decodes all the time with a target that leaves room for nothing else."""
    config = SchedulerConfig(targets=Targets(itl_s=1e-6), floor_share=0.25)
    simulation = simulate(config=config, max_seqs=4)
    simulation.add(make_request(1, REALTIME, 16, 400))
    simulation.add(make_request(2, BATCH, 16, 400))
    simulation.add(make_request(3, STANDARD, 16, 400))
    for _ in range(300):
        simulation.step()
    rows = [c for p in simulation.plans[-200:] for c in p.chunks]
    lower = [c for c in rows if c.request != 1]
    assert len(lower) >= 0.25 * len(rows) - 16
    assert len(lower) <= 0.3 * len(rows) + 16
    for i in (2, 3):
        late = [step for step in trace(simulation, i).token_steps if step > 150]
        assert max(b - a for a, b in itertools.pairwise(late)) <= 10


def test_batch_rows_shrink_until_the_step_fits_the_target() -> None:
    config = SchedulerConfig(targets=Targets(itl_s=0.016), floor_share=0.0)
    simulation = simulate(config=config, max_seqs=16)
    flood(simulation, 12, prompt=16, max_tokens=150)
    simulation.add(make_request(99, REALTIME, 16, 100, arrival_s=simulation.clock()))
    simulation.run()
    times = trace(simulation, 99).token_times_s
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    assert gaps[len(gaps) // 2] <= 0.0165
    assert gaps[-1] <= 0.03
    assert_oracle(simulation)


def test_a_long_batch_prefill_delays_realtime_by_a_chunk() -> None:
    """[llama.cpp #22916]"""
    simulation = simulate(kv_blocks=512, max_seqs=4, max_model_len=8000)
    simulation.add(make_request(5, REALTIME, 16, 2))
    simulation.run()
    simulation.add(make_request(1, BATCH, 6000, 4, arrival_s=simulation.clock()))
    for _ in range(5):
        simulation.step()
    simulation.add(make_request(2, REALTIME, 32, 4, arrival_s=simulation.clock()))
    simulation.run()
    ttft_s = trace(simulation, 2).ttft_s
    assert ttft_s is not None
    assert ttft_s <= 2 * 0.05 + 0.042 + 0.01
    assert_oracle(simulation)


def test_the_cheaper_victim_goes() -> None:
    """[vllm #54644] Nearly finished against just started, recompute only."""
    simulation = simulate(kv_blocks=16, host_blocks=0, max_seqs=8)
    simulation.add(make_request(1, BATCH, 140, 30))
    for _ in range(24):
        simulation.step()
    simulation.add(make_request(2, BATCH, 60, 30, arrival_s=simulation.clock()))
    for _ in range(3):
        simulation.step()
    simulation.add(make_request(3, REALTIME, 40, 2, arrival_s=simulation.clock()))
    simulation.run()
    assert not trace(simulation, 1).preempted
    assert trace(simulation, 2).preempted
    assert_oracle(simulation)


def test_swapped_work_comes_back_when_the_load_is_gone() -> None:
    """[xinfer #69, vllm #546] Host pool too small for all victims: the others recompute."""
    simulation = simulate(kv_blocks=16, host_blocks=5, max_seqs=8)
    flood(simulation, 4, prompt=48, max_tokens=10)
    simulation.add(make_request(9, REALTIME, 200, 10, arrival_s=simulation.clock()))
    simulation.run()
    kinds = [p.kind for i in range(1, 5) for p in trace(simulation, i).preempted]
    assert PreemptKind.SWAP in kinds
    assert PreemptKind.RECOMPUTE in kinds
    assert_oracle(simulation)


def test_what_is_swapped_in_computes_in_the_same_step() -> None:
    simulation = simulate(kv_blocks=16, host_blocks=16)
    flood(simulation, 1, prompt=100, max_tokens=20)
    simulation.add(make_request(9, REALTIME, 200, 4, arrival_s=simulation.clock()))
    simulation.run()
    (back,) = [p for p in simulation.plans if p.swap_in]
    assert [(c.request, len(c.tokens)) for c in back.chunks] == [(1, 1)]
    assert_oracle(simulation)


def test_many_sequences_cross_a_block_boundary_with_nothing_free() -> None:
    """[transformers #46587, llama.cpp #23652] Growth inside one class takes the least senior."""
    simulation = simulate(kv_blocks=16, host_blocks=8, max_seqs=16, max_step_tokens=512)
    for i in range(1, 17):
        simulation.add(make_request(i, STANDARD, 15, 40))
    simulation.run()
    assert max(t.largest_gap_steps for t in simulation.traces.values()) < 400
    assert_oracle(simulation)


def test_children_of_a_group_share_the_prompts_blocks() -> None:
    simulation = simulate()
    for choice in range(4):
        simulation.add(make_request(10 + choice, STANDARD, tuple(range(100, 140)), 4, group=10))
    simulation.run()
    usages = [t.finished.usage for t in simulation.traces.values() if t.finished]
    assert [u.cached for u in usages] == [0, 32, 32, 32]
    assert_oracle(simulation)


def test_tenants_do_not_read_each_others_prefix_cache() -> None:
    simulation = simulate()
    prompt = tuple(range(100, 148))
    for request, tenant in ((1, "a"), (2, "b"), (3, "a")):
        simulation.add(make_request(request, STANDARD, prompt, 2, tenant=tenant))
        simulation.run()
    cached = [t.finished.usage.cached for t in simulation.traces.values() if t.finished]
    assert cached == [0, 0, 32]


def test_the_tenant_served_least_goes_first() -> None:
    simulation = simulate(max_seqs=1)
    for i in range(1, 11):
        simulation.add(make_request(i, STANDARD, 16, 3, tenant="a"))
    for _ in range(5):
        simulation.step()
    simulation.add(make_request(50, STANDARD, 16, 3, tenant="b", arrival_s=simulation.clock()))
    simulation.run()
    first = trace(simulation, 50).first_token_step
    assert first is not None
    assert first < (trace(simulation, 5).first_token_step or 0)


def test_deadlines_end_requests_wherever_they_are() -> None:
    simulation = simulate(kv_blocks=8, max_seqs=2)
    simulation.add(make_request(1, BATCH, 60, 100, deadline_s=0.5))
    simulation.add(make_request(2, BATCH, 60, 100, deadline_s=0.4))
    simulation.add(make_request(3, REALTIME, 100, 20, arrival_s=0.2))
    simulation.add(make_request(4, BATCH, 20, 5, deadline_s=0.3, arrival_s=0.25))
    simulation.run()
    for i in (1, 2, 4):
        ended = trace(simulation, i).finished
        assert ended is not None
        assert ended.reason is FinishReason.DEADLINE
    assert len(trace(simulation, 3).tokens) == 20
    assert_empty(simulation)


def test_what_ended_before_its_deadline_is_not_kept_until_then() -> None:
    simulation = simulate()
    for i in range(1, 401):
        simulation.add(make_request(i, STANDARD, 16, 1, deadline_s=1e9))
        simulation.run()
    assert len(simulation.scheduler._world.deadlines) < 100
    simulation.add(make_request(500, STANDARD, 16, 1000, deadline_s=simulation.clock() + 0.1))
    simulation.run()
    last = trace(simulation, 500).finished
    assert last is not None and last.reason is FinishReason.DEADLINE


def test_settings_outside_their_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="policy"):
        SchedulerConfig(policy="random")
    with pytest.raises(ConfigError, match="max step tokens"):
        Scheduler(make_capacity(max_seqs=8, max_step_tokens=8), SchedulerConfig())
