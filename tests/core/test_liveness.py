"""The rules under random load: whatever arrives, everything ends with the oracle's tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headway.core.config import Reserve, SchedulerConfig
from headway.core.lanes import LaneChooser
from headway.core.plan import Penalties, SamplingSpec
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.core.types import Arrangement, FinishReason, RequestId, ServiceClass
from headway.testing import (
    LaneSimulation,
    LinearDuration,
    ManualClock,
    Mishaps,
    Script,
    ScriptedExecutor,
    Simulation,
    make_capacity,
    make_request,
    oracle_tokens,
)
from headway.testing.driver import DriveOptions
from headway.testing.lanes import Restless
from tests.core.scenarios import scenarios

SAMPLINGS = (
    SamplingSpec(),
    SamplingSpec(temperature=1.0, seed=7),
    SamplingSpec(penalties=Penalties(frequency=0.5)),
)


@dataclass(frozen=True, slots=True)
class Load:
    """A random machine and what is asked of it."""

    kv_blocks: int
    host_blocks: int
    max_seqs: int
    floor_share: float
    reserve_share: float
    requests: tuple[Request, ...]
    aborts: tuple[tuple[int, float], ...]
    fail_steps: frozenset[int]
    policy: str = "tiered"


@st.composite
def loads(draw: st.DrawFn, failures: bool = False, policies: tuple[str, ...] = ("tiered",)) -> Load:
    """Small pools, all classes, shared prefixes, groups, aborts, deadlines."""
    block_size = 4
    kv_blocks = draw(st.integers(4, 24))
    count = draw(st.integers(1, 14))
    requests: list[Request] = []
    common = tuple(range(1, 40))
    for i in range(1, count + 1):
        length = draw(st.integers(1, kv_blocks * block_size - 1))
        prompt: tuple[int, ...] | int = length
        if draw(st.booleans()):
            prompt = common[: min(length, 39)]
        choices = draw(st.integers(1, 3)) if draw(st.booleans()) else 1
        for choice in range(choices):
            sampling = draw(st.sampled_from(SAMPLINGS))
            requests.append(
                make_request(
                    i * 10 + choice,
                    draw(st.sampled_from(ServiceClass))
                    if not choice
                    else requests[-1].service_class,
                    requests[-1].prompt if choice else prompt,
                    max_tokens=draw(st.integers(1, 30)),
                    arrival_s=requests[-1].arrival_s if choice else draw(st.floats(0, 1.5)),
                    sampling=sampling,
                    deadline_s=draw(st.sampled_from([float("inf")] * 5 + [1.0])),
                    tenant=requests[-1].tenant if choice else draw(st.sampled_from(["", "", "b"])),
                    group=i * 10 if choices > 1 else None,
                )
            )
    ids = [r.id for r in requests]
    aborts = draw(st.lists(st.tuples(st.sampled_from(ids), st.floats(0, 2)), max_size=3))
    fails = draw(st.frozensets(st.integers(0, 60), max_size=2)) if failures else frozenset()
    return Load(
        kv_blocks,
        draw(st.sampled_from([0, 3, 40])),
        draw(st.integers(1, 6)),
        draw(st.sampled_from([0.0, 0.02, 0.3])),
        draw(st.sampled_from([0.0, 0.05, 0.4])),
        tuple(requests),
        tuple(aborts),
        fails,
        draw(st.sampled_from(policies)),
    )


def build(
    load: Load, lanes: LaneChooser | None = None
) -> tuple[Scheduler, ScriptedExecutor, ManualClock]:
    """The machine of a load."""
    capacity = make_capacity(
        kv_blocks=load.kv_blocks,
        host_blocks=load.host_blocks,
        block_size=4,
        max_seqs=load.max_seqs,
        max_step_tokens=load.max_seqs + 12,
        units=4,
    )
    config = SchedulerConfig(
        policy=load.policy,
        floor_share=load.floor_share,
        reserve=Reserve(share=load.reserve_share, guard_s=0.5, preemptions=2),
        pass_s=0.05,
    )
    clock = ManualClock()
    executor = ScriptedExecutor(
        capacity,
        clock=clock,
        duration=LinearDuration(),
        mishaps=Mishaps(fail_steps=load.fail_steps),
    )
    return Scheduler(capacity, config, lanes), executor, clock


def run(load: Load, interrupts: bool = False) -> tuple[Simulation, Scheduler]:
    """Drive a load to its end; the driver checks the invariants after each step."""
    scheduler, executor, clock = build(load)
    options = DriveOptions(interrupt_for_realtime=interrupts, max_idle_steps=40)
    simulation = Simulation(scheduler, executor, clock, options=options)
    for request in load.requests:
        simulation.add(request)
    for request_id, when_s in load.aborts:
        simulation.abort(RequestId(request_id), when_s)
    simulation.run(max_steps=20_000)
    return simulation, scheduler


def check_end(
    load: Load,
    scheduler: Scheduler,
    tokens: Mapping[RequestId, list[int]],
    ends: Mapping[RequestId, FinishReason],
) -> None:
    """All blocks are back and every answer is a prefix of the oracle's, whole if it ended well."""
    snapshot = scheduler.snapshot()
    assert snapshot.idle
    assert snapshot.device.used == 0
    assert snapshot.host.used == 0
    for request in load.requests:
        most = min(request.limits.max_tokens, load.kv_blocks * 4 - len(request.prompt))
        expected = oracle_tokens(request.prompt, request.sampling, most, Script())
        answer = tokens[request.id]
        assert answer == expected[: len(answer)]
        if ends[request.id] is FinishReason.LENGTH:
            assert answer == expected
        else:
            assert ends[request.id] is not FinishReason.STOP


def check_simulation(load: Load, simulation: Simulation, scheduler: Scheduler) -> None:
    """`check_end` of a simulation."""
    traces = simulation.traces.items()
    ends = {r: t.finished.reason for r, t in traces if t.finished}
    check_end(load, scheduler, {r: t.tokens for r, t in traces}, ends)


@scenarios("everything ends")
@given(loads())
def test_everything_ends_with_the_oracles_tokens(load: Load) -> None:
    simulation, scheduler = run(load)
    check_simulation(load, simulation, scheduler)
    reasons = [t.finished.reason for t in simulation.traces.values() if t.finished]
    assert FinishReason.ERROR not in reasons


@scenarios("interrupts")
@given(loads())
def test_interrupted_steps_change_nothing(load: Load) -> None:
    simulation, scheduler = run(load, interrupts=True)
    check_simulation(load, simulation, scheduler)


@scenarios("failures")
@given(loads(failures=True))
def test_a_failed_step_takes_only_its_own_requests(load: Load) -> None:
    simulation, scheduler = run(load)
    check_simulation(load, simulation, scheduler)


@scenarios("other policies")
@given(loads(policies=("weighted", "fcfs", "static")))
def test_the_other_policies_keep_their_promises(load: Load) -> None:
    """All three: capacity and invariants after each step, and finite loads end. `fcfs`: in order of
    arrival. `static`: a batch is fixed until its last member has ended, and nobody is preempted."""
    simulation, scheduler = run(load)
    check_simulation(load, simulation, scheduler)
    if load.policy == "fcfs":
        check_order_of_arrival(simulation)
    elif load.policy == "static":
        check_batches_are_fixed(simulation)


def check_order_of_arrival(simulation: Simulation) -> None:
    """Further choices of a group wait for the first one's prompt, so groups are left out."""
    lone = [r for r, t in simulation.traces.items() if t.request.group is None]
    admitted = [a.request for c in simulation.commits for a in c.admitted]
    assert [r for r in lone if r in admitted] == [r for r in admitted if r in lone]


def check_batches_are_fixed(simulation: Simulation) -> None:
    """Who is admitted finds nobody of the last batch."""
    running: set[RequestId] = set()
    for committed in simulation.commits:
        assert not committed.preempted
        ended = {f.request for f in committed.finished}
        if committed.admitted:
            assert not running - ended
        running |= {a.request for a in committed.admitted}
        running -= ended


ARRANGEMENTS = (Arrangement(2, 2), Arrangement(), Arrangement(3, 1), Arrangement(1, 3))


@scenarios("lanes")
@given(loads(failures=True), st.sampled_from([2, 3, 7, 10**9]), st.booleans())
def test_lanes_share_the_pool_and_lose_nothing(load: Load, period: int, interrupts: bool) -> None:
    scheduler, executor, clock = build(load, Restless(period, ARRANGEMENTS))
    options = DriveOptions(interrupt_for_realtime=interrupts, max_idle_steps=40)
    simulation = LaneSimulation(scheduler, executor, clock, options=options)
    simulation.add_all(load.requests)
    for request_id, when_s in load.aborts:
        simulation.abort(RequestId(request_id), when_s)
    simulation.run(max_steps=20_000)
    check_simulation(load, simulation, scheduler)
