"""Seconds of what `make fuzz-readers` does for ten minutes a reader."""

import secrets

import pytest

from tests.readers.fuzz import fuzz
from tests.readers.targets import READERS


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fresh", [False, True])
def test_broken_files_are_refused_and_break_nothing(reader: str, fresh: bool) -> None:
    seed = secrets.randbits(32) if fresh else 1
    outcome = fuzz(reader, 1.5, seed)
    assert outcome.fault == "", f"seed {seed}"
    assert "cases: " in outcome.report and not outcome.report.startswith("0 cases")
