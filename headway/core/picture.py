"""A picture of the scheduler in detail, for people who watch: every block, and who is where.

Made when asked for, between two steps; it shares nothing that changes with the scheduler.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from headway.core.blocks import BlockPool
from headway.core.plan import Capacity
from headway.core.record import StepRecord
from headway.core.sequence import Sequence
from headway.core.types import BlockId, RequestId, ServiceClass, State
from headway.core.world import World

MOST_WAITING = 200
"""Waiting requests in a picture, in order of arrival; a snapshot counts all of them."""


class Holder(IntEnum):
    """What stands for a block that no sequence holds; ids of requests are from 0."""

    FREE = -1
    CACHED = -2
    COPYING = -3


class Place(IntEnum):
    """Where a request is: RUNNING computes in the last step, PAUSED only keeps its blocks."""

    WAITING = 0
    RUNNING = 1
    PAUSED = 2
    SWAPPED = 3


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One live request.

    length: tokens of its prompt, `generated` so far, and how many have their KV `computed`.
    blocks: that it holds on the device, or on the host while swapped.
    """

    request: RequestId
    service_class: ServiceClass
    place: Place
    length: int
    computed: int
    generated: int
    blocks: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The pools block by block, the sequences, and the last plan.

    device, host: for each block the request that holds it, the most senior of those that share it,
        or a `Holder`.
    sequences: residents, then swapped ones, then the first that wait.
    last: None before the first step, and where no records are kept.
    """

    step: int
    capacity: Capacity
    device: tuple[int, ...]
    host: tuple[int, ...]
    sequences: tuple[SequenceView, ...]
    last: StepRecord | None


def take_picture(world: World, last: StepRecord | None) -> Picture:
    """The world as it is. Takes time in proportion to blocks and residents."""
    residents = sorted(world.residents.values(), key=lambda s: s.seniority)
    queued = [s for s in world.live.values() if s.state is not State.RUNNING]
    swapped = [s for s in queued if s.state is State.SWAPPED]
    waiting = islice((s for s in queued if s.state is State.WAITING), MOST_WAITING)
    return Picture(
        step=world.step,
        capacity=world.capacity,
        device=_holders(world.device, ((s, s.blocks) for s in reversed(residents))),
        host=_holders(world.host, ((s, s.host_blocks) for s in (*residents, *swapped))),
        sequences=tuple(_view(s, world.latest_steps) for s in (*residents, *swapped, *waiting)),
        last=last,
    )


def _holders(pool: BlockPool, held: Iterable[tuple[Sequence, list[BlockId]]]) -> tuple[int, ...]:
    """Later holders are written over earlier ones. What is used and held by nobody is being
    copied for one that left."""
    holders: list[int] = [Holder.COPYING] * pool.total
    for block in pool.free_blocks:
        holders[block] = Holder.FREE
    for block in pool.cached_blocks:
        holders[block] = Holder.CACHED
    for sequence, blocks in held:
        for block in blocks:
            holders[block] = sequence.id
    return tuple(map(int, holders))


def _view(sequence: Sequence, latest: Set[int]) -> SequenceView:
    match sequence.state:
        case State.RUNNING:
            place = Place.RUNNING if sequence.last_step in latest else Place.PAUSED
        case State.SWAPPED:
            place = Place.SWAPPED
        case _:
            place = Place.WAITING
    return SequenceView(
        sequence.id,
        sequence.service_class,
        place,
        len(sequence.tokens),
        sequence.computed,
        sequence.generated,
        len(sequence.blocks) or len(sequence.host_blocks),
        sequence.preemptions,
    )
