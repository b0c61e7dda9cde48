"""Who enters under each policy, decided by hand."""

import pytest

from headway.core.admission import admission_for, rank_of
from headway.core.config import SchedulerConfig
from headway.core.residency import Residency
from headway.core.sequence import Sequence
from headway.core.types import FinishReason, Lane, RequestId, ServiceClass, State
from headway.core.world import World
from headway.testing import make_request
from tests.core.helpers import assert_oracle, simulate, trace
from tests.core.worlds import decoding, waiting, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def test_classes_have_weights_and_names() -> None:
    assert [c.weight for c in ServiceClass] == [10.0, 1.0, 0.1]
    assert [c.label for c in ServiceClass] == ["realtime", "standard", "batch"]


def test_policies_that_ignore_classes_rank_all_alike() -> None:
    for policy in ("fcfs", "static"):
        assert {rank_of(SchedulerConfig(policy=policy), c) for c in ServiceClass} == {STANDARD}
    for policy in ("tiered", "weighted"):
        assert [rank_of(SchedulerConfig(policy=policy), c) for c in ServiceClass] == list(
            ServiceClass
        )


def under(policy: str, kv_blocks: int = 8, max_seqs: int = 8) -> World:
    return world_of(kv_blocks, max_seqs=max_seqs, config=SchedulerConfig(policy=policy))


def admit(world: World, now: float = 1.0) -> Residency:
    """What a plan does to residency, all ranks in order."""
    residency = Residency(world, Lane.UNIFIED, now)
    admission = admission_for(world, residency, now)
    admission.prepare()
    for rank in ServiceClass:
        admission.admit(rank)
    return residency


def entered(residency: Residency) -> set[int]:
    return {s.id for s in residency.entered}


def fresh(world: World, *prompts: int, rank: ServiceClass = STANDARD) -> list[Sequence]:
    """Waiting requests with ids from 11 on."""
    return [waiting(world, make_request(11 + i, rank, n)) for i, n in enumerate(prompts)]


def test_fcfs_waits_for_the_oldest() -> None:
    world = under("fcfs")
    decoding(world, make_request(1, STANDARD, 40, 8))
    fresh(world, 20, 100, 15)
    assert entered(admit(world)) == {11}, "12 does not fit, and 13 does not pass it"


def test_fcfs_resumes_before_it_admits() -> None:
    world = under("fcfs")
    first, second = (decoding(world, make_request(i, STANDARD, 60, 8)) for i in (1, 2))
    residency = Residency(world, Lane.UNIFIED, 1.0)
    residency.preempt(second, first)
    residency.preempt(first, second)
    blocker = decoding(world, make_request(3, STANDARD, 70, 2))
    fresh(world, 15)
    assert entered(admit(world)) == set(), "who was preempted does not fit, so nobody enters"
    world.leave(blocker, FinishReason.ABORT)
    assert 1 in entered(admit(world))


def test_static_reserves_to_the_end_and_admits_in_batches() -> None:
    """Requests of 15 + 33 tokens take three blocks each though one would do for now. Where the
    first of a batch ends, nobody takes its place."""
    simulation = simulate(kv_blocks=8, config=SchedulerConfig(policy="static"))
    for i in range(1, 5):
        simulation.add(make_request(i, ServiceClass(i % 3), 15, 20 if i == 1 else 33))
    simulation.run()
    starts = [trace(simulation, i).admitted_step for i in range(1, 5)]
    assert starts[0] == starts[1] == 0
    ends = [trace(simulation, i).token_steps[-1] for i in range(1, 5)]
    assert ends[0] < ends[1]
    assert starts[2] == starts[3] == ends[1] + 1
    assert not any(t.preempted for t in simulation.traces.values())
    assert_oracle(simulation)


def test_weighted_changes_nothing_while_nobody_waits_and_growth_fits() -> None:
    world = under("weighted", kv_blocks=3)
    decoding(world, make_request(1, STANDARD, 15, 8), 2)
    residency = admit(world)
    assert not residency.preempted and not residency.entered


def test_weighted_takes_most_weight_for_the_blocks() -> None:
    """Realtime's 10 for five blocks against 1 each for two standard requests of three."""
    world = under("weighted", kv_blocks=6)
    low = [decoding(world, make_request(i, STANDARD, 33, 8)) for i in (1, 2)]
    waiting(world, make_request(11, REALTIME, 70))
    residency = admit(world)
    assert entered(residency) == {11}
    assert set(residency.preempted) == set(low)
    assert {e.wanted_by for e in residency.notes.evicted} == {11}


def test_weighted_displaces_nobody_for_an_equal() -> None:
    world = under("weighted", kv_blocks=3)
    resident = decoding(world, make_request(1, STANDARD, 40, 8))
    fresh(world, 40)
    residency = admit(world)
    assert not residency.preempted
    assert entered(residency) == set()
    assert resident.state is State.RUNNING


def test_weighted_admits_those_it_chose_whoever_came_first() -> None:
    world = under("weighted", kv_blocks=6)
    fresh(world, 70, 40, 40)
    assert entered(admit(world)) == {12, 13}, "five blocks for one, or three for each of two"


@pytest.mark.parametrize("policy", ["tiered", "fcfs", "static"])
def test_policies_that_select_nothing_miss_nothing(policy: str) -> None:
    simulation = simulate(config=SchedulerConfig(policy=policy))
    simulation.add(make_request(1, STANDARD, 20, 8))
    simulation.step()
    assert simulation.scheduler.snapshot().selection_gap == 0.0


def test_weighted_displaces_nobody_for_one_a_little_smaller() -> None:
    """Ten blocks against a resident's eleven: equals would trade places at every step."""
    world = under("weighted", kv_blocks=12)
    decoding(world, make_request(1, STANDARD, 165, 8))
    fresh(world, 150)
    residency = admit(world)
    assert (entered(residency), set(residency.preempted)) == (set(), set())


def test_weighted_counts_a_block_as_one_and_growth_when_it_comes() -> None:
    """Fifteen computed tokens and the next one are a block, which each has."""
    world = under("weighted", kv_blocks=4)
    for i in (1, 2, 3):
        decoding(world, make_request(i, STANDARD, 15, 8))
    fresh(world, 10)
    residency = admit(world)
    assert (entered(residency), set(residency.preempted)) == ({11}, set())


def test_weighted_says_what_its_selection_may_have_missed() -> None:
    """Realtime's ten blocks of fifteen are worth 10, and half of what batch waits for 0.05 more:
    too little to look for."""
    simulation = simulate(kv_blocks=15, config=SchedulerConfig(policy="weighted"))
    simulation.add(make_request(1, REALTIME, 150, 8))
    simulation.add(make_request(2, BATCH, 150, 8))
    simulation.step()
    gap = simulation.scheduler.snapshot().selection_gap
    assert gap == pytest.approx(0.05 / 10.05)
    simulation.run()
    assert simulation.scheduler.snapshot().selection_gap == 0.0


def test_weighted_may_give_up_one_for_many_of_a_lower_class() -> None:
    """Eq. 1 to the letter: eleven and more standard requests outweigh a realtime one."""
    world = under("weighted", kv_blocks=12, max_seqs=16)
    realtime = decoding(world, make_request(1, REALTIME, 180, 8))
    fresh(world, *[10] * 12)
    residency = admit(world)
    assert set(residency.preempted) == {realtime}
    assert entered(residency) == set(range(11, 23))


def test_weighted_leaves_those_in_flight_alone() -> None:
    world = under("weighted", kv_blocks=3)
    resident = decoding(world, make_request(1, BATCH, 40, 8))
    resident.in_flight = True
    waiting(world, make_request(11, REALTIME, 40))
    residency = admit(world)
    assert not residency.preempted
    assert entered(residency) == set()


def test_weighted_gives_up_a_resident_when_all_of_them_grow_beyond_the_pool() -> None:
    world = under("weighted", kv_blocks=3)
    members = [decoding(world, make_request(i, BATCH, 15, 8), 2) for i in (1, 2, 3)]
    residency = admit(world)
    assert len(residency.preempted) == 2
    assert members[0].state is State.RUNNING


def test_weighted_counts_shared_blocks_in_parts() -> None:
    """Three hold the same two blocks and one each. Two thirds and one count as two blocks for each
    of them, so that a seventh is left; counted in full they would be nine."""
    world = under("weighted", kv_blocks=7)
    prompt = tuple(range(32))
    members = [decoding(world, make_request(i, STANDARD, (*prompt, i))) for i in (1, 2, 3)]
    assert world.device.counts().used == 5
    fresh(world, 10)
    residency = admit(world)
    assert entered(residency) == {11}
    assert all(s.state is State.RUNNING for s in members)


def test_tiered_seats_residents_before_it_admits() -> None:
    for seats, expected in ((2, set()), (3, {11})):
        world = under("tiered", max_seqs=seats)
        decoding(world, make_request(1, REALTIME, 20))
        unseated = decoding(world, make_request(2, STANDARD, 20))
        world.roster.unseat(unseated)
        fresh(world, 20)
        assert entered(admit(world)) == expected
        assert unseated.seated


def test_cached_blocks_that_are_room_for_others_are_not_counted_twice() -> None:
    """Request 12 would find two of its four blocks in the cache; but they are two of the three
    that there are."""
    world = under("tiered", kv_blocks=8)
    prompt = tuple(range(1, 34))
    gone = decoding(world, make_request(1, STANDARD, prompt))
    decoding(world, make_request(2, REALTIME, 70))
    world.leave(gone, FinishReason.LENGTH)
    assert world.device.available(Lane.UNIFIED) == 3
    waiting(world, make_request(11, STANDARD, 120))
    behind = waiting(world, make_request(12, STANDARD, (*prompt, *range(100, 120))))
    assert world.may_need_at_most(behind, 3)
    residency = admit(world, now=0.5)
    assert entered(residency) == set()
    reasons = {left.request: left.reason for left in residency.notes.passed_over(set())}
    assert reasons[RequestId(12)].startswith("needs 4 blocks: 3 blocks free")


@pytest.mark.parametrize(
    ("waited_s", "head", "max_tokens", "expected"),
    [
        (0.5, 120, 60, {12}),
        (1.0, 120, 60, set()),
        (2.0, 120, 20, {12}),
        (2.0, 120, 21, set()),
        (2.0, 70, 33, {12}),
        (2.0, 70, 34, set()),
    ],
)
def test_tiered_packs_in_only_who_delays_nobody(
    waited_s: float, head: int, max_tokens: int, expected: set[int]
) -> None:
    """After 1 s request 11 has waited too long to be passed. Blocks for it come free when request
    1 ends, 20 tokens from now: an answer as short may go ahead, and one that fits into the blocks
    left over then; of eight, three where the head needs five."""
    world = world_of(8, config=SchedulerConfig(pass_s=1.0))
    decoding(world, make_request(1, STANDARD, 70, 21))
    waiting(world, make_request(11, STANDARD, head, 4, arrival_s=3.0 - waited_s))
    waiting(world, make_request(12, STANDARD, 15, max_tokens))
    residency = admit(world, now=3.0)
    assert entered(residency) == expected
    reasons = {left.request: left.reason for left in residency.notes.passed_over(set())}
    delays = None if expected else "would delay the head of the line"
    assert reasons.get(RequestId(12)) == delays


@pytest.mark.parametrize(("max_tokens", "expected"), [(5, {11, 12}), (60, set())])
def test_tiered_packs_around_preempted_work_only_who_does_not_delay_it(
    max_tokens: int, expected: set[int]
) -> None:
    """Request 2 needs four blocks again; three are free, and the fourth when request 1 ends."""
    world = world_of(8, host_blocks=0)
    first = decoding(world, make_request(1, STANDARD, 70, 21))
    second = decoding(world, make_request(2, STANDARD, 40, 8))
    Residency(world, Lane.UNIFIED, 0.0).preempt(second, first)
    for i in (11, 12):
        waiting(world, make_request(i, STANDARD, 15, max_tokens))
    assert entered(admit(world)) == expected


def test_what_lower_classes_hold_counts_as_free_for_the_head_of_the_line() -> None:
    """Request 11 lacks two blocks beside the free one and batch's three: it gets them in 20 tokens,
    when request 1 ends, and an answer of 40 would be in its way; not so if it lacked eight."""
    world = world_of(12, config=SchedulerConfig(pass_s=1.0))
    decoding(world, make_request(1, STANDARD, 70, 21))
    decoding(world, make_request(2, STANDARD, 40, 61))
    decoding(world, make_request(3, BATCH, 40, 61))
    waiting(world, make_request(11, STANDARD, 90, 4))
    waiting(world, make_request(12, STANDARD, 15, 40))
    assert entered(admit(world, now=2.0)) == set()


def test_the_last_block_is_for_whoever_needs_no_more() -> None:
    for prompt, expected in ((10, {12}), (20, set())):
        world = world_of(6)
        decoding(world, make_request(1, STANDARD, 70, 8))
        fresh(world, 80, prompt)
        residency = admit(world, now=0.5)
        assert entered(residency) == expected
        reasons = {left.request: left.reason for left in residency.notes.passed_over(set())}
    assert reasons[RequestId(12)] == "needs more than the 1 blocks left"
