"""Safetensors files that lie, and folders that lack something."""

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import ModelError
from headway.models.safetensors import read_folder, read_json, read_safetensors
from tests.models.writers import pack_safetensors, safetensors_bytes


def _write(folder: Path, data: bytes, name: str = "model.safetensors") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_reads_what_the_reference_writes(tmp_path: Path) -> None:
    values: dict[str, npt.NDArray[np.generic]] = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.arange(5, dtype=np.float16),
    }
    safetensors.numpy.save_file(values, tmp_path / "m.safetensors", {"format": "np"})
    tensors = read_safetensors(tmp_path / "m.safetensors").tensors
    assert set(tensors) == {"a", "b"}
    assert tensors["a"].shape == (3, 4)
    assert tensors["a"].data.tobytes() == values["a"].tobytes()
    assert tensors["b"].data.tobytes() == values["b"].tobytes()


def _entry(
    dtype: object = "F32", shape: object = (2, 2), span: object = (0, 16)
) -> dict[str, object]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": span}}


_BODY = bytes(16)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "can't be read"),
        (b"1234567", "not a safetensors"),
        (struct.pack("<Q", 1 << 60) + b"{}", "ends inside"),
        (struct.pack("<Q", 2) + b"{x", "can't be read"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "can't be read"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "can't be read"),
        (struct.pack("<Q", 16) + b'{"t": 1, "t": 2}', "twice"),
        (safetensors_bytes({"t": 5}, _BODY), "no description"),
        (safetensors_bytes(_entry(dtype="F8_E4M3"), _BODY), "F8_E4M3"),
        (safetensors_bytes(_entry(dtype=["F32"]), _BODY), "not supported"),
        (safetensors_bytes(_entry(shape=[2, -2]), _BODY), "proper shape"),
        (safetensors_bytes(_entry(shape=[2, True]), _BODY), "proper shape"),
        (safetensors_bytes(_entry(shape=[1.5]), _BODY), "proper shape"),
        (safetensors_bytes(_entry(shape=[1] * 9), _BODY), "proper shape"),
        (safetensors_bytes(_entry(span=[0]), _BODY), "proper shape"),
        (safetensors_bytes(_entry(span=None), _BODY), "proper shape"),
        (safetensors_bytes(_entry(shape=[1 << 62, 1 << 62]), _BODY), "outside"),
        (safetensors_bytes(_entry(span=[0, 15]), _BODY), "outside"),
        (safetensors_bytes(_entry(span=[16, 0]), _BODY), "outside"),
        (safetensors_bytes(_entry(span=[8, 24]), _BODY), "outside"),
        (safetensors_bytes(_entry(span=[1 << 62, (1 << 62) + 16]), _BODY), "outside"),
        (safetensors_bytes(_entry(), _BODY[:-1]), "outside"),
    ],
)
def test_a_file_that_lies_is_refused_in_one_line(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as error:
        read_safetensors(_write(tmp_path, data))
    assert "\n" not in str(error.value)


_GOOD = pack_safetensors({"a": np.ones((2, 8), np.float32), "b": np.ones(3, np.float32)})


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cut=st.integers(0, len(_GOOD)),
    flips=st.lists(st.tuples(st.integers(0, len(_GOOD) - 1), st.integers(0, 255)), max_size=4),
)
def test_damage_anywhere(tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(_GOOD)
    for place, value in flips:
        data[place] = value
    try:
        read_safetensors(_write(tmp_path, bytes(data[:cut])))
    except ModelError as e:
        assert "\n" not in str(e)


def test_an_index_names_the_shards(tmp_path: Path) -> None:
    one = {"a": np.ones(4, np.float32)}
    _write(tmp_path, pack_safetensors(one), "x-1.safetensors")
    _write(tmp_path, pack_safetensors({"b": one["a"]}), "x-2.safetensors")
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    files = read_folder(tmp_path)
    assert {name for file in files.values() for name in file.tensors} == {"a", "b"}


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "x.bin", "", 7, "missing.safetensors"]
)
def test_an_index_can_t_leave_the_folder(tmp_path: Path, shard: object) -> None:
    index = {"weight_map": {"a": shard}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError):
        read_folder(tmp_path)


@pytest.mark.parametrize("names", [(), ("a.safetensors", "b.safetensors")])
def test_a_folder_without_one_set_of_weights(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        _write(tmp_path, _GOOD, name)
    with pytest.raises(ModelError, match="safetensors"):
        read_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", "nope", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json") as error:
        read_json(tmp_path / "config.json")
    assert "\n" not in str(error.value)
