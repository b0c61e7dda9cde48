"""Who waits in which order: resumed before fresh, tenants by service, sizes by arrival."""

from collections.abc import Iterable

from headway.core.queues import ClassQueue, TenantCounters
from headway.core.sequence import Sequence
from headway.core.types import FinishReason, Lane, PreemptKind, ServiceClass
from headway.testing import make_request
from tests.core.worlds import decoding, waiting, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def ids(sequences: Iterable[Sequence]) -> list[int]:
    return [s.id for s in sequences]


def test_a_tenant_saves_up_no_service_by_idling() -> None:
    counters = TenantCounters()
    counters.charge("a", 100)
    counters.charge("b", 40)
    counters.lift("c", ["a", "b"])
    assert counters.served("c") == 40
    counters.charge("b", 100)
    counters.lift("b", ["a", "b", "c"])
    assert counters.served("b") == 140, "who was served more stays where it is"
    counters.lift("d", [])
    assert counters.served("d") == counters.served("nobody") == 0


def test_heads_are_the_oldest_of_each_size_smallest_first() -> None:
    world = world_of(kv_blocks=64)
    for i, prompt in ((1, 200), (2, 20), (3, 20), (4, 210), (5, 60)):
        waiting(world, make_request(i, STANDARD, prompt))
    queue = world.queues[STANDARD]
    assert ids(queue.candidates()) == [2, 5, 1]
    assert [s.id for s in (queue.head(), queue.oldest()) if s] == [1, 1]
    assert ids(queue.leading(1)) == [1, 2, 5]
    assert sorted(ids(queue.leading(2))) == [1, 2, 3, 4, 5]
    assert (len(queue), dict(queue.fresh_by_class())) == (5, {STANDARD: 5})


def test_the_head_of_the_line_belongs_to_the_tenant_served_least() -> None:
    world = world_of()
    for i, tenant in ((1, "a"), (2, "b"), (3, "b")):
        waiting(world, make_request(i, STANDARD, 20, tenant=tenant))
    queue = world.queues[STANDARD]
    assert ids(queue.candidates()) == [1, 2], "equals by name"
    queue.counters.charge("a", 10)
    head, oldest = queue.head(), queue.oldest()
    assert head and head.id == 2
    assert oldest and oldest.id == 1
    assert ids(queue.candidates()) == [2, 1]


def test_who_left_is_passed_by_and_forgotten() -> None:
    world = world_of()
    first, second, third = (waiting(world, make_request(i, STANDARD, 20)) for i in (1, 2, 3))
    queue = world.queues[STANDARD]
    world.leave(second, FinishReason.ABORT)
    assert ids(queue.leading(3)) == [1, 3]
    world.leave(first, FinishReason.ABORT)
    assert ids(queue.candidates()) == [3]
    world.leave(third, FinishReason.ABORT)
    assert (queue.head(), queue.oldest(), queue.candidates(), len(queue)) == (None, None, [], 0)
    assert queue.fresh_by_class()[STANDARD] == 0


def test_preempted_work_is_resumed_most_senior_first_and_is_not_fresh() -> None:
    world = world_of()
    members = [decoding(world, make_request(i, BATCH, 20)) for i in (1, 2, 3)]
    for sequence, kind in zip(reversed(members), (*PreemptKind, PreemptKind.SWAP), strict=True):
        world.preempt(sequence, kind, Lane.UNIFIED)
    queue = world.queues[BATCH]
    assert ids(queue.resumed()) == ids(queue.leading(1)) == [1, 2, 3]
    assert queue.candidates() == []
    world.leave(members[1], FinishReason.ABORT)
    assert ids(queue.resumed()) == [1, 3]
    assert len(queue) == 2


def test_a_choice_set_free_late_may_be_the_oldest() -> None:
    """It has waited for its group's first all along."""
    world = world_of()
    queue = world.queues[STANDARD]
    later = waiting(world, make_request(5, STANDARD, 20))
    assert queue.oldest() is later
    child = waiting(world, make_request(3, STANDARD, 20))
    waiting(world, make_request(7, STANDARD, 20))
    assert queue.oldest() is child
    world.leave(child, FinishReason.ABORT)
    assert queue.oldest() is later


def test_an_empty_queue_has_nobody() -> None:
    queue = ClassQueue()
    assert (queue.head(), queue.oldest(), queue.leading(3), len(queue)) == (None, None, [], 0)


def test_those_who_leave_behind_a_head_that_stays_are_forgotten() -> None:
    world = world_of()
    head = waiting(world, make_request(1, BATCH, 100))
    for i in range(2, 502):
        world.leave(waiting(world, make_request(i, BATCH, 100)), FinishReason.ABORT)
    last = waiting(world, make_request(600, BATCH, 100))
    queue = world.queues[BATCH]
    assert queue.leading(9) == [head, last]
    assert sum(len(heap) for sizes in queue._fresh.values() for heap in sizes.values()) < 100
