"""Paged attention behind one small protocol."""

import logging
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Protocol

import torch
from torch.nn import functional

from headway.core.plan import Chunk
from headway.core.types import BlockId, RequestId
from headway.errors import ConfigError
from headway.executors.torch_.rows import Layout, Rows, Span, together
from headway.models.types import AttentionShape

_LOG = logging.getLogger(__name__)
_TOLERANCE = 0.02


class Attention(Protocol):
    """Attends over the paged cache."""

    def __call__(self, q: torch.Tensor, kv: torch.Tensor, rows: Rows) -> torch.Tensor:
        """q [rows, heads, head_dim] over one layer of the cache, kv
        [blocks, 2, block_size, kv_heads, head_dim], which holds the step's own keys and values.
        Gives [rows, heads, head_dim]."""
        ...


class GatheredAttention:
    """Gathers each sequence's blocks and calls torch's scaled_dot_product_attention, on any device.

    Single rows are gathered together, padded to the longest; longer spans one after the other.
    What lies beyond a sequence's end is zeroed, never multiplied by zero: blocks are recycled, and
    zero times NaN is NaN.
    """

    def __call__(self, q: torch.Tensor, kv: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See Attention."""
        out = torch.empty_like(q)
        single = rows.singles
        if single:
            tables = rows.tables[:single, : -(-rows.reach // kv.shape[2])]
            out[:single] = _single(q[:single], kv, tables, rows.positions[:single])
        for span, table in zip(rows.spans, rows.tables[single:], strict=True):
            part = slice(span.first, span.first + span.count)
            out[part] = _span(q[part], kv, table, span, rows.positions[part])
        return out


def _single(
    q: torch.Tensor, kv: torch.Tensor, tables: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """q [sequences, heads, head_dim]. Heads that share keys go as rows of one head."""
    longest = tables.shape[1] * kv.shape[2]
    seen = torch.arange(longest, device=q.device) <= positions[:, None]
    gathered = kv[tables]  # [sequences, blocks, 2, size, kv_heads, head_dim]
    gathered = gathered.transpose(1, 2).flatten(2, 3)  # [sequences, 2, longest, …]
    gathered = torch.where(seen[:, None, :, None, None], gathered, 0)
    k, v = gathered[:, 0].transpose(1, 2), gathered[:, 1].transpose(1, 2)
    grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[2])
    mask = seen[:, None, None]
    return functional.scaled_dot_product_attention(grouped, k, v, attn_mask=mask).view(q.shape)


def _span(
    q: torch.Tensor, kv: torch.Tensor, table: torch.Tensor, span: Span, positions: torch.Tensor
) -> torch.Tensor:
    """q [count, heads, head_dim]. Keys are repeated for the heads that share them: with
    `enable_gqa` PyTorch may fall back on a kernel that holds all scores at once."""
    whole = -(-(span.start + span.count) // kv.shape[2])
    gathered = kv[table[:whole]].transpose(0, 1).flatten(1, 2)  # [2, tokens, kv_heads, dim]
    gathered[:, span.end :].zero_()
    gathered = gathered.repeat_interleave(q.shape[1] // kv.shape[3], dim=2)
    k, v = gathered[0].transpose(0, 1), gathered[1].transpose(0, 1)
    seen = torch.arange(k.shape[1], device=q.device) <= positions[:, None]
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], attn_mask=seen[None, None]
    )
    return out[0].transpose(0, 1)


def attention_for(
    name: str, shape: AttentionShape, block_size: int, dtype: torch.dtype, device: torch.device
) -> Attention:
    """`gathered`, `paged`, or by `auto` the one that a device should have: paged on a GPU where
    triton is there and agrees with gathered attention on random values, else gathered.

    Raises ConfigError for a name that isn't known, and for `paged` where it can't be had.
    """
    if name == "gathered" or (name == "auto" and device.type == "cpu"):
        return GatheredAttention()
    if name not in ("auto", "paged"):
        raise ConfigError(f"attention {name!r} is not one of: auto, gathered, paged")
    if find_spec("triton") is None:
        if name == "paged":
            raise ConfigError("paged attention needs triton")
        _LOG.warning("paged attention needs triton; gathered attention is used, which is slower")
        return GatheredAttention()
    from headway.executors.torch_.paged import PagedAttention

    paged = PagedAttention(_programs(device))
    if name == "auto":
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                error = difference(paged, shape, block_size, dtype, device)
        except Exception as failure:  # a compiler's or a driver's, of whatever kind
            _LOG.warning("paged attention does not run here, gathered is used: %r", failure)
            return GatheredAttention()
        if not error < _TOLERANCE:
            _LOG.warning("paged attention is wrong here by %.3g, gathered is used", error)
            return GatheredAttention()
    return paged


def difference(
    attention: Attention,
    shape: AttentionShape,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> float:
    """The largest difference from gathered attention on random values, which are about 1: rows
    that decode beside a chunk of 40, and one alone that may be split."""
    apart = []
    for lengths in (((1, 0), (1, 69), (1, 200), (40, 77)), ((1, 600),)):
        chunks, blocks = [], 0
        for i, (tokens, start) in enumerate(lengths):
            count = -(-(start + tokens) // block_size)
            table = [BlockId(blocks + block) for block in range(count)]
            chunks.append(Chunk(RequestId(i), [0] * tokens, start, table, count, True))
            blocks += count
        rows = together(chunks, Layout(block_size, blocks, device))
        kv = torch.randn((blocks + 1, 2, block_size, shape.kv_heads, shape.head_dim), device=device)
        q = torch.randn((len(rows.tokens), shape.heads, shape.head_dim), device=device)
        given = (q.to(dtype), kv.to(dtype), rows)
        apart.append(attention(*given).float() - GatheredAttention()(*given).float())
    return max(float(one.abs().max()) for one in apart)


def _programs(device: torch.device) -> int:
    """Programs of a kernel that keep every SM busy."""
    if device.type == "cpu":
        return 16
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)
