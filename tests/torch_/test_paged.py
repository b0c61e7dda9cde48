"""Paged attention against softmax in float64, on fresh random inputs; Triton's interpreter runs the
kernels where there is no GPU."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from headway.core.plan import Chunk
from headway.core.types import BlockId, RequestId
from headway.executors.torch_ import attention as attention_module
from headway.executors.torch_.attention import (
    Attention,
    GatheredAttention,
    attention_for,
    difference,
)
from headway.executors.torch_.paged import PagedAttention
from headway.executors.torch_.rows import DecodeRows, Layout, Rows, tiles, together
from headway.models.types import AttentionShape
from tests.packaging.project import ROOT

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE, LAYERS, BLOCKS = 16, 3, 96
LAYOUT = Layout(SIZE, BLOCKS, DEVICE)
SHAPES = {
    "grouped": AttentionShape(8, 2, 32),
    "one head": AttentionShape(1, 1, 16),
    "seven to one": AttentionShape(7, 1, 32),
    "odd head": AttentionShape(6, 3, 40),
}


def pool(shape: AttentionShape, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The middle layer's part of a pool that is contiguous block by block."""
    values = torch.randn(
        (BLOCKS + 1, LAYERS, 2, SIZE, shape.kv_heads, shape.head_dim),
        generator=torch.Generator().manual_seed(seed),
    )
    return values.to(DEVICE, dtype)[:, 1]


def chunks_of(lengths: Sequence[tuple[int, int]], seed: int) -> list[Chunk]:
    """Chunks of (tokens, start), on blocks in random order."""
    free = list(range(BLOCKS))
    random.Random(seed).shuffle(free)
    made = []
    for i, (tokens, start) in enumerate(lengths):
        count = -(-(start + tokens) // SIZE)
        table = [BlockId(free.pop()) for _ in range(count)]
        made.append(Chunk(RequestId(i), [0] * tokens, start, table, count, True))
    return made


def expected(q: torch.Tensor, kv: torch.Tensor, table: Sequence[int], at: int) -> torch.Tensor:
    """One row, [heads, head_dim]: softmax over the positions up to `at`, in float64."""
    cells = kv[list(table)].double().transpose(0, 1).flatten(1, 2)[:, : at + 1]
    k, v = cells.repeat_interleave(q.shape[0] // kv.shape[3], dim=2)
    scores = torch.einsum("hd,thd->ht", q.double(), k) * q.shape[1] ** -0.5
    return torch.einsum("ht,thd->hd", scores.softmax(1), v)


def check(
    attention: Attention, rows: Rows, chunks: Sequence[Chunk], kv: torch.Tensor, heads: int
) -> None:
    """Each row that computes a token gets what the reference gives; `chunks` in the rows' order."""
    q = torch.randn((len(rows.tokens), heads, kv.shape[4])).to(DEVICE, kv.dtype)
    got = attention(q, kv, rows)
    most = 1e-5 if kv.dtype == torch.float32 else 5e-3
    for chunk, (first, count, start, end) in zip(chunks, rows.places.tolist(), strict=False):
        for at in range(max(start, chunk.start), min(start + count, end)):
            row = first + at - start
            error = (got[row].double() - expected(q[row], kv, chunk.blocks, at)).abs().max()
            assert error < most, f"request {chunk.request}, position {at}: {error}"


def ordered(chunks: list[Chunk]) -> list[Chunk]:
    """As `together` puts them."""
    return sorted(chunks, key=lambda chunk: len(chunk.tokens) > 1)


@pytest.fixture
def seed() -> int:
    """A new one; pytest shows what was printed where a test fails."""
    number = random.randrange(2**31)
    torch.manual_seed(number)
    print(f"seed {number}")
    return number


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_rows_and_chunks_are_those_of_float64(name: str, dtype: torch.dtype, seed: int) -> None:
    rng, shape = random.Random(seed), SHAPES[name]
    lengths = [(1, rng.randrange(100)) for _ in range(3)] + [(1, 0), (1, 15), (1, 16)]
    lengths += [(rng.randrange(2, 70), rng.randrange(90)), (rng.randrange(2, 40), 0)]
    rng.shuffle(lengths)
    chunks = chunks_of(lengths, seed)
    kv = pool(shape, dtype, seed)
    check(PagedAttention(1), together(chunks, LAYOUT), ordered(chunks), kv, shape.heads)


@pytest.mark.parametrize("programs", [4, 16, 100])
def test_a_long_sequence_is_split_and_merged(programs: int, seed: int) -> None:
    shape = SHAPES["grouped"]
    chunks = chunks_of([(1, 900 + seed % 100), (1, 7)], seed)
    check(
        PagedAttention(programs),
        together(chunks, LAYOUT),
        chunks,
        pool(shape, torch.float32, seed),
        shape.heads,
    )


def test_what_lies_behind_an_end_is_not_read(seed: int) -> None:
    """Blocks are recycled, and may hold what is no number."""
    shape = SHAPES["grouped"]
    chunks = chunks_of([(1, 21), (21, 13)], seed)
    kv = pool(shape, torch.float32, seed)
    held = torch.zeros((BLOCKS + 1, SIZE), dtype=torch.bool)
    for chunk in chunks:
        for at in range(chunk.start + len(chunk.tokens)):
            held[chunk.blocks[at // SIZE], at % SIZE] = True
    kv[(~held).nonzero(as_tuple=True)[0], :, (~held).nonzero(as_tuple=True)[1]] = torch.nan
    check(PagedAttention(1), together(chunks, LAYOUT), chunks, kv, shape.heads)
    for tile in tiles(chunks[1], LAYOUT):
        check(PagedAttention(1), tile, chunks[1:], kv, shape.heads)


def test_rows_that_fill_up_change_nothing(seed: int) -> None:
    shape = SHAPES["grouped"]
    decode = DecodeRows(4, 8, LAYOUT)
    kv = pool(shape, torch.float32, seed)
    for lengths in ([(1, 90), (1, 3), (1, 40)], [(1, 17)]):  # the second finds old tables
        chunks = chunks_of(lengths, seed)
        decode.fill(chunks)
        check(PagedAttention(1), decode.rows, chunks, kv, shape.heads)


def test_auto_is_paged_only_where_it_is_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shape = SHAPES["grouped"]
    made = PagedAttention(1)
    assert difference(made, shape, SIZE, torch.float32, DEVICE) < 1e-5

    def wrong(_: object, q: torch.Tensor, kv: torch.Tensor, rows: Rows) -> torch.Tensor:
        return made(q, kv, rows) + 0.1

    assert difference(partial(wrong, None), shape, SIZE, torch.float32, DEVICE) > 0.05
    gpu = torch.device("meta")  # any that is not the CPU

    def chosen(error: float | Exception) -> Attention:
        def probe(*_: object) -> float:
            if isinstance(error, Exception):
                raise error
            return error

        monkeypatch.setattr(attention_module, "difference", probe)
        monkeypatch.setattr(attention_module, "_programs", lambda _: 4)
        return attention_for("auto", shape, SIZE, torch.float32, gpu)

    assert isinstance(chosen(1e-3), PagedAttention)
    assert isinstance(chosen(float("nan")), GatheredAttention)
    assert isinstance(chosen(0.1), GatheredAttention)
    assert isinstance(chosen(RuntimeError("no compiler")), GatheredAttention)
    assert "no compiler" in caplog.text


def test_the_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """To machine code, for compute capability 8.0 and 9.0, by Triton's own assembler: what the
    interpreter can't show. No GPU is asked."""
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_.compile_kernels"],
        env=surroundings | {"TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    shared = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(shared) == 6
    assert max(shared) <= 99 * 1024, "more shared memory than the smaller GPUs have"
