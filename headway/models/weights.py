"""Stored tensors to the weights an executor takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headway.errors import ModelError
from headway.models.arch import Slot, slots
from headway.models.quant import Encoding, StoredTensor, dequantize, requantize, row_bytes
from headway.models.types import ModelConfig, Tensor, TensorType

_Scalar = TypeVar("_Scalar", bound=np.generic)

_FLOATS = {Encoding.F32, Encoding.F16, Encoding.BF16}
_KEPT = {Encoding[kind.value] for kind in TensorType} - _FLOATS
"""Matrix encodings that executors compute with as they are."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one kind of file stores a model.

    name_of: a slot's name in the file.
    target: what a slot's matrix becomes where executors don't know its encoding; None leaves
        float types as they are.
    interleaved: whether rows of Q and K follow the interleaved form of RoPE where a slot says so.
    """

    name_of: Callable[[Slot], str]
    target: Callable[[Slot], TensorType | None]
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Assembled:
    """Tensors under the names of `Weights.tensors`, and a line on each conversion."""

    tensors: Mapping[str, Tensor]
    notices: tuple[str, ...]


def assemble(
    config: ModelConfig, stored: Mapping[str, StoredTensor], layout: Layout, tied: bool
) -> Assembled:
    """Every tensor of the model, in types that executors take.

    stored: all tensors of the file that mean something; one that no slot asks for is refused,
        since leaving it out would give other answers and no error.
    Raises ModelError for missing, surplus or misshapen tensors.
    """
    remaining = dict(stored)
    tensors: dict[str, Tensor] = {}
    errors: dict[tuple[str, str], list[float]] = {}
    for slot in slots(config, tied):
        name = layout.name_of(slot)
        source = remaining.pop(name, None)
        if source is None:
            raise ModelError(f"tensor {name!r} is missing")
        if source.shape != slot.shape:
            raise ModelError(f"tensor {name!r} has shape {source.shape}, not {slot.shape}")
        if len(slot.shape) == 1:
            tensors[slot.name] = _vector(source, slot, layout)
        else:
            tensors[slot.name] = _matrix(source, slot, layout, errors)
    if remaining:
        raise ModelError(f"tensor {min(remaining)!r} is not part of a supported model")
    tensors.setdefault("head", tensors["embed"])
    return Assembled(tensors, _notices(errors))


def as_float32(tensor: StoredTensor) -> npt.NDArray[np.float32]:
    """The values of a tensor in a float type; raises ModelError for any other."""
    if tensor.encoding not in _FLOATS:
        raise ModelError(f"tensor {tensor.name!r} is {tensor.encoding.name}, not a float type")
    return dequantize(tensor.encoding, tensor.data)


def _vector(source: StoredTensor, slot: Slot, layout: Layout) -> Tensor:
    values = as_float32(source)
    if layout.interleaved and slot.rotated_heads:
        values = half_split(values[:, None], slot.rotated_heads).reshape(-1)
    return Tensor(TensorType.F32, 1, slot.shape[0], values.view(np.uint8))


def _matrix(
    source: StoredTensor,
    slot: Slot,
    layout: Layout,
    errors: dict[tuple[str, str], list[float]],
) -> Tensor:
    rows, cols = slot.shape
    if cols % 32:
        raise ModelError(f"tensor {source.name!r}: rows of {cols} values are not whole 32-groups")
    encoding, data = source.encoding, source.data
    if encoding not in _KEPT:
        target = layout.target(slot)
        if target is None and encoding in _FLOATS:
            return Tensor(TensorType[encoding.name], rows, cols, data)
        target = target or TensorType.Q8_0
        try:
            new = requantize(encoding, data, cols, target)
        except ModelError as e:
            raise ModelError(f"tensor {source.name!r}: {e}") from e
        errors.setdefault((encoding.name, target.value), []).append(new.relative_error)
        encoding, data = Encoding[target.value], new.data
    if layout.interleaved and slot.rotated_heads:
        by_row = data.reshape(rows, row_bytes(encoding, cols))
        data = half_split(by_row, slot.rotated_heads).reshape(-1)
    return Tensor(TensorType[encoding.name], rows, cols, data)


def half_split(rows: npt.NDArray[_Scalar], heads: int) -> npt.NDArray[_Scalar]:
    """Rows of each head from interleaved RoPE (pairs 2i, 2i + 1) to half-split (i, i + half).

    Moves whole rows of [rows, anything], quantised or not, since rows never share a block.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _notices(errors: Mapping[tuple[str, str], list[float]]) -> tuple[str, ...]:
    return tuple(
        f"tensors requantised from {old} to {new}: {len(each)}, with a relative weight error of "
        f"{np.mean(each):.2%} on average, {max(each):.2%} at most"
        for (old, new), each in errors.items()
    )
