"""The reserve: which batch request is promoted. A promoted one is not displaced any more."""

from collections.abc import Callable, Sequence

from headway.core.config import Reserve
from headway_vllm.members import Member


def promote(
    stuck: Sequence[Member],
    promoted: Sequence[Member],
    reserve: Reserve,
    blocks: Callable[[Member], int],
    pool_blocks: int,
    now_s: float,
) -> list[Member]:
    """Those of `stuck` that deserve it and find room in the reserve, longest without progress
    first. `blocks`: what a request holds or needs. Changes nothing."""
    if reserve.share <= 0 or len(promoted) >= reserve.seats:
        return []
    chosen: list[Member] = []
    for member in sorted(stuck, key=lambda m: (m.progress_s, m.number)):
        deserves = reserve.deserves(now_s - member.progress_s, member.preemptions)
        held = [blocks(m) for m in (*promoted, *chosen)]
        if deserves and not member.promoted and reserve.has_room(held, blocks(member), pool_blocks):
            chosen.append(member)
    return chosen
