"""The largest file that is allowed."""

import subprocess
import sys
from pathlib import Path


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.batches.many_lines", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    grown_mb, answered, _ = ended.stdout.split()
    assert int(answered) == 50_000
    # The file has 100 MB, and the answers 30.
    assert float(grown_mb) < 25
