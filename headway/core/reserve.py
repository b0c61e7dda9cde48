"""The reserve: the one protection of batch requests from the classes above.

A promoted request gets the next blocks and the next seat that come free, and is not displaced
after that. The reserve is a cap on what promoted requests hold; nothing is kept empty for it.
"""

from headway.core.residency import Residency
from headway.core.sequence import Sequence
from headway.core.types import ServiceClass, State
from headway.core.world import World


def promote(world: World, residency: Residency, now: float) -> None:
    """Promote the batch request that lacks progress longest, if the reserve has room, and let
    promoted requests take what is free before anyone else."""
    reserve = world.config.reserve
    if reserve.share > 0 and len(world.promoted) < reserve.seats:
        for sequence in _deserving(world, now):
            if _has_room(world, sequence):
                world.promote(sequence)
    for sequence in residency.waiting_promoted():
        residency.try_enter(sequence)
    for sequence in world.promoted:
        if sequence.state is State.RUNNING and not sequence.seated:
            residency.try_seat(sequence)


def _deserving(world: World, now: float) -> list[Sequence]:
    """Batch requests that may be promoted, those without progress longest first. Of the waiting
    ones only the oldest counts."""
    queue, reserve = world.queues[ServiceClass.BATCH], world.config.reserve
    oldest = queue.oldest()
    fresh = [oldest] if oldest else []
    stuck = [
        s
        for s in (*world.by_seniority(ServiceClass.BATCH), *queue.resumed(), *fresh)
        if reserve.deserves(now - s.progress_s, s.preemptions) and not s.promoted
    ]
    return sorted(stuck, key=lambda s: (s.progress_s, s.number))


def _has_room(world: World, sequence: Sequence) -> bool:
    held = [_blocks(world, s) for s in world.promoted]
    wanted = _blocks(world, sequence)
    return world.config.reserve.has_room(held, wanted, world.capacity.kv_blocks)


def _blocks(world: World, sequence: Sequence) -> int:
    return len(sequence.blocks) or world.total_blocks(sequence)
