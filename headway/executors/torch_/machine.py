"""The device's side of a step: streams, waiting, and parts of a GPU for lanes of their own."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from headway.core.types import Lane

SMS_A_UNIT = 8
"""Streaming multiprocessors of a compute unit: compute capability 9.0 divides in eights."""


class Machine(Protocol):
    """Where kernels and copies of a lane go."""

    @property
    def units(self) -> int:
        """Compute units that lanes can divide; 1 where they can't."""
        ...

    def compute(self, lane: Lane, units: int) -> AbstractContextManager[None]:
        """What is launched inside runs on that many units; 0 is all of them."""
        ...

    def copies(self, lane: Lane) -> AbstractContextManager[None]:
        """What is launched inside comes after the lane's earlier work and before its later."""
        ...

    def now_s(self, lane: Lane) -> float:
        """The time once everything launched for the lane is done."""
        ...


class CpuMachine:
    """Everything is done when the call returns."""

    units = 1

    def compute(self, lane: Lane, units: int) -> AbstractContextManager[None]:
        """Nothing to choose."""
        return nullcontext()

    def copies(self, lane: Lane) -> AbstractContextManager[None]:
        """Nothing to choose."""
        return nullcontext()

    def now_s(self, lane: Lane) -> float:
        """The time."""
        return time.perf_counter()


@dataclass(frozen=True, slots=True)
class _Streams:
    """Of one lane: for kernels on all units, for copies, and for kernels on some units."""

    whole: torch.cuda.Stream
    copies: torch.cuda.Stream
    parts: Mapping[int, torch.cuda.Stream]


class CudaMachine:
    """Streams of a GPU. Never run so far: experimental.

    Parts of a GPU are made once, since a partition can't be changed while it is used; a lane
    switches streams instead. They need `SMPartition`, which torch has from 2.15 on; without it
    there is the unified lane only. Memory bandwidth, L2 and copy engines are shared by all parts.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._splits = _splits(device)
        self.units = len(self._splits) + 1 if self._splits else 1
        self._lanes = {
            lane: _Streams(
                torch.cuda.Stream(device),
                torch.cuda.Stream(device),
                {units: streams[lane] for units, streams in self._splits.items() if lane in streams}
                if lane is not Lane.DECODE
                else {self.units - n: s[lane] for n, s in self._splits.items()},
            )
            for lane in Lane
        }

    @contextmanager
    def compute(self, lane: Lane, units: int) -> Iterator[None]:
        """The stream of so many units, which waits for the lane's copies."""
        streams = self._lanes[lane]
        stream = streams.parts.get(units, streams.whole)
        stream.wait_stream(streams.copies)
        with torch.cuda.stream(stream):
            yield
        # What the lane launches next, on whichever stream, comes after this.
        if stream is not streams.whole:
            streams.whole.wait_stream(stream)

    @contextmanager
    def copies(self, lane: Lane) -> Iterator[None]:
        """The lane's stream for copies, which waits for its kernels: blocks are read before they
        are written anew, and written after they were read."""
        streams = self._lanes[lane]
        streams.copies.wait_stream(streams.whole)
        with torch.cuda.stream(streams.copies):
            yield

    def now_s(self, lane: Lane) -> float:
        """The time once the lane's streams are idle."""
        streams = self._lanes[lane]
        streams.copies.synchronize()
        streams.whole.synchronize()
        return time.perf_counter()


def _splits(device: torch.device) -> dict[int, dict[Lane, torch.cuda.Stream]]:
    """By prefill units: the streams of the two lanes on disjoint SMs. Empty where torch can't."""
    if not hasattr(getattr(torch.cuda, "green_contexts", None), "SMPartition"):
        return {}
    contexts = torch.cuda.green_contexts
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    splits = {}
    for units in range(1, sms // SMS_A_UNIT):
        prefill, decode = contexts.SMPartition.from_device(device).split(
            num_sms=[units * SMS_A_UNIT]
        )
        splits[units] = {
            Lane.PREFILL: contexts.GreenContext.create(prefill).Stream(),
            Lane.DECODE: contexts.GreenContext.create(decode).Stream(),
        }
    return splits


def machine_for(device: torch.device) -> Machine:
    """The machine of a device."""
    return CudaMachine(device) if device.type == "cuda" else CpuMachine()
