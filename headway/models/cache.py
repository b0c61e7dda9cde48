"""The cache folder, and the digests of large files that are remembered there."""

import hashlib
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_WORTH_BYTES = 1 << 24
"""Smaller files are read faster than it would matter."""

_RACY_S = 2.0
"""A file changed so lately could change again without another time stamp."""


def default_cache() -> Path:
    """$XDG_CACHE_HOME/headway, or ~/.cache/headway where that is not set or not absolute."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "headway"


def file_sha256(path: Path, cache: Path, racy_s: float = _RACY_S) -> str:
    """SHA-256 of a file, in hex. That of a large one is remembered under `cache` and believed
    for as long as the file's inode, size and time stamps of content and inode stay what they were:
    hashing 5 GB takes longer than all else a start does. One changed in the last `racy_s` seconds
    is not remembered. Raises OSError for the file only."""
    status = path.stat()
    identity = [status.st_dev, status.st_ino, status.st_size]
    identity += [status.st_mtime_ns, status.st_ctime_ns]
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    memo = cache / "digests" / f"{key}.json"
    if status.st_size >= _WORTH_BYTES:
        with suppress(OSError, ValueError, TypeError):
            known, digest = json.loads(memo.read_text())
            if known == identity and len(bytes.fromhex(digest)) == 32:
                return str(digest)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if status.st_size >= _WORTH_BYTES and time.time() - status.st_ctime > racy_s:
        with suppress(OSError):
            _write(memo, json.dumps([identity, digest]))
    return digest


def _write(path: Path, text: str) -> None:
    """Whole or not at all, whoever else writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).replace(path)
