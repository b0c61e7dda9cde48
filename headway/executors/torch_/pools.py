"""The KV pools: on the device, and in host memory for what is swapped out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from headway.core.plan import BlockCopy, Capacity, StepPlan
from headway.errors import ConfigError
from headway.executors.rules import written_blocks
from headway.models.types import ModelConfig


def block_shape(config: ModelConfig, block_size: int) -> tuple[int, ...]:
    """[layers, 2, block_size, kv_heads, head_dim]: one block is contiguous over all layers, so
    that it is swapped in one piece; 0 is keys, 1 is values."""
    attention = config.attention
    return (config.layers, 2, block_size, attention.kv_heads, attention.head_dim)


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of a block."""
    return prod(block_shape(config, block_size)) * int(dtype.itemsize)


def runs(copies: Sequence[BlockCopy]) -> Iterator[tuple[int, int, int]]:
    """Copies as (first device block, first host block, blocks): neighbours on both sides go in one
    piece."""
    ordered = sorted(copies, key=lambda copy: copy.device)
    start = 0
    for i in range(1, len(ordered) + 1):
        first = ordered[start]
        if i < len(ordered) and (ordered[i].device, ordered[i].host) == (
            first.device + i - start,
            first.host + i - start,
        ):
            continue
        yield first.device, first.host, i - start
        start = i


@dataclass(frozen=True, slots=True)
class Waits:
    """What of a step must wait for what: only where the same block is concerned."""

    in_after_out: bool
    compute_after_out: bool
    compute_after_in: bool


def waits(plan: StepPlan, block_size: int) -> Waits:
    """A block is written anew once it was copied out, and read once it was copied in. Host blocks
    need no order: a plan doesn't read those that it writes."""
    left = {copy.device for copy in plan.swap_out}
    came = {copy.device for copy in plan.swap_in}
    written = {block for chunk in plan.chunks for block in written_blocks(chunk, block_size)}
    used = {block for chunk in plan.chunks for block in chunk.blocks[: chunk.num_blocks]}
    return Waits(bool(left & came), bool(left & written), bool(came & used))


class Pools:
    """device, host: [blocks, *block_shape]. Host memory is pinned where the device is a GPU, so
    that copies run beside kernels. `device` has one block more than are planned with, the last:
    rows that only fill a batch up write to it."""

    def __init__(
        self, config: ModelConfig, capacity: Capacity, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises ConfigError where the memory doesn't hold them."""
        shape = block_shape(config, capacity.block_size)
        try:
            self.device = torch.zeros((capacity.kv_blocks + 1, *shape), dtype=dtype, device=device)
            pinned = device.type == "cuda" and capacity.host_blocks > 0
            self.host = torch.empty((capacity.host_blocks, *shape), dtype=dtype, pin_memory=pinned)
        except (RuntimeError, MemoryError) as error:
            raise ConfigError(
                f"{capacity.kv_blocks:,} KV blocks and {capacity.host_blocks:,} host blocks are "
                "more than the memory holds"
            ) from error

    def layer(self, index: int) -> torch.Tensor:
        """One layer of the device pool, [blocks, 2, block_size, kv_heads, head_dim]."""
        return self.device[:, index]

    def copy_out(self, copies: Sequence[BlockCopy]) -> None:
        """Device to host."""
        for device, host, count in runs(copies):
            part = self.device[device : device + count]
            self.host[host : host + count].copy_(part, non_blocking=True)

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        """Host to device."""
        for device, host, count in runs(copies):
            part = self.host[host : host + count]
            self.device[device : device + count].copy_(part, non_blocking=True)
