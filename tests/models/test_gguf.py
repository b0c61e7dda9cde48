"""The GGUF reader: against the `gguf` package, and against files that lie."""

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import ModelError
from headway.models.gguf import read_gguf
from headway.models.loader import load_model
from headway.models.quant import Encoding
from tests.models.writers import RawTensor, Value, gguf_bytes, tiny_gguf

_ONE = RawTensor("t", int(Encoding.F32), (2, 32), b"\1" * 256)


def _write(path: Path, data: bytes) -> Path:
    file = path / "model.gguf"
    file.write_bytes(data)
    return file


def test_reads_what_the_reference_reads(smollm2_path: Path) -> None:
    ours, theirs = read_gguf(smollm2_path), gguf.GGUFReader(smollm2_path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.encoding.name == tensor.tensor_type.name
        assert mine.shape == tuple(int(dim) for dim in reversed(tensor.shape))
        assert mine.data.size == tensor.n_bytes
        np.testing.assert_array_equal(mine.data[:64], tensor.data.view(np.uint8).reshape(-1)[:64])
    strings = ours.metadata.strings("tokenizer.ggml.merges")
    field = theirs.fields["tokenizer.ggml.merges"]
    assert len(strings) == len(field.data)
    assert strings[-1] == bytes(field.parts[field.data[-1]]).decode()
    assert ours.metadata.number("llama.rope.freq_base") == 100_000.0


def test_indexing_is_fast(smollm2_path: Path) -> None:
    """98,000 strings in well under the reference's seconds; the bound leaves room for noise."""
    start = time.thread_time()
    read_gguf(smollm2_path)
    assert time.thread_time() - start < 0.5


def test_reads_what_the_reference_writes(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama")
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_int32("a.i32", -5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_array("a.strings", ["x", "", "ü"])
    writer.add_array("a.ints", [1, 2, 3])
    writer.add_custom_alignment(64)
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("odd", np.arange(3, dtype=np.float32))
    writer.add_tensor("m", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "w.gguf")
    metadata = file.metadata
    assert metadata.integer("a.u64") == 1 << 40
    assert metadata.integer("a.i32") == -5
    assert metadata.number("a.f64") == 0.1
    assert metadata.flag("a.bool") is True
    assert metadata.strings("a.strings") == ["x", "", "ü"]
    assert metadata.numbers("a.ints").tolist() == [1, 2, 3]
    assert file.tensors["m"].shape == (3, 32)
    np.testing.assert_array_equal(file.tensors["m"].data.view(np.float32), values.reshape(-1))


@pytest.mark.parametrize("key", ["missing", "text", "list", "flag"])
def test_a_key_of_another_kind_is_an_error(tmp_path: Path, key: str) -> None:
    keys: dict[str, Value] = {"text": "x", "list": [1, 2], "flag": True}
    metadata = read_gguf(_write(tmp_path, gguf_bytes(keys, [_ONE]))).metadata
    with pytest.raises(ModelError, match=key):
        metadata.integer(key)
    with pytest.raises(ModelError, match=key):
        metadata.strings(key)


def _patched(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


_GOOD = gguf_bytes({"general.alignment": 32, "a": ["x", "y"], "b": [1, 2]}, [_ONE])
_HUGE = struct.pack("<Q", 1 << 62)
_ARRAY_COUNT = _GOOD.index(b"a" + struct.pack("<II", 9, 8)) + 9
_NUMBER_COUNT = _GOOD.index(b"b" + struct.pack("<II", 9, 5)) + 9
_TENSOR = _GOOD.index(b"t" + struct.pack("<I", 2)) + 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "can't be read"),
        (b"GGUF", "not a GGUF"),
        (b"PK\3\4" + _GOOD[4:], "not a GGUF"),
        (_patched(_GOOD, 4, struct.pack("<I", 1)), "version 1"),
        (_patched(_GOOD, 4, struct.pack(">I", 3)), "big-endian"),
        (_patched(_GOOD, 8, _HUGE), "tensors"),
        (_patched(_GOOD, 16, _HUGE), "keys"),
        (_patched(_GOOD, 24, _HUGE), "string of"),
        (_patched(_GOOD, _ARRAY_COUNT, _HUGE), "array"),
        (_patched(_GOOD, _ARRAY_COUNT, struct.pack("<Q", 1 << 20)), "ends inside"),
        (_patched(_GOOD, _ARRAY_COUNT + 8, _HUGE), "ends inside"),
        (_patched(_GOOD, _NUMBER_COUNT, struct.pack("<Q", 1 << 23)), "ends inside"),
        (_patched(_GOOD, _NUMBER_COUNT - 4, struct.pack("<I", 9)), "value type 9"),
        (_patched(_GOOD, _NUMBER_COUNT - 8, struct.pack("<I", 77)), "value type 77"),
        (_patched(_GOOD, _TENSOR, struct.pack("<I", 1 << 31)), "dimensions"),
        (_patched(_GOOD, _TENSOR + 4, _HUGE), "outside the file"),
        (_patched(_GOOD, _TENSOR + 4, struct.pack("<Q", 0)), "can't be F32"),
        (_patched(_GOOD, _TENSOR + 20, struct.pack("<I", 20)), "IQ4_NL"),
        (_patched(_GOOD, _TENSOR + 20, struct.pack("<I", 99)), "number 99"),
        (_patched(_GOOD, _TENSOR + 20, struct.pack("<I", int(Encoding.Q4_K))), "can't be Q4_K"),
        (_patched(_GOOD, _TENSOR + 24, _HUGE), "outside the file"),
        (_patched(_GOOD, _TENSOR + 24, struct.pack("<Q", 7)), "outside the file"),
        (_GOOD[:-1], "outside the file"),
        (gguf_bytes({"general.alignment": 0}, [_ONE]), "alignment"),
        (gguf_bytes({"split.count": 4}, [_ONE]), "shards"),
        (gguf_bytes({}, [_ONE, _ONE]), "twice"),
        (gguf_bytes({"ab": 1, "aa": 2}, [_ONE]).replace(b"ab", b"aa"), "twice"),
        (gguf_bytes({"kk": 1}, [_ONE]).replace(b"kk", b"\xff\xfe"), "UTF-8"),
    ],
)
def test_a_file_that_lies_is_refused_in_one_line(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as error:
        read_gguf(_write(tmp_path, data))
    assert "\n" not in str(error.value)
    assert "model.gguf" in str(error.value)


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    file = read_gguf(_write(tmp_path, gguf_bytes({"a": 1}, [_ONE], version=2)))
    assert file.tensors["t"].shape == (2, 32)


def _loads_or_says_why(path: Path) -> None:
    """Loading ends in a model or a ModelError of one line, without large allocations."""
    tracemalloc.start()
    try:
        load_model(path)
    except ModelError as e:
        assert "\n" not in str(e)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20


_fuzz = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_fuzz
@given(cut=st.floats(0, 1), in_header=st.booleans())
def test_truncation_anywhere(tmp_path: Path, cut: float, in_header: bool) -> None:
    data = tiny_gguf(tmp_path / "tiny.gguf", matrices=Encoding.Q4_1).read_bytes()
    length = 12_000 if in_header else len(data)
    _loads_or_says_why(_write(tmp_path, data[: int(cut * (length - 1))]))


@_fuzz
@given(
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6),
    in_header=st.booleans(),
)
def test_flipped_bytes_anywhere(
    tmp_path: Path, flips: list[tuple[float, int]], in_header: bool
) -> None:
    data = bytearray(tiny_gguf(tmp_path / "tiny.gguf", matrices=Encoding.Q5_1).read_bytes())
    length = 12_000 if in_header else len(data)
    for place, value in flips:
        data[int(place * (length - 1))] = value
    _loads_or_says_why(_write(tmp_path, bytes(data)))
