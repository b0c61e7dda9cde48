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
)
from headway.core.types import Lane, RequestId
from headway.errors import ExecutorError
from headway.executors.rules import check_plan
from headway.executors.torch_.attention import Attention, GatheredAttention, attention_for
from headway.executors.torch_.forward import Computed, Course, Forward
from headway.executors.torch_.machine import StepStreams, machine_for
from headway.executors.torch_.model import Transformer
from headway.executors.torch_.options import TorchOptions, check_capacity
from headway.executors.torch_.pools import Pools, block_bytes, waits
from headway.executors.torch_.sampler import (
    Chosen,
    Row,
    SamplingState,
    choose,
    most_logprobs,
    read,
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
        self._machine = machine_for(device, options.divided)
        self._capacity = replace(
            capacity,
            max_model_len=min(capacity.max_model_len, config.max_context),
            vocab_size=config.vocab,
            block_bytes=block_bytes(config, capacity.block_size, dtype),
            units=self._machine.units,
        )
        self._options = options
        attention = attention_for(
            options.attention, config.attention, capacity.block_size, dtype, device
        )
        model = Transformer(
            config, to_torch(weights, dtype, device), attention, self._capacity.max_model_len
        )
        self._pools = Pools(config, self._capacity, dtype, device)
        self._forward = Forward(model, self._pools, self._capacity, options)
        if _records(options, device, attention):
            with torch.inference_mode():
                self._forward.record(self._machine, capacity.max_seqs)
        if device.type == "cuda":  # all of this is there before the lanes' own streams use it
            torch.cuda.synchronize(device)
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
        ended = thread.submit(self._run, plan, dict(masks), stop)
        return TorchStep(plan.step, ended, stop)

    def close(self) -> None:
        """Free threads and memory; idempotent. Steps in flight end first."""
        if self._closed:
            return
        self._closed = True
        for thread in self._threads.values():
            thread.shutdown()
        del self._forward, self._pools

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
            order = waits(plan, self._capacity.block_size)
            step = self._machine.step(plan.lane, plan.units, order)
            if plan.swap_out:
                with step.copying_out():
                    self._pools.copy_out(plan.swap_out)
            if plan.swap_in:
                with step.copying_in():
                    self._pools.copy_in(plan.swap_in)
            chosen: list[Chosen] = []
            interrupted = False
            if plan.chunks:
                with step.computing():
                    chosen, interrupted = self._compute(plan, masks, stop, step)
            timing = step.ended()
        told = _told(plan.computed(interrupted), chosen)
        return StepResult(plan.step, *told, timing, interrupted)

    def _compute(
        self, plan: StepPlan, masks: Masks, stop: threading.Event, step: StepStreams
    ) -> tuple[list[Chosen], bool]:
        """What each sampling chunk chose, of those kept if the step was interrupted, and whether it
        was."""
        for chunk in plan.chunks:
            self._states[chunk.request].computed(chunk.start, chunk.tokens)
        course = Course(plan.lane is Lane.UNIFIED, plan.kept, stop, step.group_launched)
        computed = self._forward.logits(plan.chunks, course)
        return self._chosen(computed, plan, masks), computed.interrupted

    def _chosen(self, computed: Computed, plan: StepPlan, masks: Masks) -> list[Chosen]:
        sampling = [
            Row(
                self._states[chunk.request],
                chunk.start + len(chunk.tokens) - 1,
                masks.get(chunk.request),
            )
            for chunk in plan.computed(computed.interrupted)
            if chunk.sample
        ]
        logits = computed.logits
        if not sampling:
            return []
        top = most_logprobs(sampling)
        if self._options.invariant:
            parts = [choose(logits[i : i + 1], [row], top) for i, row in enumerate(sampling)]
            return read(torch.cat(parts), sampling)
        return read(choose(logits, sampling, top), sampling)


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
        """Ask the step to go on from its next group of layers with what it keeps, or to stop there;
        it may still end normally."""
        self.stop.set()


def _records(options: TorchOptions, device: torch.device, attention: Attention) -> bool:
    """Whether decode steps are recorded. Gathered attention would gather the longest sequence that
    may be in each of them."""
    if options.graphs != "auto":
        return options.graphs == "on"
    paged = not isinstance(attention, GatheredAttention)
    return device.type == "cuda" and paged and not options.invariant


def _told(
    chunks: Sequence[Chunk], chosen: Sequence[Chosen]
) -> tuple[tuple[Sampled, ...], tuple[RequestError, ...]]:
    """Tokens and failures."""
    sampling = (chunk.request for chunk in chunks if chunk.sample)
    sampled, errors = [], []
    for request, one in zip(sampling, chosen, strict=True):
        if one.error is not None:
            errors.append(RequestError(request, one.error))
        else:
            sampled.append(Sampled(request, one.token, one.logprobs))
    return tuple(sampled), tuple(errors)
