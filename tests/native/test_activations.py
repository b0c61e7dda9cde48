"""Quantised activations: RMS norm, SiLU and rounding, on every instruction path."""

import numpy as np
import numpy.typing as npt
import pytest

from headway import _native
from tests.native.blocks import PATHS, Doubles, same_bits, values_of

Floats = npt.NDArray[np.float32]
all_paths = pytest.mark.parametrize("isa", PATHS, ids=[isa.name for isa in PATHS])


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers every time; the seed is printed with a failure."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    return np.random.default_rng(seed)


def varied(rng: np.random.Generator, cols: int = 192) -> Floats:
    """Tokens of all sizes, some odd ones among them."""
    x = (rng.normal(size=(12, cols)) * 10.0 ** rng.uniform(-6, 6, (12, 1))).astype(np.float32)
    x[1] = 0
    x[2] = 1e35
    x[3] = 1e-35  # no inverse scale in float32: counts as zero
    x[4, :32] = 0
    x[5] = -127
    return x


def assert_rounded(acts: _native.Activations, exact: Doubles, slack: float) -> None:
    """Within half a step of each group, and `slack` of its largest magnitude for float32."""
    largest = np.abs(exact).reshape(len(exact), -1, 32).max(axis=2).repeat(32, axis=1)
    limit = largest * (0.5 / 127 + slack) + 1e-30
    assert (np.abs(values_of(acts) - exact) <= limit).all()
    assert np.abs(acts.q).max() <= 127


@all_paths
def test_rounding(rng: np.random.Generator, isa: _native.Isa) -> None:
    x = varied(rng)
    acts = _native.quantize(isa, x)
    assert_rounded(acts, x.astype(np.float64), slack=1e-6)
    assert acts.q[5].min() == acts.q[5].max() == -127
    assert not acts.q[1].any()
    assert not acts.scale[3].any()


@all_paths
def test_sums_belong_to_the_quants(rng: np.random.Generator, isa: _native.Isa) -> None:
    acts = _native.quantize(isa, varied(rng))
    halves = acts.q.reshape(12, -1, 16).sum(axis=2, dtype=np.int32)
    assert (acts.halves == halves).all()
    totals = halves.reshape(12, -1, 2).sum(axis=2).astype(np.float32)
    assert (acts.scale * totals).tobytes() == acts.sum.tobytes()


@all_paths
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_group_that_is_not_finite_says_so(
    rng: np.random.Generator, isa: _native.Isa, poison: float
) -> None:
    x = varied(rng)
    x[7, 70] = poison
    acts = _native.quantize(isa, x)
    assert np.argwhere(np.isnan(acts.scale)).tolist() == [[7, 2]]
    assert np.argwhere(np.isnan(acts.sum)).tolist() == [[7, 2]]
    assert not acts.q[7, 64:96].any()


@all_paths
@pytest.mark.parametrize("cols", [32, 96, 576, 4096])
def test_rms_norm(rng: np.random.Generator, isa: _native.Isa, cols: int) -> None:
    x = (rng.normal(size=(5, cols)) * [[1e-4], [1], [10], [1e4], [0]]).astype(np.float32)
    weight = rng.normal(size=cols).astype(np.float32)
    wide: Doubles = x.astype(np.float64)
    squares = np.square(wide).mean(axis=1, keepdims=True)
    exact = wide / np.sqrt(squares + 1e-5) * weight
    assert_rounded(_native.rmsnorm(isa, x, weight, 1e-5), exact, slack=2e-6)


@all_paths
def test_silu(rng: np.random.Generator, isa: _native.Isa) -> None:
    """One value a group, so that rounding to 127 parts leaves it nearly whole."""
    gate = np.zeros((1, 32 * 4001), dtype=np.float32)
    gate[0, ::32] = np.linspace(-100, 100, 4001)
    up = np.zeros_like(gate)
    up[0, ::32] = rng.normal(size=4001)
    wide = gate.astype(np.float64)
    exact = wide / (1 + np.exp(-wide)) * up
    error = np.abs(values_of(_native.silu_mul(isa, gate, up)) - exact)
    assert (error <= 5e-7 * np.abs(exact) + 1e-30).all()


def test_paths_agree_to_the_bit(rng: np.random.Generator) -> None:
    x, up = varied(rng), varied(rng)
    x[8, 3], up[9, 40] = np.inf, np.nan
    weight = rng.normal(size=(192,)).astype(np.float32)
    first = _native.Isa.portable
    for isa in PATHS:
        assert same_bits(_native.quantize(isa, x), _native.quantize(first, x))
        assert same_bits(
            _native.rmsnorm(isa, x, weight, 1e-6), _native.rmsnorm(first, x, weight, 1e-6)
        )
        assert same_bits(_native.silu_mul(isa, x, up), _native.silu_mul(first, x, up))
