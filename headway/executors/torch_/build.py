"""From sizes and words to a torch executor, its pool sized by the memory that is there."""

import torch

from headway.core.plan import Capacity
from headway.errors import ConfigError
from headway.executors.cpu import available_memory_bytes
from headway.executors.native import NativeOptions
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.options import TorchOptions
from headway.executors.torch_.pools import block_bytes
from headway.executors.torch_.weights import parameter_bytes
from headway.models.types import Weights

_KEPT_FREE = 0.1
_ACTIVATION_BYTES = 1_500_000_000
"""Kept for activations, attention's gathered blocks and logits, on a GPU."""
_CPU_SHARE = 0.4
_CPU_MOST_TOKENS = 65_536


def options_for(device: str, dtype: str) -> TorchOptions:
    """Bits that don't depend on neighbours on a CPU, where speed is not the point."""
    return TorchOptions(device, dtype, invariant=device == "cpu")


def pool_blocks(weights: Weights, options: TorchOptions, block_size: int) -> int:
    """Blocks for a pool beside the weights. Raises ConfigError where none fits."""
    size = block_bytes(weights.config, block_size, options.torch_dtype)
    weight_bytes = parameter_bytes(weights, options.torch_dtype)
    if options.device == "cpu":
        room = int((available_memory_bytes() - weight_bytes) * _CPU_SHARE)
        blocks = min(room // size, _CPU_MOST_TOKENS // block_size)
    else:
        free, _ = torch.cuda.mem_get_info(torch.device(options.device))
        blocks = blocks_beside(free, weight_bytes, size)
    if blocks < 1:
        raise ConfigError(f"the memory of {options.device} holds no KV pool beside the weights")
    return blocks


def blocks_beside(free_bytes: int, weight_bytes: int, size: int) -> int:
    """Blocks of `size` bytes that fit beside weights and activations."""
    return int(free_bytes * (1 - _KEPT_FREE) - weight_bytes - _ACTIVATION_BYTES) // size


def build_executor(weights: Weights, sizes: NativeOptions, options: TorchOptions) -> TorchExecutor:
    """An executor of these sizes. Raises ConfigError."""
    capacity = Capacity(
        kv_blocks=sizes.kv_blocks,
        host_blocks=sizes.host_blocks,
        block_size=sizes.block_size,
        max_seqs=sizes.max_seqs,
        max_step_tokens=sizes.max_step_tokens,
        max_model_len=sizes.max_model_len,
        vocab_size=weights.config.vocab,
    )
    if sizes.threads and options.device == "cpu":
        torch.set_num_threads(sizes.threads)
    return TorchExecutor(weights, capacity, options)
