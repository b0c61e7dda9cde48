"""Copies between a worker's KV cache and host memory.

On CUDA, host memory is pinned and copies run on a stream of their own: the stream begins behind the
kernels that are queued already, and the kernels of the step are queued behind it. On a CPU they are
plain copies, which are timed.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby

import torch

from headway.core.plan import BlockCopy

_CHUNK = 64
"""Blocks by which host memory grows: it is taken when first used, never given back."""


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """Seconds and blocks copied each way since the last report."""

    out_s: float = 0.0
    out_blocks: int = 0
    in_s: float = 0.0
    in_blocks: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Copies that touch one chunk of host memory: `rows` of it, and their device blocks."""

    chunk: int
    rows: torch.Tensor
    blocks: torch.Tensor


class HostCopies:
    """One worker's host memory, and the copies to and from it.

    chunks: host tensors, [chunk][layer] of [_CHUNK, bytes of a block's layer ...]: the first axis
    of every layer's cache is the block, whatever comes after it.
    """

    def __init__(self, caches: Iterable[torch.Tensor]) -> None:
        """The worker's KV cache by layer; layers that share a cache count once."""
        self._layers = list({cache.data_ptr(): cache for cache in caches}.values())
        self.chunks: list[list[torch.Tensor]] = []
        self._times = CopyTimes()
        device = self._layers[0].device
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def save(self, copies: Sequence[BlockCopy]) -> None:
        """Device to host; what the device blocks hold now is what is kept."""
        if not copies:
            return
        started_s = time.perf_counter()
        with self._in_turn():
            for piece in self._pieces(copies):
                self._grow(piece.chunk)
                for cache, host in zip(self._layers, self.chunks[piece.chunk], strict=True):
                    taken = cache.index_select(0, piece.blocks)
                    self._put(host, piece.rows, taken)
        self._count(out_s=time.perf_counter() - started_s, out_blocks=len(copies))

    def load(self, copies: Sequence[BlockCopy]) -> None:
        """Host to device."""
        if not copies:
            return
        started_s = time.perf_counter()
        with self._in_turn():
            for piece in self._pieces(copies):
                for cache, host in zip(self._layers, self.chunks[piece.chunk], strict=True):
                    cache.index_copy_(0, piece.blocks, self._get(host, piece.rows, cache))
        self._count(in_s=time.perf_counter() - started_s, in_blocks=len(copies))

    def take_times(self) -> CopyTimes | None:
        """What was copied since the last call; None if nothing was, or if it was not timed."""
        times, self._times = self._times, CopyTimes()
        return times if times != CopyTimes() else None

    def _in_turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else _Turn(self._stream)

    def _pieces(self, copies: Sequence[BlockCopy]) -> list[_Piece]:
        ordered = sorted(copies, key=lambda c: c.host)
        pieces = []
        for chunk, members in groupby(ordered, key=lambda c: c.host // _CHUNK):
            pairs = [(c.host % _CHUNK, c.device) for c in members]
            rows = torch.tensor([row for row, _ in pairs])
            blocks = torch.tensor([block for _, block in pairs], device=self._device)
            pieces.append(_Piece(chunk, rows, blocks))
        return pieces

    def _grow(self, chunk: int) -> None:
        """Have host memory for a chunk, and for those before it."""
        while len(self.chunks) <= chunk:
            self.chunks.append(
                [
                    torch.empty(
                        (_CHUNK, *cache.shape[1:]),
                        dtype=cache.dtype,
                        pin_memory=self._stream is not None,
                    )
                    for cache in self._layers
                ]
            )

    def _put(self, host: torch.Tensor, rows: torch.Tensor, taken: torch.Tensor) -> None:
        if self._stream is None:
            host.index_copy_(0, rows, taken)
            return
        for first, last in _runs(rows):
            at = int(rows[first])
            host[at : at + last - first].copy_(taken[first:last], non_blocking=True)

    def _get(self, host: torch.Tensor, rows: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        if self._stream is None:
            return host.index_select(0, rows)
        staged = torch.empty((len(rows), *cache.shape[1:]), dtype=cache.dtype, device=cache.device)
        for first, last in _runs(rows):
            at = int(rows[first])
            staged[first:last].copy_(host[at : at + last - first], non_blocking=True)
        return staged

    def _count(
        self, out_s: float = 0.0, out_blocks: int = 0, in_s: float = 0.0, in_blocks: int = 0
    ) -> None:
        if self._stream is None:
            t = self._times
            self._times = CopyTimes(
                t.out_s + out_s, t.out_blocks + out_blocks, t.in_s + in_s, t.in_blocks + in_blocks
            )


class _Turn:
    """A stream's turn between what the current stream was given before and what it is given
    afterwards."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._current = torch.cuda.current_stream(stream.device)
        self._context = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._stream.wait_stream(self._current)
        self._context.__enter__()

    def __exit__(self, *failure: object) -> None:
        self._context.__exit__(*failure)
        self._current.wait_stream(self._stream)


def _runs(rows: torch.Tensor) -> list[tuple[int, int]]:
    """Slices of ascending `rows` in which each is one more than the last."""
    values = rows.tolist()
    starts = [i for i, row in enumerate(values) if i == 0 or row != values[i - 1] + 1]
    return list(zip(starts, [*starts[1:], len(values)], strict=True))
