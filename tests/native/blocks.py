"""Random GGUF blocks of every format, and what they stand for in float64."""

from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from headway import _native

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

# Byte offsets of the fp16 fields of a block.
_HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
# Byte offset of the quants, where the format has a minimum.
_QUANTS = {"Q4_1": 4, "Q4_K": 16}
FORMATS = tuple(_HALVES)
PATHS = [isa for isa in _native.Isa if _native.supports(isa)]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights [rows, cols]: their blocks, and their values by the gguf package."""

    format: str
    cols: int
    blocks: Bytes
    values: npt.NDArray[np.float32]

    @property
    def type(self) -> _native.WeightType:
        return _native.WeightType[self.format]

    def minima(self) -> Doubles:
        """What the format adds to scale * quant of each weight: its value where the quant is 0."""
        if self.format not in _QUANTS:
            return np.zeros(self.values.shape)
        kind = gguf.GGMLQuantizationType[self.format]
        blocks = self.blocks.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]).copy()
        blocks[:, _QUANTS[self.format] :] = 0
        zeros: Doubles = gguf.quants.dequantize(blocks, kind).astype(np.float64)
        return zeros.reshape(self.values.shape)

    def pack(self) -> _native.PackedMatrix:
        return _native.pack(self.type, self.cols, [self.blocks.ravel()])


def random_matrix(
    rng: np.random.Generator,
    name: str,
    rows: int,
    cols: int,
    scale: float = 0.1,
    quant_byte: int | None = None,
) -> Matrix:
    """Blocks of random bytes (or of `quant_byte` throughout) under normal fp16 scales."""
    kind = gguf.GGMLQuantizationType[name]
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    shape = (rows, cols // weights, size)
    if quant_byte is None:
        blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        blocks = np.full(shape, quant_byte, dtype=np.uint8)
    for offset in _HALVES[name]:
        halves = (rng.normal(size=shape[:2]) * scale).astype(np.float16)
        blocks[..., offset : offset + 2] = halves[..., None].view(np.uint8)
    blocks = blocks.reshape(rows, -1)
    return Matrix(name, cols, blocks, gguf.quants.dequantize(blocks, kind))


def values_of(acts: _native.Activations) -> Doubles:
    """What the quantised activations stand for, [tokens, cols]."""
    scales = acts.scale.astype(np.float64)
    quants = acts.q.reshape(*scales.shape, 32)
    return (quants * scales[..., None]).reshape(len(scales), -1)


def same_bits(a: _native.Activations, b: _native.Activations) -> bool:
    return all(
        getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in ("q", "scale", "sum", "halves")
    )
