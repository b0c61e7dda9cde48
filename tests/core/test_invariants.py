"""The checks that other tests lean on find what they are there for."""

from collections.abc import Callable

import pytest

from headway.core.blocks import BlockPool
from headway.core.config import SchedulerConfig
from headway.core.invariants import check
from headway.core.scheduler import Scheduler
from headway.core.sequence import Sequence
from headway.core.states import move
from headway.core.types import BlockId, Lane, PreemptKind, RequestId, ServiceClass, State
from headway.core.world import World
from headway.testing import make_capacity, make_request
from tests.core.worlds import decoding, waiting

BATCH = ServiceClass.BATCH


def machine() -> tuple[Scheduler, dict[State, Sequence]]:
    """A sound scheduler with a request in each live state: 1 waits, 2 runs, 3 is swapped."""
    scheduler = Scheduler(make_capacity(host_blocks=8, max_seqs=2), SchedulerConfig())
    world = scheduler._world
    fresh = waiting(world, make_request(1, BATCH, 20))
    running, swapped = (decoding(world, make_request(i, BATCH, 40)) for i in (2, 3))
    world.preempt(swapped, PreemptKind.SWAP, Lane.UNIFIED)
    world.hold(_child(world), fresh.id)
    check(scheduler)
    return scheduler, {State.WAITING: fresh, State.RUNNING: running, State.SWAPPED: swapped}


def _child(world: World) -> Sequence:
    """A further choice of request 1, in no queue."""
    child = waiting(world, make_request(4, BATCH, 20, group=1))
    world.queues[BATCH].remove(child)
    return child


def too_many_seats(world: World, requests: dict[State, Sequence]) -> None:
    for i in (5, 6, 7):
        decoding(world, make_request(i, BATCH, 20))


def no_resident(world: World, requests: dict[State, Sequence]) -> None:
    world.roster.remove(requests[State.RUNNING])


def out_of_order(world: World, requests: dict[State, Sequence]) -> None:
    for i in (5, 6):
        decoding(world, make_request(i, ServiceClass.STANDARD, 20)).admission_step = -i
    world.capacity = make_capacity(max_seqs=8)


def tokens_miscounted(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.RUNNING].most_tokens += 1


def seat_miscounted(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.RUNNING].seated = False


def neither_row_nor_prompt(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.RUNNING].decoding = False


def computed_beyond_its_blocks(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.RUNNING].has_computed(49)


def more_blocks_than_there_are(world: World, requests: dict[State, Sequence]) -> None:
    running = requests[State.RUNNING]
    extra = [running.blocks[0]] * world.capacity.kv_blocks
    world.device.acquire(extra)
    running.blocks += extra


def a_seat_without_blocks(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.SWAPPED].seated = True


def kv_lost(world: World, requests: dict[State, Sequence]) -> None:
    world.drop_host(requests[State.SWAPPED])


def kv_while_it_waits(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.WAITING].computed = 1


def nothing_to_compute(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.RUNNING].computed += 1


def forgotten(world: World, requests: dict[State, Sequence]) -> None:
    world.queues[BATCH].remove(requests[State.SWAPPED])


def held_for_nobody(world: World, requests: dict[State, Sequence]) -> None:
    world.queues[BATCH].remove(requests[State.WAITING])
    world.hold(requests[State.WAITING], RequestId(99))


def leaked(world: World, requests: dict[State, Sequence]) -> None:
    requests[State.RUNNING].blocks.pop()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (too_many_seats, "2 seats too many"),
        (out_of_order, "standard residents are out of order"),
        (tokens_miscounted, "batch residents' most tokens"),
        (seat_miscounted, "seats are miscounted"),
        (neither_row_nor_prompt, "request 2 .running. decodes, or not"),
        (no_resident, "residents are not exactly"),
        (computed_beyond_its_blocks, "request 2 .running. has computed more"),
        (more_blocks_than_there_are, "request 2 .running. holds more than the pool"),
        (a_seat_without_blocks, "request 3 .swapped. holds device blocks or a seat"),
        (kv_lost, "request 3 .swapped. has lost"),
        (kv_while_it_waits, "request 1 .waiting. has KV"),
        (nothing_to_compute, "request 2 .running. has nothing left"),
        (forgotten, "3 requests wait, 1 are queued and 1 held"),
        (held_for_nobody, "held for request 99"),
        (leaked, "reference counts"),
    ],
)
def test_damage_is_found(
    damage: Callable[[World, dict[State, Sequence]], None], message: str
) -> None:
    scheduler, requests = machine()
    damage(scheduler._world, requests)
    with pytest.raises(RuntimeError, match=message):
        check(scheduler)


def pool_with_one_cached() -> tuple[BlockPool, list[BlockId]]:
    """Blocks 0 to 3: two held, one of prefix cache, one free."""
    pool = BlockPool(4)
    blocks = pool.allocate(3, Lane.UNIFIED)
    pool.publish(blocks[2], b"digest", [1, 2])
    pool.release(blocks[2:])
    pool.check(blocks[:2])
    return pool, blocks


def test_a_pool_knows_its_holders() -> None:
    pool, blocks = pool_with_one_cached()
    with pytest.raises(RuntimeError, match=r"differ from holders at blocks \[1\]"):
        pool.check(blocks[:1])
    with pytest.raises(RuntimeError, match="released once too often"):
        pool.release([blocks[0], blocks[0]])


def test_a_pool_knows_the_state_of_each_block() -> None:
    pool, blocks = pool_with_one_cached()
    pool._free.append(blocks[2])
    with pytest.raises(RuntimeError, match="in no state, or in two"):
        pool.check(blocks[:2])
    pool._free = []
    with pytest.raises(RuntimeError, match="in no state, or in two"):
        pool.check(blocks[:2])


def test_a_pool_knows_what_it_shares() -> None:
    pool, blocks = pool_with_one_cached()
    pool.acquire(blocks[:1])
    pool.check([*blocks[:2], blocks[0]])
    pool.shared = 0
    with pytest.raises(RuntimeError, match="should be shared"):
        pool.check([*blocks[:2], blocks[0]])


def test_a_pool_knows_its_prefix_index() -> None:
    pool, blocks = pool_with_one_cached()
    pool._digests[blocks[0]] = b"other"
    with pytest.raises(RuntimeError, match="index and digests differ"):
        pool.check(blocks[:2])
    pool, blocks = pool_with_one_cached()
    pool._digests, pool._index = {}, {}
    with pytest.raises(RuntimeError, match="cached block has no digest"):
        pool.check(blocks[:2])


def test_states_change_by_the_table_alone() -> None:
    _, requests = machine()
    fresh = requests[State.WAITING]
    with pytest.raises(RuntimeError, match="waiting -> swapped is not a transition"):
        move(fresh, State.SWAPPED)
    move(fresh, State.FINISHED)
    for state in State:
        with pytest.raises(RuntimeError, match="request 1: finished -> "):
            move(fresh, state)
