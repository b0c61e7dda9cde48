"""Reader of GGUF files, versions 2 and 3, little-endian. Bounded: nothing in a file is believed
before it is checked against the file's size, and nothing is copied before it is asked for.

    "GGUF"  u32 version  u64 tensors  u64 keys
    keys:    string name, u32 type, value              string = u64 length, bytes
    tensors: string name, u32 dims, dims u64s, u32 type, u64 offset
    padding to `general.alignment`, then the tensors' bytes
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from headway.errors import ModelError
from headway.models.quant import BLOCK_SIZES, Encoding, StoredTensor

_MAX_KEYS = 1 << 14
_MAX_TENSORS = 1 << 16
_MAX_ARRAY = 1 << 24
_MAX_NAME_BYTES = 1 << 10
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True, slots=True)
class _ArrayRef:
    """An array left in the file: element type, count, offset of the first element."""

    type: int
    count: int
    offset: int


_Value = int | float | str | _ArrayRef


class Metadata:
    """A file's keys, read with the type the caller expects.

    Each getter raises ModelError where the key is missing (and no default is given) or holds
    another type. Arrays are decoded when asked for.
    """

    def __init__(self, values: Mapping[str, _Value], buffer: mmap.mmap) -> None:
        self._values = values
        self._buffer = buffer

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def string(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key, default)
        return value if isinstance(value, str) else self._fail(key, "a string")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self._fail(key, "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        self._fail(key, "a number")

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._values.get(key, default)
        return value if isinstance(value, bool) else self._fail(key, "a truth value")

    def strings(self, key: str) -> list[str]:
        """An array of strings. A token array of 50,000 takes about 10 ms."""
        ref = self._values.get(key)
        if not isinstance(ref, _ArrayRef) or ref.type != _STRING:
            self._fail(key, "an array of strings")
        buffer, position, unpack = self._buffer, ref.offset, _U64.unpack_from
        out = []
        try:
            for _ in range(ref.count):
                start = position + 8
                position = start + unpack(buffer, position)[0]
                out.append(str(buffer[start:position], "utf-8"))
        except UnicodeDecodeError as e:
            raise ModelError(f"GGUF: {key!r} holds text that is not UTF-8") from e
        return out

    def numbers(self, key: str) -> npt.NDArray[np.generic]:
        """An array of numbers, as stored; a view of the file."""
        ref = self._values.get(key)
        if not isinstance(ref, _ArrayRef) or ref.type == _STRING:
            self._fail(key, "an array of numbers")
        dtype = np.dtype(_SCALARS[ref.type].format)
        return np.frombuffer(self._buffer, dtype, ref.count, ref.offset)

    def _fail(self, key: str, kind: str) -> NoReturn:
        problem = f"is not {kind}" if key in self._values else "is missing"
        raise ModelError(f"GGUF: {key!r} {problem}")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A mapped file. The mapping lives as long as any tensor's data does."""

    metadata: Metadata
    tensors: Mapping[str, StoredTensor]
    buffer: mmap.mmap


def read_gguf(path: Path) -> GgufFile:
    """Map and index a file: about 15 ms for 50,000 tokens and as many merges.

    Raises ModelError, in one line, for a file that is not GGUF, is cut short, names sizes that it
    can't hold, or uses a version or tensor type that isn't supported.
    """
    try:
        with path.open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as e:
        raise ModelError(f"{path}: can't be read: {e}") from e
    try:
        return _Parser(buffer).file()
    except ModelError as e:
        raise ModelError(f"{path}: {e}") from e


class _Parser:
    """A position in the header that never passes the end of the file."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer = buffer
        self._size = len(buffer)
        self._position = 0

    def file(self) -> GgufFile:
        tensor_count, key_count = self._counts()
        values = self._keys(key_count)
        metadata = Metadata(values, self._buffer)
        if metadata.integer("split.count", 1) > 1:
            raise ModelError("GGUF: files split into shards are not supported; merge them first")
        heads = self._tensor_heads(tensor_count)
        alignment = metadata.integer("general.alignment", 32)
        if not 1 <= alignment <= _MAX_ALIGNMENT:
            raise ModelError(f"GGUF: alignment of {alignment} bytes")
        base = -(-self._position // alignment) * alignment
        tensors = {head.name: self._tensor(head, base, alignment) for head in heads}
        return GgufFile(metadata, tensors, self._buffer)

    def _counts(self) -> tuple[int, int]:
        if self._size < 24 or self._buffer[:4] != b"GGUF":
            raise ModelError("not a GGUF file")
        self._position = 4
        version = self._u32()
        if version & 0xFFFF == 0:
            raise ModelError("GGUF: big-endian files are not supported")
        if version not in (2, 3):
            raise ModelError(f"GGUF: version {version} is not supported (2 and 3 are)")
        tensors, keys = self._u64(), self._u64()
        if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
            raise ModelError(f"GGUF: {tensors} tensors and {keys} keys are more than any model has")
        return tensors, keys

    def _keys(self, count: int) -> dict[str, _Value]:
        values: dict[str, _Value] = {}
        for _ in range(count):
            name = self._name()
            if name in values:
                raise ModelError(f"GGUF: key {name!r} appears twice")
            values[name] = self._value(self._u32())
        return values

    def _value(self, kind: int) -> _Value:
        if kind == _STRING:
            return self._string(self._size)
        if kind == _ARRAY:
            return self._array()
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise ModelError(f"GGUF: unknown value type {kind}")
        value: int | float = scalar.unpack_from(self._buffer, self._advance(scalar.size))[0]
        return value

    def _array(self) -> _ArrayRef:
        kind, count = self._u32(), self._u64()
        if kind != _STRING and kind not in _SCALARS:
            raise ModelError(f"GGUF: arrays of value type {kind} are not supported")
        if count > _MAX_ARRAY:
            raise ModelError(f"GGUF: an array of {count} elements is longer than any model has")
        ref = _ArrayRef(kind, count, self._position)
        if kind == _STRING:
            self._skip_strings(count)
        else:
            self._advance(count * _SCALARS[kind].size)
        return ref

    def _skip_strings(self, count: int) -> None:
        # The hottest loop of loading: lengths must be walked one after the other.
        buffer, position, unpack = self._buffer, self._position, _U64.unpack_from
        last = self._size - 8
        for _ in range(count):
            if position > last:
                self._cut_short()
            position += 8 + unpack(buffer, position)[0]
        if position > self._size:
            self._cut_short()
        self._position = position

    def _tensor_heads(self, count: int) -> "list[_TensorHead]":
        heads: dict[str, _TensorHead] = {}
        for _ in range(count):
            name, dims = self._name(), self._u32()
            if not 1 <= dims <= _MAX_DIMS:
                raise ModelError(f"GGUF: tensor {name!r} has {dims} dimensions")
            if name in heads:
                raise ModelError(f"GGUF: tensor {name!r} appears twice")
            shape = tuple(reversed([self._u64() for _ in range(dims)]))
            heads[name] = _TensorHead(name, shape, self._u32(), self._u64())
        return list(heads.values())

    def _tensor(self, head: "_TensorHead", base: int, alignment: int) -> StoredTensor:
        try:
            encoding = Encoding(head.type)
        except ValueError:
            kind = _UNSUPPORTED.get(head.type, f"number {head.type}")
            raise ModelError(
                f"GGUF: tensor {head.name!r} has type {kind}, which is not supported"
            ) from None
        block = BLOCK_SIZES[encoding]
        values = 1
        for dim in head.shape:
            values *= dim
        if head.shape[-1] % block.elements or values == 0:
            raise ModelError(
                f"GGUF: tensor {head.name!r} of shape {head.shape} can't be {encoding.name}"
            )
        start, length = base + head.offset, values // block.elements * block.bytes
        if head.offset % alignment or start + length > self._size:
            raise ModelError(
                f"GGUF: tensor {head.name!r} lies outside the file (is the download complete?)"
            )
        data = np.frombuffer(self._buffer, np.uint8, length, start)
        return StoredTensor(head.name, encoding, head.shape, data)

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._buffer, self._advance(4))[0]
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._buffer, self._advance(8))[0]
        return value

    def _name(self) -> str:
        return self._string(_MAX_NAME_BYTES)

    def _string(self, limit: int) -> str:
        length = self._u64()
        if length > limit:
            raise ModelError(f"GGUF: a string of {length} bytes where at most {limit} can stand")
        start = self._advance(length)
        try:
            return self._buffer[start : self._position].decode()
        except UnicodeDecodeError as e:
            raise ModelError("GGUF: a name or string is not UTF-8") from e

    def _advance(self, count: int) -> int:
        """Move past `count` bytes; returns where they start."""
        start = self._position
        if count > self._size - start:
            self._cut_short()
        self._position = start + count
        return start

    def _cut_short(self) -> NoReturn:
        raise ModelError("GGUF: the file ends inside its header (is the download complete?)")


@dataclass(frozen=True, slots=True)
class _TensorHead:
    """A tensor as the header announces it; `type` and `offset` are unchecked."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


_UNSUPPORTED = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
