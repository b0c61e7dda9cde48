"""The device's side of a step: streams, waiting, and parts of a GPU for lanes of their own."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from headway.core.plan import StepTiming
from headway.core.types import Lane
from headway.executors.torch_.pools import Waits

_LOG = logging.getLogger(__name__)

SMS_A_UNIT = 8
"""Streaming multiprocessors of a compute unit: compute capability 9.0 divides in eights."""

_GROUPS_AHEAD = 1
"""Groups of layers that wait on the device while one runs: none would leave it idle."""

Launch = Callable[[], torch.Tensor]


class StepStreams(Protocol):
    """Where the copies and kernels of one step go, in the order of its `Waits`."""

    def copying_out(self) -> AbstractContextManager[None]:
        """What is launched inside copies to the host."""
        ...

    def copying_in(self) -> AbstractContextManager[None]:
        """What is launched inside copies from the host."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """What is launched inside computes."""
        ...

    def group_launched(self) -> None:
        """Return once there is room for another group of layers. Launches run ahead of the device,
        and what was launched can't be called back."""
        ...

    def ended(self) -> StepTiming:
        """Wait for all of it."""
        ...


class Machine(Protocol):
    """A device."""

    @property
    def units(self) -> int:
        """Compute units that lanes can divide; 1 where they can't."""
        ...

    def step(self, lane: Lane, units: int, waits: Waits) -> StepStreams:
        """Streams for a step on that many units; 0 is all of them. One step of a lane at a time."""
        ...

    def recorded(self, launch: Launch) -> Launch:
        """A launch that does the same on the same tensors, and gives the same tensor, quicker."""
        ...


class CpuMachine:
    """Everything is done when the call returns."""

    units = 1

    def step(self, lane: Lane, units: int, waits: Waits) -> StepStreams:
        """Nothing to choose and nothing to wait for."""
        return _CpuStep()

    def recorded(self, launch: Launch) -> Launch:
        """The same again."""
        return launch


class _CpuStep:
    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("out", "in", "compute"), 0.0)

    def copying_out(self) -> AbstractContextManager[None]:
        return self._timed("out")

    def copying_in(self) -> AbstractContextManager[None]:
        return self._timed("in")

    def computing(self) -> AbstractContextManager[None]:
        return self._timed("compute")

    def group_launched(self) -> None:
        """It is done already."""

    def ended(self) -> StepTiming:
        return StepTiming(*self._seconds.values())

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin_s = time.perf_counter()
        yield
        self._seconds[what] = time.perf_counter() - begin_s


@dataclass(frozen=True, slots=True)
class _Streams:
    """Of one lane: for kernels on all units, on some, and for copies in each direction."""

    whole: torch.cuda.Stream
    parts: Mapping[int, torch.cuda.Stream]
    out: torch.cuda.Stream
    back: torch.cuda.Stream


class CudaMachine:
    """Streams of a GPU. Never run so far: experimental.

    Parts of a GPU are made once, since a partition can't be changed while it is used; a lane
    switches streams instead. They need `SMPartition`, which torch has from 2.15 on; without it
    there is the unified lane only. Memory bandwidth, L2 and copy engines are shared by all parts.
    """

    def __init__(self, device: torch.device, divided: bool) -> None:
        self._device = device
        try:
            splits = _splits(device) if divided else {}
        except (RuntimeError, TypeError, AttributeError, ValueError) as error:
            _LOG.warning("this GPU is not divided: %s", error)
            splits = {}
        self.units = len(splits) + 1 if splits else 1
        self._memory = torch.cuda.graph_pool_handle()
        self._splits = splits
        parts = {
            Lane.UNIFIED: {},
            Lane.PREFILL: {units: split.prefill for units, split in splits.items()},
            Lane.DECODE: {self.units - units: split.decode for units, split in splits.items()},
        }
        self._lanes = {
            lane: _Streams(
                torch.cuda.Stream(device),
                parts[lane],
                torch.cuda.Stream(device),
                torch.cuda.Stream(device),
            )
            for lane in Lane
        }

    def step(self, lane: Lane, units: int, waits: Waits) -> StepStreams:
        """The lane's streams."""
        streams = self._lanes[lane]
        return _CudaStep(streams.parts.get(units, streams.whole), streams.out, streams.back, waits)

    def recorded(self, launch: Launch) -> Launch:
        """A CUDA graph. Raises RuntimeError for what can't be one."""
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(2):  # compiles, and lets libraries take their workspaces
                launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, stream=stream):
            given = launch()
        torch.cuda.synchronize(self._device)

        def play() -> torch.Tensor:
            graph.replay()
            return given

        return play


class _CudaStep:
    """Each phase has an event at its begin and its end; the end is what others wait for."""

    def __init__(
        self,
        compute: torch.cuda.Stream,
        out: torch.cuda.Stream,
        back: torch.cuda.Stream,
        waits: Waits,
    ) -> None:
        self._streams = {"out": out, "in": back, "compute": compute}
        self._waits = waits
        self._events: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}
        self._groups: deque[torch.cuda.Event] = deque()

    def copying_out(self) -> AbstractContextManager[None]:
        return self._timed("out", ())

    def copying_in(self) -> AbstractContextManager[None]:
        return self._timed("in", ("out",) if self._waits.in_after_out else ())

    def computing(self) -> AbstractContextManager[None]:
        after = (("out", self._waits.compute_after_out), ("in", self._waits.compute_after_in))
        return self._timed("compute", tuple(phase for phase, wanted in after if wanted))

    def group_launched(self) -> None:
        event = torch.cuda.Event(blocking=True)
        event.record(self._streams["compute"])
        self._groups.append(event)
        if len(self._groups) > _GROUPS_AHEAD:
            self._groups.popleft().synchronize()

    def ended(self) -> StepTiming:
        seconds = dict.fromkeys(self._streams, 0.0)
        for phase, (begin, end) in self._events.items():
            end.synchronize()
            seconds[phase] = begin.elapsed_time(end) / 1e3
        return StepTiming(*seconds.values())

    @contextmanager
    def _timed(self, phase: str, after: tuple[str, ...]) -> Iterator[None]:
        stream = self._streams[phase]
        for earlier in after:
            stream.wait_event(self._events[earlier][1])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        with torch.cuda.stream(stream):
            yield
        end.record(stream)
        self._events[phase] = (begin, end)


@dataclass(frozen=True, slots=True)
class _Split:
    """Two streams on disjoint SMs. `contexts`: what they belong to, kept as long as they are."""

    prefill: torch.cuda.Stream
    decode: torch.cuda.Stream
    contexts: tuple[object, object]


def _splits(device: torch.device) -> dict[int, _Split]:
    """By prefill units. Empty where torch can't."""
    contexts: Any = getattr(torch.cuda, "green_contexts", None)
    if not hasattr(contexts, "SMPartition"):
        return {}
    index = torch.cuda.current_device() if device.index is None else device.index
    whole = contexts.SMPartition.from_device(index)
    splits = {}
    for units in range(1, whole.sm_count // SMS_A_UNIT):
        (some,), others = whole.split(num_sms=units * SMS_A_UNIT)
        made = [contexts.GreenContext(sm_partition=part) for part in (some, others)]
        splits[units] = _Split(made[0].Stream(), made[1].Stream(), (made[0], made[1]))
    return splits


def machine_for(device: torch.device, divided: bool) -> Machine:
    """The machine of a device; `divided`: with parts of it, where there can be."""
    return CudaMachine(device, divided) if device.type == "cuda" else CpuMachine()
