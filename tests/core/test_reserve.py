"""The reserve: who is promoted, and what a promoted request gets."""

import pytest

from headway.core.config import Reserve, SchedulerConfig
from headway.core.reserve import promote
from headway.core.residency import Residency
from headway.core.types import FinishReason, Lane, ServiceClass, State
from headway.core.world import World
from headway.testing import make_request
from tests.core.worlds import decoding, waiting, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def reserving(reserve: Reserve, kv_blocks: int = 20, max_seqs: int = 8) -> World:
    return world_of(kv_blocks, max_seqs=max_seqs, config=SchedulerConfig(reserve=reserve))


def promote_at(world: World, now: float) -> list[int]:
    """Promote as a plan does; who is promoted then."""
    promote(world, Residency(world, Lane.UNIFIED, now), now)
    return [s.id for s in world.promoted]


def test_the_guard_time_counts_from_the_last_progress() -> None:
    world = reserving(Reserve(guard_s=10.0))
    resident = decoding(world, make_request(1, BATCH, 20))
    resident.progress_s = 5.0
    assert promote_at(world, 14.9) == []
    assert promote_at(world, 15.0) == [1]
    assert promote_at(world, 99.0) == [1], "once is enough"


def test_preempted_often_enough_is_promoted_at_once() -> None:
    world = reserving(Reserve(preemptions=3))
    resident = decoding(world, make_request(1, BATCH, 20))
    resident.preemptions = 2
    assert promote_at(world, 0.0) == []
    resident.preemptions = 3
    assert promote_at(world, 0.0) == [1]


def test_the_longest_stuck_goes_first_and_other_classes_never() -> None:
    world = reserving(Reserve(guard_s=1.0))
    for i, rank in ((1, REALTIME), (2, STANDARD), (3, BATCH), (4, BATCH)):
        decoding(world, make_request(i, rank, 20)).progress_s = 10.0 - i
    assert promote_at(world, 20.0) == [4]


@pytest.mark.parametrize("reserve", [Reserve(share=0.0, guard_s=0.0), Reserve(seats=0, guard_s=0)])
def test_without_a_reserve_nobody_is_promoted(reserve: Reserve) -> None:
    world = reserving(reserve)
    waiting(world, make_request(1, BATCH, 20))
    assert promote_at(world, 99.0) == []


def test_a_second_one_has_to_fit_beside_the_first() -> None:
    """A fifth of 20 blocks are 4: the first holds 2, so that 3 are too many."""
    world = reserving(Reserve(share=0.2, seats=2, guard_s=1.0))
    decoding(world, make_request(1, BATCH, 20))
    waiting(world, make_request(2, BATCH, 40, arrival_s=1.0))
    assert promote_at(world, 50.0) == [1]
    world.leave(world.promoted[0], FinishReason.ABORT)
    assert promote_at(world, 50.0) == [2]
    waiting(world, make_request(3, BATCH, 15, arrival_s=2.0))
    assert promote_at(world, 50.0) == [2, 3]


def test_one_larger_than_the_reserve_is_taken_alone() -> None:
    world = reserving(Reserve(share=0.05, seats=2, guard_s=1.0))
    waiting(world, make_request(1, BATCH, 100))
    waiting(world, make_request(2, BATCH, 15, arrival_s=1.0))
    assert promote_at(world, 50.0) == [1]


def test_what_is_free_goes_to_the_promoted_first() -> None:
    world = reserving(Reserve(guard_s=1.0))
    first = waiting(world, make_request(1, BATCH, 20))
    assert promote_at(world, 50.0) == [1]
    assert first.state is State.RUNNING


def test_a_promoted_resident_gets_its_seat_back_as_soon_as_there_is_one() -> None:
    world = reserving(Reserve(guard_s=1.0), max_seqs=1)
    above = decoding(world, make_request(1, REALTIME, 20))
    batch = decoding(world, make_request(2, BATCH, 20))
    world.roster.unseat(batch)
    assert promote_at(world, 50.0) == [2]
    assert not batch.seated
    world.leave(above, FinishReason.LENGTH)
    promote_at(world, 51.0)
    assert batch.seated


@pytest.mark.parametrize(("prompt", "seated"), [(180, True), (100, False)])
def test_a_promoted_request_keeps_a_seat_only_from_whom_it_does_not_wait_for(
    prompt: int, seated: bool
) -> None:
    """It lacks blocks that a paused resident holds: without a seat that one would never end."""
    world = reserving(Reserve(guard_s=1.0), max_seqs=1)
    paused = decoding(world, make_request(1, STANDARD, 150))
    above = decoding(world, make_request(2, REALTIME, 20)) if not seated else None
    world.roster.unseat(paused)
    waiting(world, make_request(3, BATCH, prompt))
    assert promote_at(world, 50.0) == [3]
    if above is not None:
        world.leave(above, FinishReason.LENGTH)
    assert Residency(world, Lane.UNIFIED, 51.0).try_seat(paused) is seated
