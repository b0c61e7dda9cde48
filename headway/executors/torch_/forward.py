"""A plan's chunks through the model: in one batch, tile by tile, or as a recorded decode step."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from headway.core.plan import Capacity, Chunk
from headway.executors.torch_.machine import Launch, Machine
from headway.executors.torch_.model import Transformer
from headway.executors.torch_.options import TorchOptions
from headway.executors.torch_.pools import Pools
from headway.executors.torch_.rows import DecodeRows, Layout, Rows, rows_of, tiles, together
from headway.executors.torch_.upload import upload

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Course:
    """How a step is to run.

    recorded: recorded steps may be used, which is for one thread at a time.
    kept: so many leading chunks go on when it is interrupted.
    stop: whether it is, set by another thread.
    launched: called after each group of layers of a step that may be.
    """

    recorded: bool
    kept: int
    stop: threading.Event
    launched: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Computed:
    """logits: [chunks that sample, vocab], of the kept chunks where the step was interrupted."""

    logits: torch.Tensor
    interrupted: bool


class Forward:
    """Runs layers and the head; writes the pool."""

    def __init__(
        self, model: Transformer, pools: Pools, capacity: Capacity, options: TorchOptions
    ) -> None:
        self._model = model
        self._pools = pools
        self._options = options
        self._layout = Layout(capacity.block_size, capacity.kv_blocks, pools.device.device)
        self._width = -(-capacity.max_model_len // capacity.block_size)
        self._recorded: dict[int, tuple[DecodeRows, Launch]] = {}

    def record(self, machine: Machine, most: int) -> None:
        """Prepare steps of up to `most` sequences with one token each. Where the device can't, they
        stay as they are, and a warning says so."""
        recorded: dict[int, tuple[DecodeRows, Launch]] = {}
        try:
            for size in reversed(padded_sizes(most)):  # the others fit into the largest's memory
                buffer = DecodeRows(size, self._width, self._layout)
                launch = machine.recorded(partial(self._all_layers, buffer.rows))
                recorded[size] = (buffer, launch)
        except RuntimeError as error:
            _LOG.warning("decode steps are not recorded: %s", error)
            return
        self._recorded = dict(sorted(recorded.items()))

    def logits(self, chunks: Sequence[Chunk], course: Course) -> Computed:
        """Of the chunks that sample."""
        if self._options.invariant:
            return self._in_tiles(chunks, course)
        if course.recorded and all(len(chunk.tokens) == 1 and chunk.sample for chunk in chunks):
            for size, (buffer, launch) in self._recorded.items():
                if size >= len(chunks):
                    buffer.fill(chunks)
                    return Computed(self._model.logits(launch()[: len(chunks)]), False)
        return self._in_one(chunks, course)

    def _in_one(self, chunks: Sequence[Chunk], course: Course) -> Computed:
        """All rows together. An interrupt takes those out that aren't kept."""
        batch, interrupted = together(chunks, self._layout), False
        x = self._model.embed(batch)
        for group in self._groups():
            if not interrupted and course.kept < len(chunks) and course.stop.is_set():
                interrupted = True
                if not course.kept:
                    return Computed(_NOTHING, interrupted)
                rows = upload(rows_of(chunks, course.kept), torch.int64, x.device)
                x, batch = x[rows], together(chunks[: course.kept], self._layout)
            x = self._layers(group, x, batch)
            # A step of single rows is over before anyone could want it to stop.
            if batch.spans:
                course.launched()
        return Computed(self._model.logits(x[batch.sampled]), interrupted)

    def _in_tiles(self, chunks: Sequence[Chunk], course: Course) -> Computed:
        """A tile at a time: each has one shape and is computed by itself. The chunks that an
        interrupt keeps come first, so it is the others that it stops."""
        found: list[torch.Tensor] = []
        for place, chunk in enumerate(chunks):
            for tile in tiles(chunk, self._layout):
                x = self._model.embed(tile)
                for group in self._groups():
                    if place >= course.kept and course.stop.is_set():
                        kept = sum(one.sample for one in chunks[: course.kept])
                        return Computed(_joined(found[:kept]), True)
                    x = self._layers(group, x, tile)
                    course.launched()
                if tile.sampled.numel():
                    found.append(self._model.logits(x)[tile.sampled])
        return Computed(_joined(found), False)

    def _groups(self) -> Iterator[range]:
        """Layers that are launched without a look at the course."""
        every, layers = self._options.layers_a_launch, self._model.config.layers
        for first in range(0, layers, every):
            yield range(first, min(first + every, layers))

    def _layers(self, group: range, x: torch.Tensor, batch: Rows) -> torch.Tensor:
        for index in group:
            x = self._model.layer(index, x, self._pools.layer(index), batch)
        return x

    def _all_layers(self, batch: Rows) -> torch.Tensor:
        return self._layers(range(self._model.config.layers), self._model.embed(batch), batch)


_NOTHING = torch.empty(0)


def _joined(found: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(tuple(found)) if found else _NOTHING


def padded_sizes(most: int) -> list[int]:
    """Sequences of recorded steps: 1, 2, 4, 8, and then in steps of a half and a third, up to
    `most`."""
    sizes = [1]
    while sizes[-1] < most:
        last = sizes[-1]
        sizes.append(min(most, last * 2 if last < 8 else last + (1 << last.bit_length() - 2)))
    return sizes
