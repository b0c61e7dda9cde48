"""Block formats against the `gguf` package, to the bit."""

import gguf
import numpy as np
import pytest

from headway.errors import ModelError
from headway.models.quant import BLOCK_SIZES, Encoding, dequantize, quantize, requantize, row_bytes
from headway.models.types import TensorType
from tests.models.writers import random_blocks

_COLS = 256


@pytest.mark.parametrize("encoding", list(Encoding))
def test_dequantise_equals_the_reference(encoding: Encoding) -> None:
    raw = random_blocks(encoding, (24, _COLS), np.random.default_rng(int(encoding)))
    blocks = np.frombuffer(raw, np.uint8)
    ours = dequantize(encoding, blocks)
    theirs = gguf.quants.dequantize(
        blocks.reshape(24, -1), gguf.GGMLQuantizationType(int(encoding))
    )
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs.reshape(-1))


@pytest.mark.parametrize("target", [TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1])
def test_quantise_equals_the_reference(target: TensorType) -> None:
    values = np.random.default_rng(1).normal(size=(64, _COLS)).astype(np.float32)
    values[0] = 0
    values[1] = 3
    values[2] = np.arange(_COLS) - 127.5  # halves: rounding away from zero shows
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType[target.value])
    np.testing.assert_array_equal(quantize(target, values), theirs.reshape(-1))


@pytest.mark.parametrize(
    ("target", "bound"),
    [(TensorType.Q8_0, 0.006), (TensorType.Q4_1, 0.08), (TensorType.Q4_0, 0.09)],
)
def test_requantise_states_the_true_error(target: TensorType, bound: float) -> None:
    values = np.random.default_rng(2).normal(size=(64, _COLS)).astype(np.float32)
    result = requantize(Encoding.F32, values.view(np.uint8).reshape(-1), _COLS, target)
    back = dequantize(Encoding[target.value], result.data).reshape(values.shape)
    error = np.linalg.norm(back - values) / np.linalg.norm(values)
    assert result.relative_error == pytest.approx(error, rel=1e-4)
    assert 0 < result.relative_error < bound


def test_requantise_in_pieces_equals_requantise_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(Encoding.Q5_K, (33, _COLS), np.random.default_rng(3))
    data = np.frombuffer(raw, np.uint8)
    whole = requantize(Encoding.Q5_K, data, _COLS, TensorType.Q8_0)
    monkeypatch.setattr("headway.models.quant._CHUNK_VALUES", 5 * _COLS)
    pieces = requantize(Encoding.Q5_K, data, _COLS, TensorType.Q8_0)
    np.testing.assert_array_equal(whole.data, pieces.data)
    assert whole.relative_error == pytest.approx(pieces.relative_error)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_no_block_can_hold_are_refused(bad: float) -> None:
    values = np.ones((1, 32), np.float32)
    values[0, 5] = bad
    with pytest.raises(ModelError):
        requantize(Encoding.F32, values.view(np.uint8).reshape(-1), 32, TensorType.Q8_0)


@pytest.mark.parametrize("target", [TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1])
def test_values_too_small_for_a_scale_become_zero(target: TensorType) -> None:
    values = np.full((1, 32), 1e-41, np.float32)
    values[0, ::2] = 0
    assert not np.abs(dequantize(Encoding[target.value], quantize(target, values))).max() > 1e-7


def test_a_row_is_whole_blocks() -> None:
    assert row_bytes(Encoding.Q4_K, 512) == 2 * BLOCK_SIZES[Encoding.Q4_K].bytes
    with pytest.raises(ModelError, match="Q4_K"):
        row_bytes(Encoding.Q4_K, 288)
