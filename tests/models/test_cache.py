"""Digests that are remembered."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from headway.models.cache import file_sha256

LARGE = (1 << 24) + 5


def large(path: Path, first: bytes = b"a") -> Path:
    """A file worth remembering; sparse."""
    path.write_bytes(first)
    os.truncate(path, LARGE)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def memos(cache: Path) -> list[Path]:
    return list(cache.glob("digests/*"))


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file, cache = large(tmp_path / "f"), tmp_path / "cache"
    assert file_sha256(file, cache, racy_s=0) == sha256(file)
    (memo,) = memos(cache)
    known, _ = json.loads(memo.read_text())
    memo.write_text(json.dumps([known, "00" * 32]))
    assert file_sha256(file, cache) == "00" * 32
    times = file.stat()
    large(file, b"b")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_sha256(file, cache) == sha256(file)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[[], "00"]', "[[1,2,3,4,5], 7]", "null"])
def test_a_memo_that_means_nothing_is_passed_over(tmp_path: Path, text: str) -> None:
    file, cache = large(tmp_path / "f"), tmp_path / "cache"
    file_sha256(file, cache, racy_s=0)
    (memo,) = memos(cache)
    memo.write_text(text)
    assert file_sha256(file, cache) == sha256(file)


def test_files_changed_just_now_and_small_ones_are_not_remembered(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    file_sha256(large(tmp_path / "f"), cache, racy_s=60)
    small = tmp_path / "g"
    small.write_bytes(b"x")
    assert file_sha256(small, cache, racy_s=0) == sha256(small)
    assert not memos(cache)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    file, cache = large(tmp_path / "f"), tmp_path / "no folder"
    cache.write_text("")
    assert file_sha256(file, cache, racy_s=0) == sha256(file)
