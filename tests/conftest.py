"""Fixtures for all tests."""

from pathlib import Path

import pytest

from headway.models.pull import pull


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model's GGUF file: from the cache, or pulled into it once."""
    return pull()
