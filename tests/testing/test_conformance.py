"""The scripted executor passes the suite that it helps to write."""

import pytest

from headway.testing import LinearDuration, ScriptedExecutor, conformance, make_capacity


def make_executor() -> ScriptedExecutor:
    return ScriptedExecutor(make_capacity(host_blocks=16), duration=LinearDuration())


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_scripted_executor_conforms(check: conformance.Check) -> None:
    check(make_executor)


def test_scripted_executor_honours_masks() -> None:
    conformance.check_masks(make_executor)
