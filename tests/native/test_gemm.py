"""Matrix products: exact weights, right to rounding, and the same bits however they are cut."""

import numpy as np
import numpy.typing as npt
import pytest

from headway import _native
from tests.native.blocks import (
    FORMATS,
    PATHS,
    Matrix,
    random_matrix,
    same_bits,
    values_of,
)

Floats = npt.NDArray[np.float32]
MAX_TOKENS = 200
ROUNDING = 2.0**-24
"""Of one float32 operation, relative to its result."""

all_formats = pytest.mark.parametrize("name", FORMATS)
all_paths = pytest.mark.parametrize("isa", PATHS, ids=[isa.name for isa in PATHS])


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers every time; the seed is printed with a failure."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    return np.random.default_rng(seed)


def shape_of(rng: np.random.Generator, name: str) -> tuple[int, int]:
    """Rows that leave the last panel ragged, and a few groups or super blocks of columns."""
    panels = int(rng.integers(1, 5))
    rows = 16 * panels + int(rng.integers(1, 16))
    return rows, int(rng.integers(1, 4)) * 256 if "K" in name else int(rng.integers(1, 12)) * 32


def normal(rng: np.random.Generator, tokens: int, cols: int) -> Floats:
    """Activations whose tokens differ in size by orders of magnitude."""
    sizes = 10.0 ** rng.uniform(-3, 3, size=(tokens, 1))
    return (rng.normal(size=(tokens, cols)) * sizes).astype(np.float32)


def product(isa: _native.Isa, packed: _native.PackedMatrix, acts: _native.Activations) -> Floats:
    tokens = len(acts.scale)
    out = np.full((tokens, packed.rows), np.nan, dtype=np.float32)
    _native.gemm(isa, packed, acts, out, (0, tokens), (0, packed.panels))
    return out


def assert_close(out: Floats, acts: _native.Activations, matrix: Matrix) -> None:
    """Within the roundings of the chain, each at most of the sum of all magnitudes.

    A group is one fused multiply-add, two where the format has a minimum. Once for the whole chain
    come the roundings of weight scale * activation scale, of the activations' sums, and of the
    float32 weights that are compared with; 1 % more covers roundings of roundings.
    """
    x = values_of(acts)
    minima, weights = matrix.minima(), matrix.values.astype(np.float64)
    magnitudes = np.abs(x) @ (np.abs(weights - minima) + np.abs(minima)).T
    chain = matrix.cols // 32 * (2 if minima.any() else 1)
    error = np.abs(out - x @ weights.T)
    limit = 1.01 * (chain + 3) * ROUNDING * magnitudes
    assert (error <= limit).all(), (error / limit).max()


@all_formats
def test_weights_keep_their_exact_values(rng: np.random.Generator, name: str) -> None:
    rows, cols = shape_of(rng, name)
    matrix = random_matrix(rng, name, rows, cols)
    raw = _native.dequantize(matrix.type, cols, matrix.blocks.ravel())
    assert raw.tobytes() == matrix.values.tobytes()
    cut = int(rng.integers(1, rows))
    parts = [matrix.blocks[:cut].ravel(), matrix.blocks[cut:].ravel()]
    stacked = _native.pack(matrix.type, cols, parts)
    assert stacked.dequantize().tobytes() == matrix.values.tobytes()


@all_formats
def test_interleaved_weights_keep_their_rows(rng: np.random.Generator, name: str) -> None:
    matrix = random_matrix(rng, name, 192, 256)
    gate, up = matrix.blocks[:96].ravel(), matrix.blocks[96:].ravel()
    packed = _native.pack_interleaved(matrix.type, 256, gate, up)
    assert packed.dequantize().tobytes() == matrix.values.tobytes()


@all_formats
def test_packed_is_hardly_larger_than_gguf(rng: np.random.Generator, name: str) -> None:
    matrix = random_matrix(rng, name, 64, 512)
    assert matrix.pack().nbytes <= 1.03 * matrix.blocks.size


@all_paths
@all_formats
def test_product_against_float64(rng: np.random.Generator, name: str, isa: _native.Isa) -> None:
    for _ in range(3):
        rows, cols = shape_of(rng, name)
        matrix = random_matrix(rng, name, rows, cols)
        acts = _native.quantize(isa, normal(rng, int(rng.integers(1, 41)), cols))
        assert_close(product(isa, matrix.pack(), acts), acts, matrix)


@all_paths
@all_formats
def test_bits_do_not_depend_on_the_number_of_tokens(
    rng: np.random.Generator, name: str, isa: _native.Isa
) -> None:
    rows, cols = shape_of(rng, name)
    packed = random_matrix(rng, name, rows, cols).pack()
    x = normal(rng, MAX_TOKENS, cols)
    whole = product(isa, packed, _native.quantize(isa, x))
    # Every size of tile, with and without a rest, and where one path hands over to another.
    for tokens in (*range(1, 35), *rng.integers(35, MAX_TOKENS, 6).tolist()):
        start = int(rng.integers(0, MAX_TOKENS - tokens + 1))
        part = slice(start, start + tokens)
        assert product(isa, packed, _native.quantize(isa, x[part])).tobytes() == (
            whole[part].tobytes()
        ), tokens


@all_paths
@all_formats
def test_bits_do_not_depend_on_the_split(
    rng: np.random.Generator, name: str, isa: _native.Isa
) -> None:
    rows, cols = shape_of(rng, name)
    packed = random_matrix(rng, name, rows, cols).pack()
    acts = _native.quantize(isa, normal(rng, MAX_TOKENS, cols))
    whole = product(isa, packed, acts)
    for _ in range(20):
        first, last = np.sort(rng.integers(0, MAX_TOKENS + 1, 2)).tolist()
        left, right = np.sort(rng.integers(0, packed.panels + 1, 2)).tolist()
        out = np.full_like(whole, np.nan)
        _native.gemm(isa, packed, acts, out, (first, last), (left, right))
        expected = np.full_like(whole, np.nan)
        columns = slice(16 * left, 16 * right)
        expected[first:last, columns] = whole[first:last, columns]
        assert out.tobytes() == expected.tobytes(), (first, last, left, right)


@all_paths
def test_bits_do_not_depend_on_cache_blocks(rng: np.random.Generator, isa: _native.Isa) -> None:
    """So many columns that a few tokens fill the cache and the rest waits for the next pass."""
    packed = random_matrix(rng, "Q4_1", 20, 16384).pack()
    x = normal(rng, 67, 16384)
    whole = product(isa, packed, _native.quantize(isa, x))
    for token in rng.integers(0, 67, 4).tolist():
        alone = product(isa, packed, _native.quantize(isa, x[token : token + 1]))
        assert alone.tobytes() == whole[token].tobytes()


@all_formats
def test_paths_agree_to_the_bit(rng: np.random.Generator, name: str) -> None:
    rows, cols = shape_of(rng, name)
    packed = random_matrix(rng, name, rows, cols).pack()
    acts = _native.quantize(_native.Isa.portable, normal(rng, 31, cols))
    results = {product(isa, packed, acts).tobytes() for isa in PATHS}
    assert len(results) == 1


@all_paths
def test_adding_rounds_once(rng: np.random.Generator, isa: _native.Isa) -> None:
    packed = random_matrix(rng, "Q4_1", 41, 96).pack()
    acts = _native.quantize(isa, normal(rng, 13, 96))
    residual = normal(rng, 13, 41)
    out = residual.copy()
    _native.gemm(isa, packed, acts, out, (0, 13), (0, packed.panels), add=True)
    assert out.tobytes() == (residual + product(isa, packed, acts)).tobytes()


@all_paths
@all_formats
@pytest.mark.parametrize("quant_byte", [0x00, 0x7F, 0x80, 0xFF])
def test_extreme_quants_do_not_overflow(
    rng: np.random.Generator, name: str, isa: _native.Isa, quant_byte: int
) -> None:
    """Largest magnitudes everywhere: 16-bit sums that saturate or wrap would show."""
    matrix = random_matrix(rng, name, 33, 512, quant_byte=quant_byte)
    signs = np.ones((6, 512), dtype=np.float32)
    signs[1] = -1
    signs[2, ::2] = -1
    signs[3, 16:] = -1
    signs[4] = rng.choice([-1, 1], 512)
    acts = _native.quantize(isa, signs)
    assert np.abs(acts.q).min() == 127
    assert_close(product(isa, matrix.pack(), acts), acts, matrix)


@all_paths
@all_formats
@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1e4])
def test_extreme_weight_scales(
    rng: np.random.Generator, name: str, isa: _native.Isa, scale: float
) -> None:
    """Subnormal and very large fp16."""
    matrix = random_matrix(rng, name, 20, 256, scale=scale)
    acts = _native.quantize(isa, normal(rng, 5, 256))
    assert_close(product(isa, matrix.pack(), acts), acts, matrix)


@all_paths
@all_formats
def test_a_token_that_is_not_finite_stays_alone(
    rng: np.random.Generator, name: str, isa: _native.Isa
) -> None:
    packed = random_matrix(rng, name, 37, 256).pack()
    x = normal(rng, 9, 256)
    clean = product(isa, packed, _native.quantize(isa, x))
    for poison in (np.nan, np.inf, -np.inf):
        sick = x.copy()
        sick[4, int(rng.integers(256))] = poison
        out = product(isa, packed, _native.quantize(isa, sick))
        assert np.isnan(out[4]).all()
        assert np.delete(out, 4, axis=0).tobytes() == np.delete(clean, 4, axis=0).tobytes()


@all_paths
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0"])
def test_swiglu_equals_its_parts(rng: np.random.Generator, name: str, isa: _native.Isa) -> None:
    matrix = random_matrix(rng, name, 192, 160, scale=0.02)
    gate, up = matrix.blocks[:96].ravel(), matrix.blocks[96:].ravel()
    acts = _native.quantize(isa, rng.normal(size=(131, 160)).astype(np.float32))
    both = product(isa, matrix.pack(), acts)
    apart = _native.silu_mul(isa, both[:, :96].copy(), both[:, 96:].copy())
    fused = _native.swiglu(isa, _native.pack_interleaved(matrix.type, 160, gate, up), acts)
    assert same_bits(fused, apart)


def test_shapes_that_cannot_be_are_refused(rng: np.random.Generator) -> None:
    matrix = random_matrix(rng, "Q4_1", 16, 64)
    isa = _native.best_isa()
    with pytest.raises(ValueError, match="multiple"):
        _native.pack(matrix.type, 48, [matrix.blocks.ravel()])
    with pytest.raises(ValueError, match="whole rows"):
        _native.pack(matrix.type, 64, [matrix.blocks.ravel()[:-1]])
    with pytest.raises(ValueError, match="32 rows"):
        row = matrix.blocks[0]
        _native.pack_interleaved(matrix.type, 64, row, row)
    with pytest.raises(ValueError, match="groups of 32"):
        _native.quantize(isa, np.zeros((1, 33), dtype=np.float32))
    acts = _native.quantize(isa, np.zeros((1, 96), dtype=np.float32))
    with pytest.raises(ValueError, match="differ"):
        product(isa, matrix.pack(), acts)
