"""Fixtures of the fault tests."""

from collections.abc import Iterator

import pytest

from tests.faults.rig import Ask, oracle


@pytest.fixture(scope="package")
def alone() -> Iterator[Ask]:
    """The oracle: a request's answer on an idle engine with a large pool."""
    with oracle() as ask:
        yield ask
