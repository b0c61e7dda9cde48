"""KV blocks of both tiers: who holds them, and which full blocks can be found again.

Every block of a tier is in one of three states, and free + used + cached = total always:

    free     holds nothing anyone may read
    used     referenced by at least one sequence, or being copied out for one that left
    cached   referenced by nobody, its contents known by digest: prefix cache, evictable

While a block is being copied out, the lane that copies it holds the reference of the request that
left: nobody writes it, whoever else lets go of it. Only the plan that copies it may give it to
another request, since its copies run first; if that one lets go of it, the lane holds it again.
`settle` ends that.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from headway.core.request import TierCounts
from headway.core.types import BlockId, Lane


class BlockPool:
    """Reference-counted blocks of one tier, with the prefix index over those that are full.

    Blocks without references whose digest is known stay findable until they are evicted, least
    recently released first.

    shared: blocks with more than one reference.
    """

    def __init__(self, total: int) -> None:
        """A pool of `total` free blocks."""
        self.total = total
        self._free: list[BlockId] = [BlockId(i) for i in range(total - 1, -1, -1)]
        self._refs: list[int] = [0] * total
        self.shared = 0
        self._cached: OrderedDict[BlockId, None] = OrderedDict()
        self._copying: dict[Lane, dict[BlockId, int]] = {lane: {} for lane in Lane}
        self._reused: dict[Lane, set[BlockId]] = {lane: set() for lane in Lane}
        self._digests: dict[BlockId, bytes] = {}
        self._contents: dict[BlockId, tuple[int, ...]] = {}
        self._index: dict[bytes, BlockId] = {}

    def available(self, lane: Lane) -> int:
        """Blocks that `allocate` can give a lane: free ones, evictable prefix cache, and those that
        only the lane's own copies still hold."""
        available = len(self._free) + len(self._cached)
        if copying := self._copying[lane]:
            available += sum(1 for b, holds in copying.items() if self._refs[b] == holds)
        return available

    @property
    def in_use(self) -> int:
        """Blocks that are neither free nor cached."""
        return self.total - len(self._free) - len(self._cached)

    def held_by_no_one_but(self, blocks: Iterable[BlockId]) -> int:
        """Blocks that only these holders hold, each listing all of its blocks, and copies under
        way."""
        holds = Counter(blocks)
        for copying in self._copying.values():
            holds.update(copying)
        return sum(1 for block, count in holds.items() if self._refs[block] == count)

    def counts(self) -> TierCounts:
        """Blocks by state."""
        free, cached = len(self._free), len(self._cached)
        return TierCounts(free, self.total - free - cached, cached, self.total)

    @property
    def free_blocks(self) -> Sequence[BlockId]:
        """Blocks that hold nothing."""
        return tuple(self._free)

    @property
    def cached_blocks(self) -> Sequence[BlockId]:
        """Blocks of the prefix cache that nobody holds, the first to be evicted first."""
        return tuple(self._cached)

    def references(self, block: BlockId) -> int:
        """How many sequences hold the block."""
        return self._refs[block]

    def allocate(self, count: int, lane: Lane) -> list[BlockId]:
        """Take `count` blocks with one reference each, evicting prefix cache where needed.

        Raises RuntimeError if fewer are available; nothing is taken then.
        """
        if count > self.available(lane):
            raise RuntimeError(f"{count} blocks wanted, {self.available(lane)} available")
        taken: list[BlockId] = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict(lane)
            self.shared -= self._refs[block] > 1
            self._refs[block] = 1
            taken.append(block)
        return taken

    def acquire(self, blocks: Iterable[BlockId]) -> None:
        """Add a reference to blocks found with `match`."""
        for block in blocks:
            self._refs[block] += 1
            self.shared += self._refs[block] == 2
            self._cached.pop(block, None)

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Drop a reference to each; the last one frees the block, or leaves it as prefix cache.

        The tail goes first, so that it is evicted before what it depends on.
        """
        for block in reversed(blocks):
            self._drop(block, 1)

    def release_after_copy(self, blocks: Sequence[BlockId], lane: Lane) -> None:
        """Hand the references to a lane that copies the blocks out; it drops them in `settle`."""
        copying = self._copying[lane]
        for block in blocks:
            copying[block] = copying.get(block, 0) + 1

    def settle(self, lane: Lane) -> None:
        """The lane's copies have ended: drop what it held."""
        self._reused[lane].clear()
        copying, self._copying[lane] = self._copying[lane], {}
        for block in reversed(copying):
            self._drop(block, copying[block])

    def publish(self, block: BlockId, digest: bytes, tokens: Sequence[int]) -> None:
        """Make a full, computed block findable. The first block with a digest keeps it."""
        if digest in self._index or block in self._digests:
            return
        self._index[digest] = block
        self._digests[block] = digest
        self._contents[block] = tuple(tokens)

    def finds(self, digest: bytes) -> bool:
        """Whether a block with this digest is there."""
        return digest in self._index

    def match(self, digests: Sequence[bytes], tokens: Sequence[int], size: int) -> list[BlockId]:
        """The longest run of findable blocks for a sequence's leading digests, tokens compared."""
        found: list[BlockId] = []
        for i, digest in enumerate(digests):
            block = self._index.get(digest)
            if block is None or self._contents[block] != tuple(tokens[i * size : (i + 1) * size]):
                break
            found.append(block)
        return found

    def evictable(
        self,
        blocks: Iterable[BlockId],
        lane: Lane,
        dropped: Mapping[BlockId, int] = MappingProxyType({}),
    ) -> int:
        """How many of the blocks count as available to the lane, and would not once acquired, if
        so many references to each were `dropped` before."""
        copying = self._copying[lane]
        return sum(1 for b in blocks if self._refs[b] == copying.get(b, 0) + dropped.get(b, 0))

    def check(self, held: Iterable[BlockId]) -> None:
        """Raise RuntimeError unless the references are exactly those of `held` and the states
        are consistent. For tests and debug runs."""
        refs = [0] * self.total
        for block in held:
            refs[block] += 1
        for copying in self._copying.values():
            for block, holds in copying.items():
                refs[block] += holds
        if refs != self._refs:
            wrong = [i for i in range(self.total) if refs[i] != self._refs[i]]
            raise RuntimeError(f"reference counts differ from holders at blocks {wrong[:8]}")
        if self.shared != sum(1 for count in refs if count > 1):
            raise RuntimeError(f"{self.shared} blocks should be shared")
        idle = {i for i in range(self.total) if not refs[i]}
        if {*self._free, *self._cached} != idle or len(self._free) + len(self._cached) != len(idle):
            raise RuntimeError("a block is in no state, or in two")
        if {self._index[d]: d for d in self._index} != self._digests:
            raise RuntimeError("prefix index and digests differ")
        if not set(self._cached) <= set(self._digests):
            raise RuntimeError("a cached block has no digest")

    def _drop(self, block: BlockId, count: int) -> None:
        refs = self._refs[block] - count
        if refs < 0:
            raise RuntimeError(f"block {block} released once too often")
        self._refs[block] = refs
        self.shared -= refs < 2 <= refs + count
        if refs:
            return
        for lane, reused in self._reused.items():
            if block in reused:
                self._refs[block] = self._copying[lane][block] = 1
                return
        if block in self._digests:
            self._cached[block] = None
        else:
            self._free.append(block)

    def _evict(self, lane: Lane) -> BlockId:
        """Prefix cache first, then what only the lane's copies hold; the contents are forgotten."""
        if self._cached:
            block, _ = self._cached.popitem(last=False)
        else:
            copying = self._copying[lane]
            block = next(b for b, holds in copying.items() if self._refs[b] == holds)
            del copying[block]
            self._reused[lane].add(block)
        digest = self._digests.pop(block, None)
        if digest is not None:
            del self._index[digest]
            del self._contents[block]
        return block
