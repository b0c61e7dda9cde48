"""Who has KV in host memory, and the copies the workers still have to make.

A host block that was loaded from is free again only once the step's copies are handed out: a worker
saves before it loads, so within one step nothing may be saved where something is still loaded from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.blocks import BlockPool
from headway.core.plan import BlockCopy
from headway.core.sequence import blocks_for
from headway.core.types import BlockId, Lane


@dataclass(frozen=True, slots=True)
class Saved:
    """A preempted request's KV in host memory: its first `tokens` tokens."""

    tokens: int
    host_blocks: list[BlockId]


@dataclass(frozen=True, slots=True)
class Copies:
    """What a worker copies in a step: first all `saves`, before anything is written, then all
    `loads`, before anything is computed."""

    saves: list[BlockCopy]
    loads: list[BlockCopy]


class SwapBook:
    """Host memory of a fixed number of blocks, by request id."""

    def __init__(self, host_blocks: int, block_size: int) -> None:
        """Empty; `block_size` in tokens."""
        self._pool = BlockPool(host_blocks)
        self._block_size = block_size
        self._saved: dict[str, Saved] = {}
        self._saves: dict[str, list[BlockCopy]] = {}
        self._loads: list[BlockCopy] = []
        self._emptied: list[BlockId] = []
        self.saved_tokens = 0
        self.restored_tokens = 0

    @property
    def free(self) -> int:
        """Host blocks that can be saved into now."""
        return self._pool.available(Lane.UNIFIED)

    @property
    def total(self) -> int:
        """Host blocks there are."""
        return self._pool.total

    def save(self, request: str, blocks: Sequence[int], tokens: int) -> bool:
        """Keep the first `tokens` tokens of a request that gives up `blocks`; False, with nothing
        kept, where there is nothing to keep or host memory does not do."""
        self.drop(request)
        count = blocks_for(tokens, self._block_size)
        if not count or count > self.free:
            return False
        host = self._pool.allocate(count, Lane.UNIFIED)
        self._saved[request] = Saved(tokens, host)
        pairs = zip(blocks, host, strict=False)
        self._saves[request] = [BlockCopy(BlockId(device), slot) for device, slot in pairs]
        self.saved_tokens += tokens
        return True

    def tokens(self, request: str) -> int:
        """Tokens kept for a request; 0 if none are."""
        saved = self._saved.get(request)
        return saved.tokens if saved else 0

    def restore(self, request: str, blocks: Sequence[int], tokens: int, end: int) -> None:
        """Load the `tokens` tokens before token `end` into the request's new `blocks`; what was
        kept of it is given up."""
        saved = self._saved.pop(request, None)
        if saved is None:
            return
        self._emptied += saved.host_blocks
        if tokens > 0:
            first = (end - tokens) // self._block_size
            for index in range(first, blocks_for(end, self._block_size)):
                copy = BlockCopy(BlockId(blocks[index]), saved.host_blocks[index])
                self._loads.append(copy)
            self.restored_tokens += tokens

    def drop(self, request: str) -> None:
        """Forget a request's KV: it has ended, or its KV has become worthless."""
        saved = self._saved.pop(request, None)
        self._saves.pop(request, None)
        if saved is not None:
            self._pool.release(saved.host_blocks)

    def drop_all(self) -> None:
        """Forget everything kept."""
        for request in list(self._saved):
            self.drop(request)

    def hand_out(self) -> Copies:
        """The copies of the step that was just planned; their host blocks may be used anew in the
        next."""
        saves = [copy for copies in self._saves.values() for copy in copies]
        copies = Copies(saves, self._loads)
        self._saves, self._loads = {}, []
        self._pool.release(self._emptied)
        self._emptied = []
        return copies
