"""Paged attention in Triton: reads keys and values where they lie, block table by block table.

Online softmax after Milakov and Gimelshein (arXiv 1805.02867) and FlashAttention-2 (2307.08691);
long sequences of few rows are split and merged as in Flash-Decoding. In the tests Triton's
interpreter runs it, and Triton's compiler makes machine code of it; no GPU has run that so far:
experimental.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from headway.executors.torch_.rows import Rows

_LOG2_E = 1.4426950408889634
_MOST_SPLITS = 16
_POSITIONS_A_SPLIT = 256
_TILE_BYTES = 16_384
"""Of keys at once; as many of values. Two stages of both and the queries fit into 99 KB."""


class PagedAttention:
    """See Attention. Never waits for the device, and its launches depend on shapes alone, so that
    they can be recorded.

    programs: kernels of fewer, of single rows, are split along the sequences.
    """

    def __init__(self, programs: int) -> None:
        self._programs = programs

    def __call__(self, q: torch.Tensor, kv: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See Attention."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        kv_heads = kv.shape[3]
        if rows.singles:
            splits = self._splits(rows.singles * kv_heads, rows.reach)
            _launch(q, kv, rows, out, _Tiling(0, rows.singles, 1, 1, splits))
        if rows.spans:
            most = 64 if q.shape[2] <= 128 else 32
            queries = max(1, most * kv_heads // q.shape[1])
            tiles = -(-max(span.count for span in rows.spans) // queries)
            _launch(q, kv, rows, out, _Tiling(rows.singles, len(rows.spans), tiles, queries, 1))
        return out

    def _splits(self, programs: int, reach: int) -> int:
        """Of each sequence."""
        return max(1, min(_MOST_SPLITS, self._programs // programs, reach // _POSITIONS_A_SPLIT))


@dataclass(frozen=True, slots=True)
class _Tiling:
    """How the work is cut: the first sequence and how many, each in so many tiles of so many
    queries, over its keys in so many splits."""

    first: int
    sequences: int
    tiles: int
    queries: int
    splits: int


def _launch(q: torch.Tensor, kv: torch.Tensor, rows: Rows, out: torch.Tensor, cut: _Tiling) -> None:
    """Some of the sequences."""
    heads, dim = q.shape[1:]
    group, wide = heads // kv.shape[3], max(16, triton.next_power_of_2(dim))
    split = cut.splits > 1
    parts = torch.empty(
        (cut.splits, cut.sequences, heads, wide + 2) if split else (0, 0),
        dtype=torch.float32,
        device=q.device,
    )
    tables, places = rows.tables[cut.first :], rows.places[cut.first :]
    _attend[(cut.tiles, kv.shape[3], cut.sequences * cut.splits)](
        q, kv, out, parts, tables, places,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        kv.stride(0), kv.stride(1), kv.stride(2), kv.stride(3), tables.stride(0),
        cut.splits, dim**-0.5 * _LOG2_E,
        size=kv.shape[2], group=group, heads=heads, dim=dim, wide=wide,
        queries=cut.queries, height=max(16, triton.next_power_of_2(cut.queries * group)),
        width=max(16, min(64, _TILE_BYTES // (wide * kv.element_size()))),
        split=split, precision="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=2,
    )  # fmt: skip
    if split:
        _merge[(cut.sequences, heads)](
            parts, out, out.stride(0), out.stride(1), parts.stride(0),
            cut.splits,
            heads=heads, dim=dim, wide=wide, most=_MOST_SPLITS,
        )  # fmt: skip


def _attend_tile(
    q: tl.tensor,
    kv: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    tables: tl.tensor,
    places: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    kv_block: tl.tensor,
    kv_half: tl.tensor,
    kv_token: tl.tensor,
    kv_head: tl.tensor,
    table_row: tl.tensor,
    splits: tl.tensor,
    scale: tl.tensor,
    size: tl.constexpr,
    group: tl.constexpr,
    heads: tl.constexpr,
    dim: tl.constexpr,
    wide: tl.constexpr,
    queries: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    split: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """One tile of a sequence's queries, all heads that share a KV head, over one split of the keys.

        row r of the tile:  query r // group of the tile, head r % group of the group

    parts: [splits, sequences, heads, wide + 2], unscaled sums, then the maximum and the total.
    """
    head = tl.program_id(1)
    sequence = tl.program_id(2) // splits
    part = tl.program_id(2) % splits
    first = tl.load(places + 4 * sequence)
    count = tl.load(places + 4 * sequence + 1)
    start = tl.load(places + 4 * sequence + 2)
    end = tl.load(places + 4 * sequence + 3)
    begin = tl.program_id(0) * queries
    if begin < count:
        r = tl.arange(0, height)
        d = tl.arange(0, wide)
        query = begin + r // group
        of_head = head * group + r % group
        here = (r < queries * group) & (query < count)
        used = here[:, None] & (d < dim)[None, :]
        from_q = (first + query)[:, None] * q_row + of_head[:, None] * q_head + d[None, :]
        wanted = tl.load(q + from_q, mask=used, other=0.0)

        seen = tl.minimum(start + begin + queries, end)
        each = tl.cdiv(tl.cdiv(seen, splits), width) * width
        low = part * each
        high = tl.minimum(low + each, seen)
        best = tl.full([height], float("-inf"), tl.float32)
        total = tl.zeros([height], tl.float32)
        mixed = tl.zeros([height, wide], tl.float32)
        for at in range(low, high, width):
            position = at + tl.arange(0, width)
            real = position < high
            block = tl.load(tables + sequence * table_row + position // size, mask=real, other=0)
            cell = block * kv_block + (position % size) * kv_token + head * kv_head
            k = tl.load(
                kv + cell[None, :] + d[:, None], mask=real[None, :] & (d < dim)[:, None], other=0.0
            )
            scores = tl.dot(wanted, k, input_precision=precision) * scale
            allowed = real[None, :] & (position[None, :] <= (start + query)[:, None])
            scores = tl.where(allowed, scores, float("-inf"))
            top = tl.maximum(best, tl.max(scores, 1))
            # Rows that have seen nothing yet stay at -inf, and -inf less itself is no number.
            base = tl.where(top == float("-inf"), 0.0, top)
            chances = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(best - base)
            total = total * shrink + tl.sum(chances, 1)
            v = tl.load(
                kv + kv_half + cell[:, None] + d[None, :],
                mask=real[:, None] & (d < dim)[None, :],
                other=0.0,
            )
            mixed = mixed * shrink[:, None] + tl.dot(
                chances.to(v.dtype), v, input_precision=precision
            )
            best = top

        if not split:
            done = mixed / tl.where(here, total, 1.0)[:, None]
            to = (first + query)[:, None] * out_row + of_head[:, None] * out_head + d[None, :]
            tl.store(out + to, done.to(out.dtype.element_ty), mask=used)
        else:
            sequences = tl.num_programs(2) // splits
            row = ((part * sequences + sequence) * heads + of_head) * (wide + 2)
            tl.store(parts + row[:, None] + d[None, :], mixed, mask=here[:, None])
            tl.store(parts + row + wide, best, mask=here)
            tl.store(parts + row + wide + 1, total, mask=here)


def _merge_splits(
    parts: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    parts_split: tl.tensor,
    splits: tl.tensor,
    heads: tl.constexpr,
    dim: tl.constexpr,
    wide: tl.constexpr,
    most: tl.constexpr,
) -> None:
    """One head of a row: the splits' sums, each by its share of the whole."""
    row, head = tl.program_id(0), tl.program_id(1)
    s = tl.arange(0, most)
    there = s < splits
    d = tl.arange(0, wide)
    one = parts + s * parts_split + (row * heads + head) * (wide + 2)
    best = tl.load(one + wide, mask=there, other=float("-inf"))
    share = tl.exp2(best - tl.max(best, 0))
    total = tl.sum(tl.load(one + wide + 1, mask=there, other=0.0) * share, 0)
    sums = tl.load(one[:, None] + d[None, :], mask=there[:, None], other=0.0)
    mixed = tl.sum(sums * share[:, None], 0)
    to = out + row * out_row + head * out_head + d
    tl.store(to, (mixed / total).to(out.dtype.element_ty), mask=d < dim)


# Values that differ from step to step must not make a kernel of their own each.
_attend = triton.jit(
    _attend_tile,
    do_not_specialize=["table_row", "splits"],
    do_not_specialize_on_alignment=["tables", "places"],
)
_merge = triton.jit(_merge_splits, do_not_specialize=["parts_split", "splits"])
