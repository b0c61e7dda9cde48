"""The record of a plan names everyone and the reason."""

from headway.core.record import Notes
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, PreemptKind, ServiceClass
from headway.testing import LinearDuration, make_request
from tests.core.helpers import simulate
from tests.core.worlds import decoding, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def test_a_displacement_is_explained() -> None:
    simulation = simulate(kv_blocks=12, max_seqs=4, duration=LinearDuration(0.01, 0.01))
    scheduler = simulation.scheduler
    assert isinstance(scheduler, Scheduler)
    for i in (1, 2, 3):
        simulation.add(make_request(i, BATCH, 60, 30))
    for _ in range(3):
        simulation.step()
    waiting = scheduler.records.latest()
    simulation.add(make_request(9, REALTIME, 100, 4, arrival_s=simulation.clock()))
    simulation.step()
    record = scheduler.records.latest()
    assert record is not None
    assert record == scheduler.records.find(record.step)
    assert record.entered == (9,)
    assert {e.wanted_by for e in record.evicted} == {9}
    assert all(e.kind is PreemptKind.SWAP and e.cost_s > 0 for e in record.evicted)
    assert [c.request for c in record.computed if not c.decoding] == [9]
    assert {left.reason for left in record.paused} <= {"realtime waits or prefills"}
    assert waiting is not None
    assert waiting.limit_s == float("inf")


def test_the_reasons_of_those_who_pause() -> None:
    notes = Notes()
    world = world_of()
    members = [decoding(world, make_request(i, BATCH, 20)) for i in (1, 2, 3, 4)]
    world.roster.unseat(members[0])
    members[1].wanted_by = Lane.PREFILL
    notes.paused(members[2], "has no block")
    reasons = [(left.request, left.reason) for left in notes.left_out(members, "was full")]
    assert reasons == [
        (1, "gave its seat to a higher class"),
        (2, "is about to be displaced"),
        (3, "has no block"),
        (4, "was full"),
    ]


def test_who_does_not_fit_is_named_with_figures() -> None:
    simulation = simulate(kv_blocks=8, max_seqs=2)
    scheduler = simulation.scheduler
    assert isinstance(scheduler, Scheduler)
    simulation.add(make_request(1, STANDARD, 100, 4))
    simulation.add(make_request(2, STANDARD, 100, 4))
    simulation.step()
    record = scheduler.records.latest()
    assert record is not None
    assert [left.request for left in record.passed_over] == [2]
    assert record.passed_over[0].reason.startswith("needs 7 blocks: 1 blocks free")
    assert scheduler.records.find(10**6) is None
