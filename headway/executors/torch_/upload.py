"""Lists from the host to the device, by copies that nobody waits for.

`torch.tensor(values, device="cuda")` waits until the device has the values, and all that it was
given before. From pinned memory the copy takes its turn on the stream instead; PyTorch keeps the
pinned memory until the copy is done.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch


def upload(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers, or rows of them, on the device."""
    host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


def refill(target: torch.Tensor, values: Sequence[Any]) -> None:
    """Numbers, or rows of them, into a tensor of their shape."""
    pinned = target.device.type == "cuda"
    target.copy_(torch.tensor(values, dtype=target.dtype, pin_memory=pinned), non_blocking=True)


def upload_bytes(values: bytes, device: torch.device) -> torch.Tensor:
    """[bytes] uint8 on the device; at least one."""
    host = torch.frombuffer(bytearray(values), dtype=torch.uint8)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def upload_lists(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Several lists in one copy, int64; each of the tensors is a part of the whole."""
    whole = upload(list(chain.from_iterable(lists)), torch.int64, device)
    return tuple(whole.split([len(one) for one in lists]))
