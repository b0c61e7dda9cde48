"""The torch executor: plans run by a thread for each lane, on a CPU or a GPU."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace

import torch

from headway.core.plan import (
    Capacity,
    Chunk,
    Masks,
    RequestError,
    Sampled,
    StepPlan,
    StepResult,
    StepTiming,
    TokenLogprobs,
)
from headway.core.types import Lane, RequestId
from headway.errors import ExecutorError
from headway.executors.rules import check_plan
from headway.executors.torch_ import rows
from headway.executors.torch_.attention import GatheredAttention
from headway.executors.torch_.machine import machine_for
from headway.executors.torch_.model import Transformer
from headway.executors.torch_.options import TorchOptions, check_capacity
from headway.executors.torch_.pools import Pools, block_bytes
from headway.executors.torch_.sampler import (
    NOT_NUMBERS,
    NOTHING_ALLOWED,
    Choice,
    SamplingState,
    choose,
)
from headway.executors.torch_.weights import to_torch
from headway.models.types import Weights


class TorchExecutor:
    """Implements headway.core.plan.Executor.

    With `invariant`, a sequence's tokens and log probabilities are the same to the bit whatever
    shares its steps, however it is chunked, swapped or computed again; without, they may differ in
    the last bits, as with other engines. Raises ConfigError for options and sizes.
    """

    def __init__(self, weights: Weights, capacity: Capacity, options: TorchOptions) -> None:
        check_capacity(capacity, options)
        config, dtype = weights.config, options.torch_dtype
        device = torch.device(options.device)
        self._machine = machine_for(device)
        self._capacity = replace(
            capacity,
            max_model_len=min(capacity.max_model_len, config.max_context),
            vocab_size=config.vocab,
            block_bytes=block_bytes(config, capacity.block_size, dtype),
            units=self._machine.units,
        )
        self._options = options
        self._device = device
        self._model = Transformer(
            config,
            to_torch(weights, dtype, device),
            GatheredAttention(),
            self._capacity.max_model_len,
        )
        self._pools = Pools(config, self._capacity, dtype, device)
        self._states: dict[RequestId, SamplingState] = {}
        self._threads: dict[Lane, ThreadPoolExecutor] = {}
        self._closed = False

    @property
    def capacity(self) -> Capacity:
        """Sizes, fixed for the executor's life."""
        return self._capacity

    def submit(self, plan: StepPlan, masks: Masks) -> "TorchStep":
        """Start a step. A plan that can't be run makes the handle's `result` raise."""
        if self._closed:
            raise ExecutorError("the executor is closed")
        stop = threading.Event()
        future: Future[StepResult] = Future()
        try:
            self._open(plan)
        except ExecutorError as error:
            future.set_exception(error)
            return TorchStep(plan.step, future, stop)
        thread = self._threads.get(plan.lane)
        if thread is None:
            name = f"torch-{plan.lane.name.lower()}"
            thread = self._threads[plan.lane] = ThreadPoolExecutor(1, thread_name_prefix=name)
        return TorchStep(plan.step, thread.submit(self._run, plan, dict(masks), stop), stop)

    def close(self) -> None:
        """Free threads and memory; idempotent. Steps in flight end first."""
        if self._closed:
            return
        self._closed = True
        for thread in self._threads.values():
            thread.shutdown()
        del self._model, self._pools

    def _open(self, plan: StepPlan) -> None:
        """Check a plan whole, then take its requests in. Raises ExecutorError."""
        check_plan(plan, self._capacity)
        opened = {one.request for one in plan.opens}
        for request in opened & self._states.keys():
            raise ExecutorError(f"request {request} is open already")
        for chunk in plan.chunks:
            if chunk.request not in self._states and chunk.request not in opened:
                raise ExecutorError(f"request {chunk.request} is unknown")
        for one in plan.opens:
            self._states[one.request] = SamplingState(one.sampling, one.prompt)

    def _run(self, plan: StepPlan, masks: Masks, stop: threading.Event) -> StepResult:
        try:
            return self._computed(plan, masks, stop)
        finally:
            for request in plan.closes:  # of a step that fails too: nobody names them again
                self._states.pop(request, None)

    def _computed(self, plan: StepPlan, masks: Masks, stop: threading.Event) -> StepResult:
        with torch.inference_mode():
            begin_s = self._machine.now_s(plan.lane)
            with self._machine.copies(plan.lane):
                self._pools.copy_out(plan.swap_out)
            out_s = self._machine.now_s(plan.lane) if plan.swap_out else begin_s
            with self._machine.copies(plan.lane):
                self._pools.copy_in(plan.swap_in)
            in_s = self._machine.now_s(plan.lane) if plan.swap_in else out_s
            with self._machine.compute(plan.lane, plan.units):
                choices = self._compute(plan, masks, stop)
            sampled, errors = _read(plan.chunks, choices) if choices is not None else ((), ())
            end_s = self._machine.now_s(plan.lane)
        timing = StepTiming(out_s - begin_s, in_s - out_s, end_s - in_s)
        return StepResult(plan.step, sampled, errors, timing, interrupted=choices is None)

    def _compute(self, plan: StepPlan, masks: Masks, stop: threading.Event) -> list[Choice] | None:
        """What each sampling chunk chose; None if the step was interrupted."""
        for chunk in plan.chunks:
            self._states[chunk.request].computed(chunk.start, chunk.tokens)
        if not plan.chunks:
            return []
        logits = (
            self._in_tiles(plan.chunks, stop)
            if self._options.invariant
            else self._in_one(plan.chunks, stop)
        )
        if logits is None:
            return None
        sampling = [chunk for chunk in plan.chunks if chunk.sample]
        return [
            choose(
                row,
                self._states[chunk.request],
                chunk.start + len(chunk.tokens) - 1,
                masks.get(chunk.request),
            )
            for chunk, row in zip(sampling, logits, strict=True)
        ]

    def _in_one(self, chunks: Sequence[Chunk], stop: threading.Event) -> torch.Tensor | None:
        """Logits of the sampling chunks, all rows computed together."""
        batch = rows.together(chunks, self._capacity.block_size, self._device)
        x = self._layers(batch, stop)
        return None if x is None else self._model.logits(x[rows.last_rows(chunks)])

    def _in_tiles(self, chunks: Sequence[Chunk], stop: threading.Event) -> torch.Tensor | None:
        """The same, a tile at a time: each has one shape and is computed by itself."""
        found = []
        for chunk in chunks:
            x = None
            for tile in rows.tiles(chunk, self._device):
                x = self._layers(tile, stop)
                if x is None:
                    return None
            if chunk.sample and x is not None:
                last = (chunk.start + len(chunk.tokens) - 1) % x.shape[0]
                found.append(self._model.logits(x)[last])
        return torch.stack(found) if found else torch.empty(0)

    def _layers(self, batch: rows.Rows, stop: threading.Event) -> torch.Tensor | None:
        """The last layer's output; None if the step was interrupted on the way."""
        x = self._model.embed(batch)
        every = self._options.layers_a_launch
        for index in range(self._model.config.layers):
            if index % every == 0 and stop.is_set():
                return None
            x = self._model.layer(index, x, self._pools.layer(index), batch)
            if index % every == every - 1 and self._device.type == "cuda":
                # Launches run ahead of the device; one group at a time can be called back.
                torch.cuda.current_stream(self._device).synchronize()
        return x


@dataclass(slots=True)
class TorchStep:
    """A step under way; implements headway.core.plan.StepHandle."""

    step: int
    future: "Future[StepResult]"
    stop: threading.Event

    def result(self, timeout_s: float | None = None) -> StepResult:
        """Wait for the step. Raises ExecutorError if it failed as a whole, TimeoutError if the
        time is up first (the step goes on)."""
        try:
            return self.future.result(timeout_s)
        except FutureTimeoutError as error:
            raise TimeoutError(f"step {self.step} has not ended within {timeout_s} s") from error
        except RuntimeError as error:
            raise ExecutorError(f"torch: {error}") from error

    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self.future.done()

    def interrupt(self) -> None:
        """Ask the step to stop before its next group of layers; it may still end normally."""
        self.stop.set()


def _read(
    chunks: Sequence[Chunk], choices: Sequence[Choice]
) -> tuple[tuple[Sampled, ...], tuple[RequestError, ...]]:
    """Tokens and failures: the one place of a step that waits for the device."""
    sampling = [chunk.request for chunk in chunks if chunk.sample]
    if not sampling:
        return (), ()
    table = torch.stack(
        [torch.stack((c.token, c.raw_bad.long(), c.none_left.long())) for c in choices]
    ).tolist()
    sampled, errors = [], []
    for request, choice, (token, bad, none_left) in zip(sampling, choices, table, strict=True):
        if bad or none_left:
            message = NOTHING_ALLOWED if none_left and not bad else NOT_NUMBERS
            errors.append(RequestError(request, message))
        else:
            sampled.append(Sampled(request, token, _logprobs(choice)))
    return tuple(sampled), tuple(errors)


def _logprobs(choice: Choice) -> TokenLogprobs | None:
    if choice.logprob.numel() == 0:
        return None
    top = zip(choice.top_ids.tolist(), choice.top.tolist(), strict=True)
    return TokenLogprobs(choice.logprob.item(), tuple(top))
