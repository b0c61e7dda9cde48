"""One simulation from names and numbers, and many of them in parallel processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from headway.core.budget import Targets
from headway.core.config import Reserve, SchedulerConfig
from headway.core.plan import Capacity
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, ServiceClass
from headway.errors import ConfigError
from headway.simulate.devices import Device
from headway.simulate.figures import Figures, Objective, figures
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
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation: what is varied in a sweep.

    targets: the scheduler's own. prefill_share: part of the units that the prefill lane has while
        both lanes are busy; 0 is one lane for everything.
    """

    device: Device
    model: ModelShape
    policy: str
    sizes: Sizes
    mix: Mix
    prefill_share: float = 0.0
    targets: Targets = Targets()
    reserve: Reserve = Reserve()
    objectives: Mapping[ServiceClass, Objective] = field(default_factory=dict)

    @property
    def shares(self) -> dict[Lane, float]:
        """The units of each lane."""
        if not self.prefill_share:
            return {Lane.UNIFIED: 1.0}
        return {Lane.DECODE: 1 - self.prefill_share, Lane.PREFILL: self.prefill_share}

    @property
    def lanes(self) -> str:
        """The lanes in a word, as on the command line."""
        return f"split:{self.prefill_share:g}" if self.prefill_share else "unified"

    def run(self, trace: Trace, progress: Progress = lambda share: None) -> Figures:
        """Replay a trace. Raises ConfigError where the sizes can't work."""
        capacity = self.sizes.capacity(self.device, self.model)
        config = SchedulerConfig(policy=self.policy, targets=self.targets, reserve=self.reserve)
        roofline, shares = Roofline(self.device, self.model), self.shares
        timer = RooflineTimer(roofline, capacity.block_bytes, shares)
        machine = Machine(capacity, timer, tuple(shares))
        replay = Replay(Scheduler(capacity, config), machine, Workload(trace, self.mix))
        return figures(replay.run(progress), self.objectives)


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
