"""One simulation from names and numbers, and many of them in parallel processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from headway.core.budget import Targets
from headway.core.config import Reserve, SchedulerConfig
from headway.core.controller import Controller, LaneMode
from headway.core.lane_models import StepModels
from headway.core.lanes import LaneChooser
from headway.core.outlook import Demand
from headway.core.plan import Capacity
from headway.core.scheduler import Scheduler
from headway.core.types import Arrangement, ServiceClass
from headway.errors import ConfigError
from headway.simulate.devices import Device
from headway.simulate.figures import Figures, Objective, figures
from headway.simulate.record import Recorder
from headway.simulate.replay import Machine, Progress, Replay
from headway.simulate.roofline import Roofline, RooflineTimer
from headway.simulate.shapes import ModelShape
from headway.simulate.traces import Trace
from headway.simulate.workload import Mix, Workload

BLOCK_TOKENS = 16
"""Tokens of a KV block."""

_KV_SHARE = 0.9
"""Of the memory that weights leave, this much is for the KV cache; the rest is for activations."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Pools and limits; 0 fits the device.

    kv_blocks, host_blocks: blocks of BLOCK_TOKENS. host_blocks of -1 is none at all.
    max_seqs: seats. max_step_tokens: most tokens a step computes, the chunk size under fcfs.
    """

    kv_blocks: int = 0
    host_blocks: int = 0
    max_seqs: int = 256
    max_step_tokens: int = 8192

    def capacity(self, device: Device, model: ModelShape) -> Capacity:
        """Sizes of an executor for a model on a device. Raises ConfigError if it doesn't fit."""
        block_bytes = model.kv_bytes * BLOCK_TOKENS
        left = device.peaks.memory_bytes - model.weights * device.weight_bytes
        kv_blocks = self.kv_blocks or int(_KV_SHARE * left / block_bytes)
        if kv_blocks < 1:
            raise ConfigError(f"{model.name} leaves no room for a KV cache on {device.name}")
        host_blocks = self.host_blocks or int(device.link.host_bytes / block_bytes)
        return Capacity(
            kv_blocks=kv_blocks,
            host_blocks=max(host_blocks, 0),
            block_size=BLOCK_TOKENS,
            max_seqs=self.max_seqs,
            max_step_tokens=self.max_step_tokens,
            max_model_len=model.config.max_context,
            vocab_size=model.config.vocab,
            block_bytes=block_bytes,
            units=device.peaks.units,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation: what is varied in a sweep.

    lanes: `unified`, `auto` or `split`, as the controller of lanes takes them, or `split:SHARE` for
        a prefill lane that always has that share of the units.
    targets: the scheduler's own.
    """

    device: Device
    model: ModelShape
    policy: str
    sizes: Sizes
    mix: Mix
    lanes: str = "unified"
    targets: Targets = Targets()
    reserve: Reserve = Reserve()
    objectives: Mapping[ServiceClass, Objective] = field(default_factory=dict)

    def scheduler(self) -> Scheduler:
        """A fresh one. Raises ConfigError where the settings can't work."""
        capacity = self.sizes.capacity(self.device, self.model)
        config = SchedulerConfig(
            policy=self.policy, targets=self.targets, reserve=self.reserve, records=0
        )
        return Scheduler(capacity, config, _chooser(self.lanes, capacity, self.targets))

    def run(self, trace: Trace, progress: Progress = lambda share: None) -> Figures:
        """Replay a trace and sum it up. Raises ConfigError where the sizes can't work."""
        return figures(self.replay(trace, progress), self.objectives)

    def replay(self, trace: Trace, progress: Progress = lambda share: None) -> Recorder:
        """Replay a trace. Raises ConfigError where the sizes can't work."""
        capacity = self.sizes.capacity(self.device, self.model)
        timer = RooflineTimer(Roofline(self.device, self.model), capacity.block_bytes)
        machine = Machine(capacity, timer, self.device.host)
        replay = Replay(self.scheduler(), machine, Workload(trace, self.mix))
        return replay.run(progress)


@dataclass(frozen=True, slots=True)
class FixedLanes:
    """A `LaneChooser` that never changes its mind."""

    first: Arrangement
    fixed: bool = True

    def decide(
        self, present: Arrangement, demand: Demand, models: StepModels, now: float
    ) -> Arrangement:
        """The one it has."""
        return self.first


def _chooser(lanes: str, capacity: Capacity, targets: Targets) -> LaneChooser | None:
    """Raises ConfigError for words that name no lanes."""
    word, _, share_text = lanes.partition(":")
    if not share_text:
        if word not in [mode.value for mode in LaneMode]:
            raise ConfigError(f"lanes {lanes!r} are not unified, auto or split[:SHARE]")
        mode = LaneMode(word)
        return None if mode is LaneMode.UNIFIED else Controller(mode, capacity, targets)
    try:
        units = round(float(share_text) * capacity.units)
    except ValueError:
        units = 0
    if word != "split" or not 0 < units < capacity.units:
        raise ConfigError(f"lanes {lanes!r} are not split:SHARE with units left for both")
    return FixedLanes(Arrangement(units, capacity.units - units))


Done = Callable[[int], None]
"""Told of the index of each cell that has ended."""


def run_cells(
    cells: Sequence[Cell], trace: Trace, jobs: int, done: Done = lambda index: None
) -> list[Figures]:
    """Figures of each cell, in order; cells run in up to `jobs` processes."""
    found: dict[int, Figures] = {}
    for index, result in _finished(cells, trace, min(jobs, len(cells))):
        found[index] = result
        done(index)
    return [found[i] for i in range(len(cells))]


def _finished(cells: Sequence[Cell], trace: Trace, jobs: int) -> Iterator[tuple[int, Figures]]:
    if jobs <= 1:
        for index, cell in enumerate(cells):
            yield index, cell.run(trace)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_run, cell, trace): index for index, cell in enumerate(cells)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _run(cell: Cell, trace: Trace) -> Figures:
    return cell.run(trace)
