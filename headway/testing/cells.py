"""A modelled KV cache: what each cell holds depends on every token before it, as in a transformer.

    block (16 cells):  [ h0 ][ h1 ][ h2 ] ... [ h15 ]        8 bytes a cell
    h(p) = mix(h(p - 1), token at p, p)

So the cells of a prefix are equal exactly where its tokens are equal, and a cell that is missing,
stale or another sequence's differs from what it must be.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise

CELL_BYTES = 8
POISON = b"\xde\xad\xbe\xef\xde\xad\xbe\xef"

_MASK = (1 << 64) - 1
_ROOT = 0x9E3779B97F4A7C15


def extend_chain(previous: int, tokens: Iterable[int], start: int) -> bytes:
    """Cells of `tokens` at positions from `start` on, given the cell before (`chain_root()` at 0).

    The mixing steps are those of splitmix64 (Steele, Lea, Flood 2014).
    """
    cells = array("Q")
    for position, token in enumerate(tokens, start):
        x = (previous ^ (token * 0xD1B54A32D192ED03) ^ (position << 32)) + _ROOT & _MASK
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
        previous = x ^ (x >> 31)
        cells.append(previous)
    return cells.tobytes()


def chain_root() -> int:
    """What stands before the cell of position 0."""
    return _ROOT


def digest(*parts: bytes) -> int:
    """64 bits that depend on every byte of every part and on where the parts end."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return int.from_bytes(state.digest(), "little")


class CellPool:
    """One tier's blocks, poisoned at first. Positions are turned into places by a block table."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._block_bytes = block_size * CELL_BYTES
        self._data = bytearray(POISON * (num_blocks * block_size))

    def read_block(self, block: int) -> bytes:
        """All cells of one block."""
        at = block * self._block_bytes
        return bytes(self._data[at : at + self._block_bytes])

    def write_block(self, block: int, cells: bytes) -> None:
        """Replace a whole block, as a copy between tiers does."""
        at = block * self._block_bytes
        self._data[at : at + self._block_bytes] = cells

    def read(self, blocks: Sequence[int], num_tokens: int) -> bytes:
        """The cells of positions [0, num_tokens), gathered through the table."""
        full, rest = divmod(num_tokens, self._block_size)
        parts = [self.read_block(block) for block in blocks[:full]]
        if rest:
            parts.append(self.read_block(blocks[full])[: rest * CELL_BYTES])
        return b"".join(parts)

    def write(self, blocks: Sequence[int], start: int, cells: bytes) -> None:
        """Store cells at positions from `start` on, block by block."""
        end = start + len(cells) // CELL_BYTES
        edges = [start, *range(start - start % self._block_size + self._block_size, end,
                               self._block_size), end]  # fmt: skip
        for low, high in pairwise(edges):
            index, offset = divmod(low, self._block_size)
            at = blocks[index] * self._block_bytes + offset * CELL_BYTES
            part = cells[(low - start) * CELL_BYTES : (high - start) * CELL_BYTES]
            self._data[at : at + len(part)] = part
