"""The native executor passes the conformance suite, on every instruction path and with threads."""

import pytest

from headway.executors.native import NativeExecutor, NativeOptions
from headway.testing import conformance
from tests.native.helpers import PATHS
from tests.tiny import tiny_weights

WEIGHTS = tiny_weights()
CHECKS = (*conformance.CHECKS, conformance.check_masks)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
@pytest.mark.parametrize("isa", PATHS)
def test_conformance(check: conformance.Check, isa: str) -> None:
    options = NativeOptions(
        kv_blocks=32,
        host_blocks=8,
        max_seqs=4,
        max_step_tokens=80,
        max_model_len=128,
        threads=2,
        isa=isa,
    )
    check(lambda: NativeExecutor(WEIGHTS, options))
