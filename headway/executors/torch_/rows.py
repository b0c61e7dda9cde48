"""The rows of a step: which token at which position, where its key and value go, whom it sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from headway.core.plan import Chunk
from headway.executors.torch_.options import TILE


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one sequence.

        rows       [ first ...... first + count )   of the step's tensors
        positions  [ start ...... start + count )   of the sequence

    real: rows of the span that compute a token, from, to; the others only fill a tile up.
    table: block ids, long enough for all positions.
    """

    first: int
    count: int
    start: int
    real: tuple[int, int]
    table: torch.Tensor

    @property
    def end(self) -> int:
        """Position after the last real one: tokens in the cache once the span is computed."""
        return self.start + self.real[1]


@dataclass(frozen=True, slots=True)
class Rows:
    """What the model needs to know of its input.

    tokens, positions: [rows] int64. cached: row numbers that write to the cache, [writes] int64;
    blocks, offsets: where to, [writes] int64 each.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    cached: torch.Tensor
    blocks: torch.Tensor
    offsets: torch.Tensor
    spans: tuple[Span, ...]


def together(chunks: Sequence[Chunk], block_size: int, device: torch.device) -> Rows:
    """All chunks in one batch."""
    spans, first = [], 0
    for chunk in chunks:
        count = len(chunk.tokens)
        spans.append(Span(first, count, chunk.start, (0, count), _table(chunk, device)))
        first += count
    return _rows([(chunk, 0, len(chunk.tokens)) for chunk in chunks], spans, block_size, device)


def tiles(chunk: Chunk, device: torch.device) -> Iterator[Rows]:
    """A chunk in aligned tiles of TILE positions, in order. A position has the same place in its
    tile whatever the chunk, so every tile of it has the same shape."""
    end = chunk.start + len(chunk.tokens)
    table = _table(chunk, device)
    for start in range(chunk.start // TILE * TILE, end, TILE):
        low, high = max(start, chunk.start), min(start + TILE, end)
        span = Span(0, TILE, start, (low - start, high - start), table[: start // TILE + 1])
        yield _rows([(chunk, low - chunk.start, high - chunk.start)], [span], TILE, device)


def last_rows(chunks: Sequence[Chunk]) -> list[int]:
    """Rows of the tokens after which the chunks sample, where all are in one batch."""
    rows, first = [], 0
    for chunk in chunks:
        first += len(chunk.tokens)
        if chunk.sample:
            rows.append(first - 1)
    return rows


def _rows(
    parts: Sequence[tuple[Chunk, int, int]],
    spans: Sequence[Span],
    block_size: int,
    device: torch.device,
) -> Rows:
    """One part of a chunk for each span."""
    tokens: list[int] = []
    positions: list[int] = []
    cached: list[int] = []
    blocks: list[int] = []
    for (chunk, low, high), span in zip(parts, spans, strict=True):
        before, after = span.real[0], span.count - span.real[1]
        tokens += [0] * before + list(chunk.tokens[low:high]) + [0] * after
        positions += range(span.start, span.start + span.count)
        cached += range(span.first + before, span.first + span.count - after)
        blocks += [
            chunk.blocks[at // block_size] for at in range(chunk.start + low, chunk.start + high)
        ]
    place = torch.tensor(positions, device=device)
    cached_rows = torch.tensor(cached, device=device)
    return Rows(
        torch.tensor(tokens, device=device),
        place,
        cached_rows,
        torch.tensor(blocks, device=device),
        place[cached_rows] % block_size,
        tuple(spans),
    )


def _table(chunk: Chunk, device: torch.device) -> torch.Tensor:
    return torch.tensor(chunk.blocks[: chunk.num_blocks], dtype=torch.int64, device=device)
