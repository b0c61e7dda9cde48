"""Entering, growing and displacing: what it costs the others, and what it must not cost them."""

from collections.abc import Callable

import pytest

from headway.core.residency import Residency
from headway.core.sequence import Sequence
from headway.core.types import Lane, PreemptKind, ServiceClass, State
from headway.core.world import World
from headway.testing import make_request
from tests.core.helpers import assert_oracle, simulate, trace
from tests.core.worlds import decoding, waiting, world_of

REALTIME, STANDARD, BATCH = ServiceClass


def test_nobody_is_displaced_for_a_request_that_reads_their_prefix_and_then_does_not_fit() -> None:
    """Four of the seven blocks that request 3 needs are held by request 2 alone: displacing it
    leaves six for seven."""
    simulation = simulate(kv_blocks=8)
    prompt = tuple(range(200, 266))
    simulation.add(make_request(2, BATCH, prompt, 14))
    simulation.step()
    simulation.add(make_request(1, REALTIME, 16, 16))
    simulation.step()
    simulation.add(
        make_request(3, REALTIME, (*prompt, *range(30)), 4, arrival_s=simulation.clock())
    )
    simulation.run()
    assert not trace(simulation, 2).preempted
    assert_oracle(simulation)


def three_that_fill_the_pool(world: World) -> list[Sequence]:
    """Batch residents of one block each, the most senior first."""
    return [decoding(world, make_request(i, BATCH, 15)) for i in (1, 2, 3)]


def test_growth_takes_the_least_senior_until_it_has_enough() -> None:
    world = world_of(kv_blocks=3)
    senior, middle, junior = three_that_fill_the_pool(world)
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    assert residency.grow(senior, 16)
    assert not residency.preempted
    share = world.measured.caution.share
    assert residency.grow(senior, 48)
    assert [e.request for e in residency.notes.evicted] == [3, 2]
    assert (len(senior.blocks), middle.blocks, junior.blocks) == (3, [], [])
    assert world.measured.caution.share > share


def test_growth_takes_nobody_if_that_is_not_enough() -> None:
    world = world_of(kv_blocks=3)
    senior, middle, junior = three_that_fill_the_pool(world)
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    assert not residency.grow(middle, 48)
    assert not residency.grow(junior, 32)
    assert not residency.preempted
    assert set(world.residents.values()) == {senior, middle, junior}


def promoted(world: World, residency: Residency, sequence: Sequence) -> None:
    world.promote(sequence)


def just_resumed(world: World, residency: Residency, sequence: Sequence) -> None:
    sequence.protected_until = sequence.computed + 1


def in_flight(world: World, residency: Residency, sequence: Sequence) -> None:
    sequence.in_flight = True


def just_entered(world: World, residency: Residency, sequence: Sequence) -> None:
    residency.entered[sequence] = None


Shield = Callable[[World, Residency, Sequence], None]


@pytest.mark.parametrize("shield", [promoted, just_resumed, in_flight, just_entered])
def test_whom_growth_leaves_alone(shield: Shield) -> None:
    world = world_of(kv_blocks=2)
    senior, junior = (decoding(world, make_request(i, BATCH, 15)) for i in (1, 2))
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    shield(world, residency, junior)
    assert not residency.grow(senior, 32)
    assert junior.state is State.RUNNING


@pytest.mark.parametrize(
    ("shield", "taken"),
    [(promoted, True), (just_resumed, True), (in_flight, False), (just_entered, False)],
)
def test_whom_growth_takes_when_nobody_could_compute(shield: Shield, taken: bool) -> None:
    world = world_of(kv_blocks=2)
    senior, junior = (decoding(world, make_request(i, BATCH, 15)) for i in (1, 2))
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    shield(world, residency, junior)
    assert residency.grow_at_any_cost(senior, 32) is taken
    assert (junior.state is State.RUNNING) is not taken


def test_growth_at_any_cost_takes_no_more_than_it_needs() -> None:
    world = world_of(kv_blocks=4)
    senior, middle, junior = three_that_fill_the_pool(world)
    for sequence in (middle, junior):
        sequence.protected_until = 100
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    assert residency.grow_at_any_cost(senior, 32)
    assert not residency.preempted
    assert residency.grow_at_any_cost(senior, 48)
    assert set(residency.preempted) == {junior}
    assert residency.grow_at_any_cost(senior, 64)
    assert set(residency.preempted) == {junior, middle}


def test_growth_at_any_cost_takes_as_many_as_it_needs() -> None:
    world = world_of(kv_blocks=3)
    senior, middle, junior = three_that_fill_the_pool(world)
    for sequence in (middle, junior):
        world.promote(sequence)
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    world.promote(senior)
    assert residency.grow_at_any_cost(senior, 48)
    assert [e.request for e in residency.notes.evicted] == [3, 2]


def test_victims_in_flight_elsewhere_are_wanted_and_taken_when_they_land() -> None:
    """Of two in flight on the decode lane, the one whose blocks are needed is not planned again."""
    world = world_of(kv_blocks=6, host_blocks=0)
    held = [decoding(world, make_request(i, BATCH, 40)) for i in (1, 2)]
    for sequence in held:
        sequence.in_flight = True
    newcomer = waiting(world, make_request(9, REALTIME, 40))
    assert not Residency(world, Lane.PREFILL, now=1.0).try_enter(newcomer)
    assert [s.wanted_by for s in held] == [None, Lane.PREFILL]
    Residency(world, Lane.DECODE, now=1.5)
    assert [s.wanted_by for s in held] == [None, Lane.PREFILL], "the other lane's plans keep it"
    held[1].in_flight = False
    residency = Residency(world, Lane.PREFILL, now=2.0)
    assert residency.try_enter(newcomer)
    assert set(residency.preempted) == {held[1]}


def test_without_a_seat_nobody_enters_however_many_blocks_are_free() -> None:
    world = world_of(max_seqs=1)
    decoding(world, make_request(1, STANDARD, 20))
    newcomer = waiting(world, make_request(2, STANDARD, 20))
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    assert not residency.try_enter(newcomer)
    assert not residency.enter_if_free(newcomer)
    passed = residency.notes.passed_over(set())
    assert [left.request for left in passed] == [2]
    assert passed[0].reason.endswith("0 seats free")


def test_only_victims_in_flight_are_wanted() -> None:
    """Request 2 can be taken at any time, once those in flight have landed."""
    world = world_of(kv_blocks=6, host_blocks=0)
    flying, idle = (decoding(world, make_request(i, BATCH, 40)) for i in (1, 2))
    flying.in_flight = True
    newcomer = waiting(world, make_request(9, REALTIME, 90))
    assert not Residency(world, Lane.PREFILL, now=1.0).try_enter(newcomer)
    assert (flying.wanted_by, idle.wanted_by) == (Lane.PREFILL, None)


def test_nobody_is_wanted_where_nobody_is_in_flight() -> None:
    world = world_of(kv_blocks=6, host_blocks=0)
    idle = decoding(world, make_request(1, BATCH, 20))
    world.promote(idle)
    lower = decoding(world, make_request(2, BATCH, 40))
    newcomer = waiting(world, make_request(9, REALTIME, 90))
    assert not Residency(world, Lane.PREFILL, now=1.0).try_enter(newcomer)
    assert lower.wanted_by is None


def test_a_mark_ends_with_its_resident() -> None:
    """Preempted by another lane first, and back again: nobody wants it now."""
    world = world_of(kv_blocks=6)
    resident = decoding(world, make_request(1, BATCH, 40))
    world.roster.want(resident, Lane.PREFILL)
    world.preempt(resident, PreemptKind.RECOMPUTE, Lane.DECODE)
    assert Residency(world, Lane.DECODE, now=1.0).lane is Lane.DECODE
    world.enter(resident, Lane.UNIFIED, 1.0)
    assert resident.wanted_by is None


def test_the_seat_of_a_victim_is_its_displacers() -> None:
    """A promoted request waits for the next seat that comes free; displacing frees none."""
    world = world_of(kv_blocks=6, max_seqs=2)
    decoding(world, make_request(1, REALTIME, 15))
    victim = decoding(world, make_request(2, BATCH, 40), generated=8)
    world.promote(waiting(world, make_request(3, BATCH, 15)))
    newcomer = waiting(world, make_request(4, REALTIME, 40))
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    assert residency.try_enter(newcomer)
    assert newcomer.seated
    assert victim.state is not State.RUNNING
    assert world.seats_free == 0


def test_a_victim_whose_prefix_is_read_is_worth_less() -> None:
    """Three blocks are missing, and request 1 has three at the least cost. But two of them are the
    prefix of the newcomer: without them it lacks five."""
    world = world_of(kv_blocks=8, host_blocks=0)
    prompt = tuple(range(300, 348))
    decoding(world, make_request(1, BATCH, prompt[:40]))
    dear = decoding(world, make_request(2, BATCH, 72))
    newcomer = waiting(world, make_request(4, REALTIME, (*prompt, *range(20))))
    residency = Residency(world, Lane.UNIFIED, now=1.0)
    assert world.demand(newcomer, Lane.UNIFIED) == 3
    assert residency.try_enter(newcomer)
    assert set(residency.preempted) == {dear}
    assert len(newcomer.blocks) == 5


def test_what_works_on_another_lane_does_not_enter_here() -> None:
    world = world_of()
    fresh = waiting(world, make_request(1, BATCH, 15))
    residency = Residency(world, Lane.DECODE, now=1.0)
    assert not residency.try_enter(fresh)
    assert not residency.enter_if_free(fresh)
    assert Residency(world, Lane.PREFILL, now=1.0).enter_if_free(fresh)


def test_entering_without_room_changes_nothing() -> None:
    world = world_of(kv_blocks=4)
    decoding(world, make_request(1, BATCH, 20))
    second = waiting(world, make_request(2, BATCH, 50))
    before = world.device.counts()
    with pytest.raises(RuntimeError, match="request 2 does not fit"):
        world.enter(second, Lane.UNIFIED, 1.0)
    assert world.device.counts() == before
    assert second.state is State.WAITING
    assert len(world.queues[BATCH]) == 1
