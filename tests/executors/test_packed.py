"""Packed weights from a file: the same bits, and no file can do harm."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from headway.executors.native import NativeExecutor
from headway.executors.packed import WeightCache
from headway.models.loader import load_model
from headway.models.types import TensorType, Weights
from tests.native.helpers import OPTIONS, Bench
from tests.tiny import ALL, LLAMA, tiny_weights

PROMPT = [1, 5, 9, 100, 7]
HUGE_PAGE = 2 << 20


def logits(weights: Weights, cache: WeightCache | None) -> tuple[bytes, bool]:
    """Of a prompt's last token, and whether the weights came from a file."""
    executor = NativeExecutor(weights, OPTIONS, cache)
    try:
        bench = Bench(weights, executor)
        run = bench.run(PROMPT)
        bench.decode(run, 1)
        return run.logits[0].tobytes(), executor.native.mapped
    finally:
        executor.close()


def files(cache: WeightCache) -> list[Path]:
    """What is in the folder."""
    return sorted(cache.folder.iterdir())


@pytest.mark.parametrize("name", ALL)
def test_mapped_weights_give_the_same_bits(tmp_path: Path, name: str) -> None:
    weights, cache = tiny_weights(ALL[name]), WeightCache(tmp_path / "made" / "here")
    packed, mapped = logits(weights, None)
    assert not mapped
    assert logits(weights, cache) == (packed, False)
    assert logits(weights, cache) == (packed, True)


def test_gate_and_up_of_different_types_come_from_the_file_too(tmp_path: Path) -> None:
    weights, cache = tiny_weights(), WeightCache(tmp_path)
    other = tiny_weights(replace(LLAMA, types=(TensorType.Q8_0, TensorType.Q8_0)))
    mixed = replace(
        weights,
        tensors=dict(weights.tensors) | {"layers.0.up": other.tensors["layers.0.up"]},
    )
    first = logits(mixed, cache)[0]
    assert logits(mixed, cache) == (first, True)


@pytest.mark.parametrize("left", [0, 1, 127, 128, 4096, HUGE_PAGE, HUGE_PAGE + 64, -64, -1])
def test_a_file_cut_short_is_made_anew(tmp_path: Path, left: int) -> None:
    weights, cache = tiny_weights(), WeightCache(tmp_path)
    whole, _ = logits(weights, cache)
    (file,) = files(cache)
    content = file.read_bytes()
    os.truncate(file, left if left >= 0 else len(content) + left)
    assert logits(weights, cache) == (whole, False)
    assert file.read_bytes() == content
    assert logits(weights, cache) == (whole, True)


@pytest.mark.parametrize("at", [0, 8, 12, 16, 24, 40, 130, 240, 50_000, HUGE_PAGE, -1])
def test_any_changed_bit_is_noticed(tmp_path: Path, at: int) -> None:
    weights, cache = tiny_weights(), WeightCache(tmp_path)
    whole, _ = logits(weights, cache)
    (file,) = files(cache)
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)
    assert logits(weights, cache) == (whole, False)
    assert logits(weights, cache) == (whole, True)


def _in_huge_pages() -> int:
    """Bytes of this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    wanted = ("AnonHugePages:", "FilePmdMapped:")
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(wanted))


def _has_huge_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


def test_weights_are_in_huge_pages_though_their_file_is_not(
    tmp_path: Path, smollm2_path: Path
) -> None:
    weights, cache = load_model(smollm2_path).weights, WeightCache(tmp_path)
    expected, _ = logits(weights, cache)
    (file,) = files(cache)
    content = file.read_bytes()
    with file.open("wb", buffering=0) as small:  # the kernel keeps pages as large as the writes
        for at in range(0, len(content), 4096):
            small.write(content[at : at + 4096])
    before = _in_huge_pages()
    executor = NativeExecutor(weights, OPTIONS, cache)
    try:
        assert executor.native.mapped
        huge = _in_huge_pages() - before
    finally:
        executor.close()
    assert logits(weights, cache) == (expected, True)
    # Mapped it would have next to none; in memory that is in pieces it may not get all.
    assert huge >= 0.2 * len(content) or not _has_huge_pages()


def test_other_weights_under_the_same_name_are_not_taken(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path)
    ours = replace(tiny_weights(), fingerprint="a" * 40 + "1")
    theirs = replace(tiny_weights(seed=1), fingerprint="a" * 40 + "2")
    expected = logits(ours, None)[0]
    logits(theirs, cache)
    assert logits(ours, cache) == (expected, False)


def test_several_may_start_at_once(tmp_path: Path) -> None:
    weights, cache = tiny_weights(), WeightCache(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: logits(weights, cache)[0], range(12)))
    assert len(set(answers)) == 1
    assert len(files(cache)) == 1
    assert logits(weights, cache) == (answers[0], True)


def test_a_folder_that_cannot_be_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = WeightCache(tmp_path / "file" / "below")
    with caplog.at_level(logging.WARNING):
        assert logits(tiny_weights(), cache) == logits(tiny_weights(), None)
    assert [r.getMessage() for r in caplog.records] == [
        f"packed weights are not kept in {cache.folder}: Not a directory"
    ]


_FULL_DISK = """
import logging, resource, signal, sys
from pathlib import Path
from headway.executors.packed import WeightCache
from tests.executors.test_packed import logits, tiny_weights
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
logging.basicConfig(format="%(message)s")
assert logits(tiny_weights(), WeightCache(Path(sys.argv[1]))) == logits(tiny_weights(), None)
"""


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == f"packed weights are not kept in {tmp_path}: write: File too large\n"
    assert not list(tmp_path.iterdir())


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    models = [replace(tiny_weights(), fingerprint=f"{i}" * 40) for i in range(3)]
    one_file = WeightCache(tmp_path / "one")
    logits(models[0], one_file)
    size = files(one_file)[0].stat().st_size
    cache = WeightCache(tmp_path / "two", most_bytes=2 * size)
    for age_s, i in ((300, 0), (200, 1)):
        logits(models[i], cache)
        then_s = files(cache)[-1].stat().st_mtime - age_s
        os.utime(cache.file_for(models[i].fingerprint), (then_s, then_s))
    assert logits(models[0], cache)[1]  # used again, so model 1 is the oldest now
    logits(models[2], cache)
    assert [file.name[0] for file in files(cache)] == ["0", "2"]


def test_files_that_a_killed_process_left_are_removed(tmp_path: Path) -> None:
    weights, cache = tiny_weights(), WeightCache(tmp_path)
    stale, fresh = tmp_path / "x.packed.AbCdEf", tmp_path / "x.packed.GhIjKl"
    for file in (stale, fresh):
        file.write_bytes(b"x")
    os.utime(stale, (1e9, 1e9))
    logits(weights, cache)
    assert not stale.exists()
    assert fresh.exists()
