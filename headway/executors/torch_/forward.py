"""A plan's chunks through the model: in one batch, tile by tile, or as a recorded decode step."""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from headway.core.plan import Capacity, Chunk
from headway.executors.torch_.machine import Launch, Machine
from headway.executors.torch_.model import Transformer
from headway.executors.torch_.options import TorchOptions
from headway.executors.torch_.pools import Pools
from headway.executors.torch_.rows import DecodeRows, Layout, Rows, tiles, together

_LOG = logging.getLogger(__name__)


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

    def logits(
        self,
        chunks: Sequence[Chunk],
        recorded: bool,
        stop: threading.Event,
        launched: Callable[[], None],
    ) -> torch.Tensor | None:
        """[sampling chunks, vocab]; None if the step was interrupted. `recorded`: whether recorded
        steps may be used, by one thread at a time. `launched`: called after a group of layers."""
        if self._options.invariant:
            return self._in_tiles(chunks, stop, launched)
        if recorded and all(len(chunk.tokens) == 1 and chunk.sample for chunk in chunks):
            for size, (buffer, launch) in self._recorded.items():
                if size >= len(chunks):
                    buffer.fill(chunks)
                    return self._model.logits(launch()[: len(chunks)])
        batch = together(chunks, self._layout)
        x = self._layers(batch, stop, launched)
        return None if x is None else self._model.logits(x[batch.sampled])

    def _in_tiles(
        self, chunks: Sequence[Chunk], stop: threading.Event, launched: Callable[[], None]
    ) -> torch.Tensor | None:
        """A tile at a time: each has one shape and is computed by itself."""
        found = []
        for chunk in chunks:
            for tile in tiles(chunk, self._layout):
                x = self._layers(tile, stop, launched)
                if x is None:
                    return None
                if tile.sampled.numel():
                    found.append(self._model.logits(x)[tile.sampled])
        return torch.cat(found) if found else torch.empty(0)

    def _layers(
        self, batch: Rows, stop: threading.Event, launched: Callable[[], None]
    ) -> torch.Tensor | None:
        """The last layer's output; None if the step was interrupted on the way."""
        x = self._model.embed(batch)
        every = self._options.layers_a_launch
        for index in range(self._model.config.layers):
            if index % every == 0 and stop.is_set():
                return None
            x = self._model.layer(index, x, self._pools.layer(index), batch)
            # A step of single rows is over before anyone could want it to stop.
            if index % every == every - 1 and batch.spans:
                launched()
        return x

    def _all_layers(self, batch: Rows) -> torch.Tensor:
        x = self._model.embed(batch)
        for index in range(self._model.config.layers):
            x = self._model.layer(index, x, self._pools.layer(index), batch)
        return x


def padded_sizes(most: int) -> list[int]:
    """Sequences of recorded steps: 1, 2, 4, 8, and then in steps of a half and a third, up to
    `most`."""
    sizes = [1]
    while sizes[-1] < most:
        last = sizes[-1]
        sizes.append(min(most, last * 2 if last < 8 else last + (1 << last.bit_length() - 2)))
    return sizes
