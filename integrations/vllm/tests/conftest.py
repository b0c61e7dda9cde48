"""One tiny model for all of these tests, and vLLM in this process, on a CPU, without a network."""

import os
from pathlib import Path

import pytest

# One thread, not bound to a core: the model is tiny, and on a machine that others share two threads
# wait for each other most of the time.
os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    from tiny import make_model

    return make_model(tmp_path_factory.mktemp("model"))
