"""Reader of safetensors files, mapped and bounded like the GGUF one.

u64 length of the header, the header in JSON, then the tensors' bytes
header: {name: {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [start, end]}, …}
"""

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from headway.errors import ModelError
from headway.models.quant import BLOCK_SIZES, Encoding, StoredTensor

_MAX_HEADER_BYTES = 1 << 25
_MAX_JSON_BYTES = 1 << 24
_MAX_DIMS = 4
_DTYPES = {"F32": Encoding.F32, "F16": Encoding.F16, "BF16": Encoding.BF16}


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A mapped file; the mapping lives as long as any tensor's data does."""

    tensors: Mapping[str, StoredTensor]
    buffer: mmap.mmap


def read_safetensors(path: Path) -> SafetensorsFile:
    """Map and index one file.

    Raises ModelError, in one line, for a file that is not safetensors, is cut short, or holds
    element types other than F32, F16 and BF16.
    """
    try:
        with path.open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as e:
        raise ModelError(f"{path}: can't be read: {e}") from e
    try:
        return SafetensorsFile(_tensors(buffer), buffer)
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e


def read_folder(folder: Path) -> Mapping[str, SafetensorsFile]:
    """The weight files of a folder by name: those of `model.safetensors.index.json`, or
    `model.safetensors`, or the only one. Raises ModelError where there are none."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weights = read_json(index).get("weight_map")
        names = set(weights.values()) if isinstance(weights, dict) else set()
        if not names or not all(isinstance(name, str) and _is_plain(name) for name in names):
            raise ModelError(f"{index}: does not name the weight files")
    else:
        found = sorted(path.name for path in folder.glob("*.safetensors"))
        names = {"model.safetensors"} & set(found) or set(found)
        if len(names) != 1:
            many = "several *.safetensors files and no index" if names else "no *.safetensors file"
            raise ModelError(f"{folder}: {many}")
    return {name: read_safetensors(folder / name) for name in sorted(names)}


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of bounded size; raises ModelError for anything else."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(f"{path}: {path.stat().st_size} bytes are too many")
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"{path}: can't be read: {e}") from e
    if not isinstance(tree, dict):
        raise ModelError(f"{path}: not a JSON object")
    return tree


def _is_plain(name: str) -> bool:
    """Whether a name stays in its folder."""
    return Path(name).name == name and name.endswith(".safetensors")


def _tensors(buffer: mmap.mmap) -> Mapping[str, StoredTensor]:
    if len(buffer) < 8:
        raise ModelError("not a safetensors file")
    length: int = struct.unpack_from("<Q", buffer)[0]
    if length > len(buffer) - 8:
        raise ModelError("safetensors: the file ends inside its header (is it complete?)")
    if length > _MAX_HEADER_BYTES:
        raise ModelError(f"safetensors: a header of {length} bytes is longer than any model's")
    try:
        header = json.loads(buffer[8 : 8 + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise ModelError(f"safetensors: the header can't be read: {e}") from e
    if not isinstance(header, dict):
        raise ModelError("safetensors: the header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _tensor(name, entry, buffer, 8 + length) for name, entry in header.items()}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name appears twice")
    return values


def _tensor(name: str, entry: object, buffer: mmap.mmap, base: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise ModelError(f"safetensors: tensor {name[:64]!r} has no description")
    dtype = entry.get("dtype")
    shape, span = _naturals(entry.get("shape")), _naturals(entry.get("data_offsets"))
    encoding = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    if encoding is None:
        raise ModelError(
            f"safetensors: tensor {name[:64]!r} has type {str(dtype)[:16]!r}, which is not "
            "supported (F32, F16 and BF16 are)"
        )
    if shape is None or span is None or len(span) != 2 or len(shape) > _MAX_DIMS:
        raise ModelError(f"safetensors: tensor {name[:64]!r} has no proper shape and place")
    start, end = span
    expected = prod(shape) * BLOCK_SIZES[encoding].bytes
    if end - start != expected or base + end > len(buffer):
        raise ModelError(f"safetensors: tensor {name[:64]!r} lies outside the file or its shape")
    data = np.frombuffer(buffer, np.uint8, expected, base + start)
    return StoredTensor(name, encoding, tuple(shape), data)


def _naturals(value: object) -> list[int] | None:
    """A list of integers from 0; None for anything else."""
    proper = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return value if isinstance(value, list) and proper else None
