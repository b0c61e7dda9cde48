"""The rows of a step: which token at which position, where its key and value go, whom it sees.

Every tensor is made from one list that travels to the device in one copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from headway.core.plan import Chunk
from headway.executors.torch_.options import TILE
from headway.executors.torch_.upload import refill, upload_lists


@dataclass(frozen=True, slots=True)
class Span:
    """Several rows of one sequence.

        rows       [ first ...... first + count )   of the step's tensors
        positions  [ start ...... start + count )   of the sequence

    real: rows of the span that compute a token, from, to; the others only fill a tile up.
    """

    first: int
    count: int
    start: int
    real: tuple[int, int]

    @property
    def end(self) -> int:
        """Position after the last real one: tokens in the cache once the span is computed."""
        return self.start + self.real[1]


@dataclass(frozen=True, slots=True)
class Rows:
    """What the model needs to know of its input; on the device, int64, but for the last three.

        rows    [ one row of a sequence each: `singles` ][ several rows each: `spans` ]
        tables  [ one for each of the former            ][ one for each of the latter ]

    tokens, positions: [rows].
    cells: [2, rows], the block and the place in it that a row's key and value are written to. Rows
        that compute no token write to the pool's spare block.
    tables: [sequences, width], block ids, filled up with the spare block.
    places: [sequences, 4], first row, rows, position of the first row, and the position after the
        last that is in the cache once the step is computed.
    sampled: rows after which a token is sampled, in the order of the plan's chunks.
    reach: none of the `singles` sees more positions than this.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    cells: torch.Tensor
    tables: torch.Tensor
    places: torch.Tensor
    sampled: torch.Tensor
    spans: tuple[Span, ...]
    singles: int
    reach: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: tokens of a block, the id of the block that nobody reads, the device."""

    block_size: int
    spare: int
    device: torch.device


def together(chunks: Sequence[Chunk], layout: Layout) -> Rows:
    """All chunks in one batch, those of one token first."""
    order = _ordered(chunks)
    spans, first, lasts = [], 0, {}
    for chunk in order:
        count = len(chunk.tokens)
        spans.append(Span(first, count, chunk.start, (0, count)))
        first += count
        lasts[chunk.request] = first - 1
    sampled = [lasts[chunk.request] for chunk in chunks if chunk.sample]
    return _rows([(chunk, 0, len(chunk.tokens)) for chunk in order], spans, sampled, layout)


def rows_of(chunks: Sequence[Chunk], kept: int) -> list[int]:
    """Rows of the first `kept` chunks where all are together, in the order that they have alone."""
    names = {chunk.request for chunk in chunks[:kept]}
    rows: list[int] = []
    first = 0
    for chunk in _ordered(chunks):
        if chunk.request in names:
            rows += range(first, first + len(chunk.tokens))
        first += len(chunk.tokens)
    return rows


def _ordered(chunks: Sequence[Chunk]) -> list[Chunk]:
    return sorted(chunks, key=lambda chunk: len(chunk.tokens) > 1)


def tiles(chunk: Chunk, layout: Layout) -> Iterator[Rows]:
    """A chunk in aligned tiles of TILE positions, in order. A position has the same place in its
    tile whatever the chunk, so every tile of it has the same shape."""
    end = chunk.start + len(chunk.tokens)
    for start in range(chunk.start // TILE * TILE, end, TILE):
        low, high = max(start, chunk.start), min(start + TILE, end)
        span = Span(0, TILE, start, (low - start, high - start))
        sampled = [end - 1 - start] if high == end and chunk.sample else []
        yield _rows([(chunk, low - chunk.start, high - chunk.start)], [span], sampled, layout)


class DecodeRows:
    """Rows of one token each in tensors that stay: `size` of them, filled up with rows that read
    and write the spare block only. `width`: blocks of the longest table."""

    def __init__(self, size: int, width: int, layout: Layout) -> None:
        self._layout = layout
        parts = [size, size, 2 * size, 4 * size]
        self._numbers = torch.zeros(sum(parts), dtype=torch.int64, device=layout.device)
        tokens, positions, cells, places = self._numbers.split(parts)
        self.rows = Rows(
            tokens,
            positions,
            cells.view(2, size),
            torch.full((size, width), layout.spare, device=layout.device),
            places.view(size, 4),
            torch.arange(size, device=layout.device),
            spans=(),
            singles=size,
            reach=width * layout.block_size,
        )
        self.fill(())

    def fill(self, chunks: Sequence[Chunk]) -> None:
        """Make the first rows those of the chunks, one token each, no more than there are rows.
        Tables keep old ids behind the blocks that count, where nobody looks."""
        spare, block_size = self._layout.spare, self._layout.block_size
        idle = self.rows.singles - len(chunks)
        positions = [chunk.start for chunk in chunks] + [0] * idle
        blocks = [chunk.blocks[chunk.start // block_size] for chunk in chunks]
        numbers = [
            *(chunk.tokens[0] for chunk in chunks),
            *[0] * idle,
            *positions,
            *blocks,
            *[spare] * idle,
            *(position % block_size for position in positions),
        ]
        for row, position in enumerate(positions):
            numbers += (row, 1, position, position + 1)
        refill(self._numbers, numbers)
        width = max((chunk.start for chunk in chunks), default=0) // block_size + 1
        tables = [_filled(chunk, width, spare) for chunk in chunks] + [[spare] * width] * idle
        refill(self.rows.tables[:, :width], tables)


def _rows(
    parts: Sequence[tuple[Chunk, int, int]],
    spans: Sequence[Span],
    sampled: Sequence[int],
    layout: Layout,
) -> Rows:
    """One part of a chunk for each span."""
    tokens: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    size, spare = layout.block_size, layout.spare
    for (chunk, low, high), span in zip(parts, spans, strict=True):
        before, after = span.real[0], span.count - span.real[1]
        tokens += [0] * before + list(chunk.tokens[low:high]) + [0] * after
        positions += range(span.start, span.start + span.count)
        blocks += [spare] * before
        blocks += [chunk.blocks[at // size] for at in range(chunk.start + low, chunk.start + high)]
        blocks += [spare] * after
    offsets = [position % size for position in positions]
    width = max(-(-(span.start + span.count) // size) for span in spans)
    tables = [block for chunk, _, _ in parts for block in _filled(chunk, width, spare)]
    places = [number for span in spans for number in (span.first, span.count, span.start, span.end)]
    lists = (tokens, positions, blocks + offsets, tables, places, sampled)
    on_device = upload_lists(lists, layout.device)
    singles = sum(span.count == 1 for span in spans)
    return Rows(
        on_device[0],
        on_device[1],
        on_device[2].view(2, -1),
        on_device[3].view(len(spans), width),
        on_device[4].view(len(spans), 4),
        on_device[5],
        tuple(spans[singles:]),
        singles,
        max((span.end for span in spans[:singles]), default=0),
    )


def _filled(chunk: Chunk, width: int, spare: int) -> list[int]:
    """A chunk's table, as long as asked."""
    table = list(chunk.blocks[: min(chunk.num_blocks, width)])
    return table + [spare] * (width - len(table))
