"""Paged attention behind one small protocol."""

from typing import Protocol

import torch
from torch.nn import functional

from headway.executors.torch_.rows import Rows, Span


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
        single = [span for span in rows.spans if span.count == 1]
        if single:
            where = torch.tensor([span.first for span in single], device=q.device)
            out[where] = _single(q[where], kv, single)
        for span in rows.spans:
            if span.count > 1:
                part = slice(span.first, span.first + span.count)
                out[part] = _span(q[part], kv, span)
        return out


def _single(q: torch.Tensor, kv: torch.Tensor, spans: list[Span]) -> torch.Tensor:
    """q [sequences, heads, head_dim]."""
    size = kv.shape[2]
    longest = max(span.end for span in spans)
    most = -(-longest // size)
    tables = torch.zeros((len(spans), most), dtype=torch.int64, device=q.device)
    for row, span in enumerate(spans):
        count = min(most, span.table.shape[0])
        tables[row, :count] = span.table[:count]
    ends = torch.tensor([span.end for span in spans], device=q.device)
    seen = torch.arange(most * size, device=q.device) < ends[:, None]
    gathered = kv[tables]  # [sequences, most, 2, size, kv_heads, head_dim]
    gathered = gathered.transpose(1, 2).flatten(2, 3)  # [sequences, 2, most * size, …]
    gathered = torch.where(seen[:, None, :, None, None], gathered, 0)
    k, v = gathered[:, 0].transpose(1, 2), gathered[:, 1].transpose(1, 2)
    out = functional.scaled_dot_product_attention(
        q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=True
    )
    return out[:, :, 0]


def _span(q: torch.Tensor, kv: torch.Tensor, span: Span) -> torch.Tensor:
    """q [count, heads, head_dim]."""
    size = kv.shape[2]
    whole = -(-max(span.end, span.start + span.count) // size)
    gathered = kv[span.table[:whole]].transpose(0, 1).flatten(1, 2)  # [2, tokens, kv_heads, dim]
    gathered[:, span.end :] = 0
    k, v = gathered[0].transpose(0, 1), gathered[1].transpose(0, 1)
    at = torch.arange(span.start, span.start + span.count, device=q.device)
    seen = torch.arange(k.shape[1], device=q.device) <= at[:, None]
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], attn_mask=seen[None, None], enable_gqa=True
    )
    return out[0].transpose(0, 1)
