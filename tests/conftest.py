"""Fixtures for all tests."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from headway.models.pull import pull

# The same examples in every run, so that a change is judged by itself; `make scenarios` looks for
# others with --hypothesis-profile=search.
settings.register_profile("seeded", derandomize=True)
settings.register_profile("search", print_blob=True)
settings.load_profile("seeded")


@pytest.fixture(scope="session")
def smollm2_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's GGUF file: from the cache, or pulled into it once, by one worker."""
    with (tmp_path_factory.getbasetemp().parent / "pull.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return pull()


@pytest.fixture(scope="session", autouse=True)
def _data_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that tests start keep their Batch jobs here, not among those of whoever tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
