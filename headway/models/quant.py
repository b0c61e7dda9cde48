"""Block formats of GGUF: to float32 and back, vectorised over blocks.

A block holds `elements` consecutive values of one row in `bytes` bytes; rows never share a block.
All scales are little-endian float16. Formulas follow the ggml file format (one value per line):

    Q4_0  d, 16 nibble pairs              x = d (q - 8)         low nibbles first, then high ones
    Q4_1  d, m, 16 nibble pairs           x = d q + m
    Q5_0  d, 32 high bits, nibble pairs   x = d (q - 16)
    Q5_1  d, m, 32 high bits, pairs       x = d q + m
    Q8_0  d, 32 int8                      x = d q
    Q2_K … Q6_K  256 values, 6-bit (4-bit, 8-bit) scales per 16 or 32 of them, scaled by d and dmin
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from headway.errors import ModelError
from headway.models.types import TensorType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_CHUNK_VALUES = 1 << 18  # fits the cache: three times as fast as 1 << 22
_SMALLEST_SCALE = 1e-30
# Shifts and masks by plain ints would widen the arrays in numpy's types.
_ONE, _THREE, _FOUR = np.uint8(1), np.uint8(3), np.uint8(4)
_BITS: Bytes = np.arange(8, dtype=np.uint8)


class Encoding(IntEnum):
    """How a file stores values; the numbers are GGUF's tensor type ids."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Values and bytes of one block."""

    elements: int
    bytes: int


BLOCK_SIZES = {
    Encoding.F32: BlockSize(1, 4),
    Encoding.F16: BlockSize(1, 2),
    Encoding.BF16: BlockSize(1, 2),
    Encoding.Q4_0: BlockSize(32, 18),
    Encoding.Q4_1: BlockSize(32, 20),
    Encoding.Q5_0: BlockSize(32, 22),
    Encoding.Q5_1: BlockSize(32, 24),
    Encoding.Q8_0: BlockSize(32, 34),
    Encoding.Q2_K: BlockSize(256, 84),
    Encoding.Q3_K: BlockSize(256, 110),
    Encoding.Q4_K: BlockSize(256, 144),
    Encoding.Q5_K: BlockSize(256, 176),
    Encoding.Q6_K: BlockSize(256, 210),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a file holds it.

    shape: outermost dimension first, so a matrix is (rows, cols).
    data: raw bytes, shape [bytes], a view of the mapped file.
    """

    name: str
    encoding: Encoding
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class Requantised:
    """A tensor in another format.

    data: raw bytes of the new format, shape [bytes].
    relative_error: ‖new - old‖ / ‖old‖ over all values (0 for an all-zero tensor).
    """

    data: Bytes
    relative_error: float


def row_bytes(encoding: Encoding, cols: int) -> int:
    """Bytes of one row. Raises ModelError where `cols` is not a whole number of blocks."""
    block = BLOCK_SIZES[encoding]
    if cols % block.elements:
        raise ModelError(
            f"a row of {cols} values is not a whole number of {encoding.name} blocks "
            f"of {block.elements}"
        )
    return cols // block.elements * block.bytes


def dequantize(encoding: Encoding, data: Bytes) -> Floats:
    """Values of whole blocks: raw bytes [n] to float32 [blocks * block elements]."""
    block = BLOCK_SIZES[encoding]
    return _DEQUANTISERS[encoding](data.reshape(-1, block.bytes)).reshape(-1)


def quantize(target: TensorType, values: Floats) -> Bytes:
    """Raw bytes of `values`, whose last dimension is a whole number of 32-blocks.

    Offers Q8_0, Q4_1 and Q4_0. Raises ModelError for values that are not finite, or too large.
    """
    blocks = values.reshape(-1, 32)
    if not np.isfinite(blocks).all():
        raise ModelError("the weights hold values that are not finite numbers")
    try:
        return _QUANTISERS[target](blocks).reshape(-1)
    except FloatingPointError as e:
        raise ModelError("the weights are too large for 16-bit scales") from e


def requantize(encoding: Encoding, data: Bytes, cols: int, target: TensorType) -> Requantised:
    """Rows of `cols` values from one format to another, a bounded piece at a time."""
    source_bytes = row_bytes(encoding, cols)
    rows = data.size // source_bytes
    target_bytes = row_bytes(Encoding[target.value], cols)
    out = np.empty(rows * target_bytes, np.uint8)
    step = max(1, _CHUNK_VALUES // cols)
    error = norm = 0.0
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        # Hostile scales may overflow: what comes of it is refused, not warned about.
        with np.errstate(all="ignore"):
            old = dequantize(encoding, data[start * source_bytes : stop * source_bytes])
            new = quantize(target, old)
            difference = dequantize(Encoding[target.value], new) - old
        out[start * target_bytes : stop * target_bytes] = new
        error += float(np.dot(difference, difference))
        norm += float(np.dot(old, old))
    return Requantised(out, float(np.sqrt(error / norm)) if norm else 0.0)


def _half(column: Bytes) -> Floats:
    """Float16 of [n, 2] bytes as float32 [n, 1]."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _nibbles(pairs: Bytes) -> Bytes:
    """[n, k] bytes to [n, 2k]: all low nibbles, then all high ones."""
    return np.concatenate((pairs & 15, pairs >> 4), axis=-1)


def _fifth_bits(column: Bytes) -> Bytes:
    """[n, 4] bytes to [n, 32]: bit j at place j, worth 16."""
    bits: Bytes = np.unpackbits(column, axis=-1, bitorder="little") << _FOUR
    return bits


def _from_f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def _from_bf16(blocks: Bytes) -> Floats:
    widened = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16
    return widened.view(np.float32)


def _from_q4_0(blocks: Bytes) -> Floats:
    return _half(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _from_q4_1(blocks: Bytes) -> Floats:
    return _half(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _half(blocks[:, 2:4])


def _from_q5_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks[:, :2]) * (q.astype(np.float32) - 16)


def _from_q5_1(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks[:, :2]) * q + _half(blocks[:, 2:4])


def _from_q8_0(blocks: Bytes) -> Floats:
    values: Floats = _half(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)
    return values


def _crumbs(packed: Bytes) -> Bytes:
    """Two-bit values: [n, 64] bytes to [n, 2, 4, 32]; halves of 128, then bit pairs, low first."""
    crumbs: Bytes = (packed.reshape(-1, 2, 1, 32) >> _BITS[::2, None]) & _THREE
    return crumbs


def _from_q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    d, dmin = _half(blocks[:, 80:82]), _half(blocks[:, 82:84])
    q = _crumbs(blocks[:, 16:80]).reshape(-1, 16, 16)
    scale: Floats = (d * (scales & 15))[:, :, None]
    low: Floats = (dmin * (scales >> _FOUR))[:, :, None]
    return scale * q - low


def _from_q3_k(blocks: Bytes) -> Floats:
    bits = _BITS.reshape(2, 4, 1)
    high: Bytes = ((blocks[:, None, None, :32] >> bits) & _ONE) << np.uint8(2)
    q = (_crumbs(blocks[:, 32:96]) | high).astype(np.float32) - 4
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])
    top: Bytes = (packed[:, None, 8:] >> _BITS[::2, None]) & _THREE
    scales = (low | (top.reshape(-1, 16) << _FOUR)).astype(np.float32) - 32
    return (_half(blocks[:, 108:110]) * scales)[:, :, None] * q.reshape(-1, 16, 16)


def _six_bit_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and mins [n, 8] of the 12 bytes that Q4_K and Q5_K share.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 mins 0-3 in their low 6 bits; bytes 8-11 hold the low
    nibbles of scales 4-7 (low) and mins 4-7 (high), whose top bits are the spare bits of 0-7.
    """
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((a & 63, (c & 15) | (a >> 6) << _FOUR), axis=1)
    mins = np.concatenate((b & 63, (c >> 4) | (b >> 6) << _FOUR), axis=1)
    return scales, mins


def _from_q4_k(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _scaled_k(blocks, q)


def _from_q5_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high: Bytes = (blocks[:, None, 16:48] >> _BITS[:, None]) & _ONE
    return _scaled_k(blocks, low | high << _FOUR)


def _scaled_k(blocks: Bytes, q: Bytes) -> Floats:
    """x = (d · scale) q - dmin · min, for q [n, 8, 32]."""
    scales, mins = _six_bit_scales(blocks[:, 4:16])
    scale = (_half(blocks[:, :2]) * scales)[:, :, None]
    return scale * q - (_half(blocks[:, 2:4]) * mins)[:, :, None]


def _from_q6_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = _crumbs(blocks[:, 128:192]) << _FOUR
    q = (low | high).astype(np.float32).reshape(-1, 16, 16) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return (_half(blocks[:, 208:210]) * scales)[:, :, None] * q


_DEQUANTISERS: dict[Encoding, Callable[[Bytes], Floats]] = {
    Encoding.F32: _from_f32,
    Encoding.F16: _half,
    Encoding.BF16: _from_bf16,
    Encoding.Q4_0: _from_q4_0,
    Encoding.Q4_1: _from_q4_1,
    Encoding.Q5_0: _from_q5_0,
    Encoding.Q5_1: _from_q5_1,
    Encoding.Q8_0: _from_q8_0,
    Encoding.Q2_K: _from_q2_k,
    Encoding.Q3_K: _from_q3_k,
    Encoding.Q4_K: _from_q4_k,
    Encoding.Q5_K: _from_q5_k,
    Encoding.Q6_K: _from_q6_k,
}


def _round_away(values: Floats) -> Floats:
    """Nearest integer, halves away from zero (C's roundf), unlike numpy's halves to even."""
    rounded: Floats = np.trunc(values + np.copysign(np.float32(0.5), values))
    return rounded


def _inverse(scale: Floats) -> Floats:
    """1 / scale, 0 where scale is 0 or so small that it is 0 in 16 bits and overflows here."""
    usable = np.abs(scale) > _SMALLEST_SCALE
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=usable)


def _as_half(scale: Floats) -> Bytes:
    with np.errstate(over="raise"):
        return scale.astype("<f2").view(np.uint8)


def _pairs(q: Bytes) -> Bytes:
    """[n, 32] values below 16 to [n, 16] bytes; the inverse of `_nibbles`."""
    packed: Bytes = q[:, :16] | q[:, 16:] << _FOUR
    return packed


def _to_q8_0(blocks: Floats) -> Bytes:
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scale = (largest / np.float32(127)).astype(np.float32, copy=False)
    q = _round_away(blocks * _inverse(scale)).astype(np.int8)
    return np.concatenate((_as_half(scale), q.view(np.uint8)), axis=1)


def _to_q4_0(blocks: Floats) -> Bytes:
    # The value of largest magnitude keeps its sign at code 0: there is no +8.
    place = np.abs(blocks).argmax(axis=1)[:, None]
    scale = np.take_along_axis(blocks, place, axis=1) / np.float32(-8)
    q = np.minimum(blocks * _inverse(scale) + np.float32(8.5), 15).astype(np.uint8)
    return np.concatenate((_as_half(scale), _pairs(q)), axis=1)


def _to_q4_1(blocks: Floats) -> Bytes:
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / np.float32(15)
    q = np.clip((blocks - low) * _inverse(scale) + np.float32(0.5), 0, 15).astype(np.uint8)
    return np.concatenate((_as_half(scale), _as_half(low), _pairs(q)), axis=1)


_QUANTISERS: dict[TensorType, Callable[[Floats], Bytes]] = {
    TensorType.Q8_0: _to_q8_0,
    TensorType.Q4_0: _to_q4_0,
    TensorType.Q4_1: _to_q4_1,
}
