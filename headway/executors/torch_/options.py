"""What there is to choose about a torch executor."""

from dataclasses import dataclass

import torch

from headway.core.plan import Capacity
from headway.errors import ConfigError

TILE = 16
"""Rows that are computed together where bits must not depend on neighbours; tokens of a block."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """How a torch executor computes.

    device: "cpu", "cuda" or "cuda:N".
    dtype: of weights, activations and KV cache: one of DTYPES.
    invariant: computes aligned tiles of TILE rows one by one, so that a sequence's bits don't
        depend on its neighbours, on chunking, swaps or recomputes. Costs speed: the least where
        prompts are long, most for decode rows. For tests, and for who needs it.
    layers_a_launch: layers between two looks at whether the step is interrupted.
    attention: "gathered", "paged", or "auto": paged on a GPU that can.
    divided: whether parts of a GPU are made at the start, for lanes of their own.
    graphs: "on", "off", or "auto": steps of one token a sequence are padded to a few sizes, and on
        a GPU recorded once and played again; auto does on a GPU with paged attention.
    """

    device: str = "cpu"
    dtype: str = "fp32"
    invariant: bool = True
    layers_a_launch: int = 4
    divided: bool = True
    attention: str = "auto"
    graphs: str = "auto"

    def __post_init__(self) -> None:
        """Raise ConfigError for what can't be."""
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is not one of: {', '.join(DTYPES)}")
        if self.layers_a_launch < 1:
            raise ConfigError("layers a launch must be at least 1")
        if self.graphs not in ("on", "off", "auto"):
            raise ConfigError(f"graphs {self.graphs!r} are not one of: on, off, auto")
        if self.graphs == "on" and self.invariant:
            raise ConfigError(
                "graphs are for a GPU: padded to a few sizes, bits would depend on neighbours"
            )
        kind = self.device.partition(":")[0]
        if kind not in ("cpu", "cuda"):
            raise ConfigError(f"device {self.device!r} is not cpu or cuda")
        if kind == "cuda" and not torch.cuda.is_available():
            raise ConfigError("there is no CUDA device here, or this torch was built without CUDA")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        return DTYPES[self.dtype]


def check_capacity(capacity: Capacity, options: TorchOptions) -> None:
    """Raise ConfigError for sizes that a torch executor can't have."""
    sizes = (capacity.kv_blocks, capacity.max_seqs, capacity.max_step_tokens, capacity.block_size)
    if min(sizes) < 1 or capacity.host_blocks < 0 or capacity.max_model_len < 1:
        raise ConfigError("sizes must be at least 1")
    if options.invariant and capacity.block_size != TILE:
        raise ConfigError(f"blocks of {TILE} tokens, where bits must not depend on neighbours")
