"""Pictures of the scheduler: each block with its holder, each request with its place."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.config import SchedulerConfig
from headway.core.picture import MOST_WAITING, Holder, Picture, Place
from headway.core.plan import Capacity
from headway.core.scheduler import Scheduler
from headway.core.types import RequestId, ServiceClass
from headway.testing import (
    LinearDuration,
    ManualClock,
    ScriptedExecutor,
    Simulation,
    make_capacity,
    make_request,
)

BATCH, REALTIME = ServiceClass.BATCH, ServiceClass.REALTIME


def simulation(capacity: Capacity) -> Simulation:
    clock = ManualClock()
    executor = ScriptedExecutor(capacity, duration=LinearDuration(), clock=clock)
    return Simulation(Scheduler(capacity, SchedulerConfig()), executor, clock)


def check_against_snapshot(sim: Simulation) -> Picture:
    """Holders and places, counted, are what the snapshot says."""
    picture, snapshot = sim.scheduler.picture(), sim.scheduler.snapshot()
    for holders, tier in ((picture.device, snapshot.device), (picture.host, snapshot.host)):
        assert len(holders) == tier.total
        assert holders.count(Holder.FREE) == tier.free
        assert holders.count(Holder.CACHED) == tier.cached
    for service_class, counts in snapshot.classes.items():
        mine = [s.place for s in picture.sequences if s.service_class is service_class]
        for place in Place:
            assert mine.count(place) == getattr(counts, place.name.lower())
    known = {s.request for s in picture.sequences}
    assert {h for h in (*picture.device, *picture.host) if h >= 0} <= known
    for view in picture.sequences:
        tier_of = picture.host if view.place is Place.SWAPPED else picture.device
        assert tier_of.count(view.request) <= view.blocks  # shared ones show their senior holder
    return picture


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    classes=st.lists(st.sampled_from(ServiceClass), min_size=12, max_size=12),
    host_blocks=st.sampled_from([0, 12]),
)
def test_a_picture_agrees_with_the_snapshot(
    lengths: list[int], classes: list[ServiceClass], host_blocks: int
) -> None:
    sim = simulation(make_capacity(kv_blocks=12, host_blocks=host_blocks, max_seqs=4))
    for i, length in enumerate(lengths):
        sim.add(make_request(i, classes[i], prompt=length, max_tokens=20, arrival_s=i * 0.02))
    for _ in range(40):
        sim.step()
        check_against_snapshot(sim)


def test_who_holds_what() -> None:
    sim = simulation(make_capacity(kv_blocks=8, host_blocks=8, max_seqs=2))
    sim.add(make_request(0, BATCH, prompt=64, max_tokens=30))
    sim.step()
    picture = check_against_snapshot(sim)
    assert picture.device.count(0) == picture.sequences[0].blocks == 5
    assert picture.last is not None and picture.last.computed[0].request == 0
    sim.add(make_request(1, REALTIME, prompt=100, max_tokens=2, arrival_s=sim.clock()))
    sim.step()
    picture = check_against_snapshot(sim)
    assert picture.device.count(1) == 7
    views = {view.request: view for view in picture.sequences}
    batch = views[RequestId(0)]
    assert (batch.place, batch.preemptions) == (Place.SWAPPED, 1)
    assert picture.host.count(0) == batch.blocks > 0


def test_of_those_that_wait_only_the_first_are_shown() -> None:
    sim = simulation(make_capacity())
    for i in range(MOST_WAITING + 50):
        sim.add(make_request(i, BATCH))
    views = sim.scheduler.picture().sequences
    assert [view.request for view in views] == list(range(MOST_WAITING))
