"""Whom to take blocks from, and whether to swap or to recompute them.

A victim's gain is the number of blocks whose last reference it holds; its cost is the cheaper of
copying its KV cache out and back and of computing it again. Victims go by cost per block that is
missing.

Nothing here needs our own pool and sequences: another host of the policy brings its own holders.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headway.core.blocks import BlockPool
from headway.core.sequence import Sequence, blocks_for
from headway.core.step_model import StepModel
from headway.core.types import BlockId, PreemptKind


class Holder(Protocol):
    """Whoever holds blocks. `number` is the order of arrival: of equals, the latest goes."""

    @property
    def blocks(self) -> Seq[BlockId]:
        """Blocks held, each once, in the order of their tokens."""
        ...

    @property
    def number(self) -> int:
        """Order of arrival."""
        ...


class References(Protocol):
    """Who else holds a block."""

    @property
    def shared(self) -> int:
        """Blocks with more than one reference."""
        ...

    def references(self, block: BlockId) -> int:
        """How many hold the block."""
        ...


H = TypeVar("H", bound=Holder)


@dataclass(frozen=True, slots=True)
class CopyRates:
    """Measured seconds to copy one block each way."""

    out_s: float
    in_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What giving up a sequence's blocks costs, in seconds, by the cheaper way."""

    kind: PreemptKind
    seconds: float


def preemption_cost(
    sequence: Sequence, pool: BlockPool, rates: CopyRates, model: StepModel, host_free: int
) -> Cost:
    """Swap or recompute, whichever costs less; recompute if the host pool has no room.

    Blocks that others hold too stay in the cache, so a recompute finds them again.
    """
    tokens = uncached_tokens(sequence.blocks, sequence.computed, sequence.block_size, pool)
    blocks = len(used_blocks(sequence))
    return cheaper_way(blocks, model.prefill_seconds(tokens), rates, host_free)


def cheaper_way(blocks: int, recompute_s: float, rates: CopyRates, host_free: int) -> Cost:
    """Copying `blocks` out and back, or computing them again in `recompute_s` seconds; recompute
    where both cost the same, or where the host has fewer than `blocks` free."""
    swap_s = blocks * (rates.out_s + rates.in_s)
    if blocks and blocks <= host_free and swap_s < recompute_s:
        return Cost(PreemptKind.SWAP, swap_s)
    return Cost(PreemptKind.RECOMPUTE, recompute_s)


def uncached_tokens(
    blocks: Iterable[BlockId], computed: int, block_size: int, pool: References
) -> int:
    """Computed tokens not covered by leading blocks that somebody else holds too."""
    shared = 0
    for block in blocks:
        if pool.references(block) < 2:
            break
        shared += 1
    return max(computed - shared * block_size, 0)


def used_blocks(sequence: Sequence) -> list[BlockId]:
    """The blocks of a sequence that hold computed KV: what a swap has to copy."""
    return sequence.blocks[: blocks_for(sequence.computed, sequence.block_size)]


class _Gains:
    """Blocks gained by candidates as more of them are chosen: shared blocks count with the last."""

    def __init__(self, candidates: Iterable[Holder], pool: References) -> None:
        self._pool = pool
        self._dropped: dict[BlockId, int] = {}
        self._shared: dict[Holder, list[BlockId]] = {s: [] for s in candidates}
        if pool.shared:
            references = pool.references
            for sequence, shared in self._shared.items():
                shared += [b for b in sequence.blocks if references(b) > 1]

    def of(self, sequence: Holder) -> int:
        """Blocks that become available if this one is chosen next."""
        shared = self._shared[sequence]
        last = sum(1 for b in shared if self._pool.references(b) - self._dropped.get(b, 0) == 1)
        return len(sequence.blocks) - len(shared) + last

    def choose(self, sequence: Holder) -> int:
        """Count the candidate as chosen; its gain."""
        gained = self.of(sequence)
        for block in self._shared[sequence]:
            self._dropped[block] = self._dropped.get(block, 0) + 1
        return gained


def total_gain(candidates: Iterable[Holder], pool: References) -> int:
    """Blocks that become available if all of the candidates give up theirs."""
    chosen = list(candidates)
    gains = _Gains(chosen, pool)
    return sum(gains.choose(s) for s in chosen)


def choose(costs: dict[H, float], shortage: int, pool: References) -> list[H] | None:
    """Victims among `costs` (seconds) whose blocks cover `shortage`, cheapest per missing
    block first; None if all of them do not.

    Those that turn out not to be needed, once dearer ones had to be taken, are left alone.
    """
    gains = _Gains(costs, pool)
    left = dict(costs)
    chosen: list[H] = []
    gained = 0
    while gained < shortage and left:
        missing = shortage - gained
        best = min(left, key=lambda s: (_per_block(left[s], gains.of(s), missing), -s.number))
        gained += gains.choose(best)
        chosen.append(best)
        del left[best]
    return _prune(chosen, shortage, pool) if gained >= shortage else None


def _per_block(cost_s: float, blocks: int, missing: int) -> float:
    """Blocks beyond those missing are worth nothing: a dear victim with many is not cheap."""
    return cost_s / min(blocks, missing) if blocks else float("inf")


def _prune(chosen: list[H], shortage: int, pool: References) -> list[H]:
    kept = list(chosen)
    for sequence in chosen[:-1]:
        rest = [s for s in kept if s is not sequence]
        if total_gain(rest, pool) >= shortage:
            kept = rest
    return kept
