"""The torch executor passes the conformance suite on the CPU, on tiny models of each family."""

import pytest

from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.options import TorchOptions
from headway.testing import conformance, make_capacity
from tests.tiny import ALL, tiny_weights

WEIGHTS = {name: tiny_weights(tiny) for name, tiny in ALL.items()}
CHECKS = (*conformance.CHECKS, conformance.check_masks)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
@pytest.mark.parametrize("model", ["llama", "qwen2", "qwen3"])
def test_conformance(check: conformance.Check, model: str) -> None:
    capacity = make_capacity(
        kv_blocks=32,
        host_blocks=8,
        block_size=16,
        max_seqs=4,
        max_step_tokens=80,
        max_model_len=128,
    )
    check(lambda: TorchExecutor(WEIGHTS[model], capacity, TorchOptions(layers_a_launch=1)))
