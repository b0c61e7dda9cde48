"""How many requests are where: each is counted once, in its own class."""

from headway.core.request import ClassCounts
from headway.core.tally import count_classes
from headway.core.types import Lane, PreemptKind, RequestId, ServiceClass
from headway.testing import make_request
from tests.core.worlds import decoding, waiting, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def test_every_live_request_is_counted_once() -> None:
    world = world_of()
    world.step = world.planned[Lane.UNIFIED] = 7
    residents = [decoding(world, make_request(i, BATCH)) for i in range(6)]
    computing, dropped, copied = residents[:2], residents[3], residents[4:]
    for sequence in residents:
        sequence.last_step = 7 if sequence in computing else 6
    world.preempt(dropped, PreemptKind.RECOMPUTE, Lane.UNIFIED)
    for sequence in copied:
        world.preempt(sequence, PreemptKind.SWAP, Lane.UNIFIED)
    for i in (10, 11):
        waiting(world, make_request(i, STANDARD))
    leader = waiting(world, make_request(20, REALTIME))
    for i in (21, 22):
        child = waiting(world, make_request(i, REALTIME, group=20))
        world.queues[REALTIME].remove(child)
        world.hold(child, RequestId(leader.id))
    assert count_classes(world) == {
        REALTIME: ClassCounts(3, 0, 0, 0),
        STANDARD: ClassCounts(2, 0, 0, 0),
        BATCH: ClassCounts(1, 2, 1, 2),
    }
