"""The CPU executor: plans run in C++, on threads of their own, without the interpreter lock."""

import time
from dataclasses import dataclass, replace

import numpy as np

from headway import _native
from headway.core.plan import (
    Capacity,
    Masks,
    RequestError,
    Sampled,
    StepPlan,
    StepResult,
    StepTiming,
    TokenLogprobs,
)
from headway.core.types import RequestId
from headway.errors import ConfigError, ExecutorError, ModelError
from headway.executors.cpu import available_memory_bytes, may_spin, usable_cpus
from headway.executors.packed import WeightCache
from headway.models.types import ModelConfig, TensorType, Weights

BLOCK_TOKENS = 16
"""Tokens of a KV block; the kernels are written for it."""

_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
_KV_ELEMENT_BYTES = 2
_COUNTED = ("kv_blocks", "max_seqs", "max_step_tokens", "max_model_len")
_LARGEST = 2**31 - 1
"""Sizes are 32-bit integers on the C++ side."""

_SIGNAL_SLICE_S = 0.5  # how long a wait that computes nothing may keep signals from Python


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """Sizes of a native executor.

    kv_blocks, host_blocks: blocks of the two pools.
    block_size: tokens a block; 16.
    max_seqs: chunks in a step, at most.
    max_step_tokens: tokens in a step, at most.
    max_model_len: tokens of a sequence, at most.
    threads: threads that compute; 0 = the CPUs this process may use.
    isa: "auto", or one of "portable", "avx2", "avx512vnni", "amx".
    """

    kv_blocks: int
    host_blocks: int = 0
    block_size: int = BLOCK_TOKENS
    max_seqs: int = 64
    max_step_tokens: int = 512
    max_model_len: int = 2048
    threads: int = 0
    isa: str = "auto"

    def __post_init__(self) -> None:
        if self.block_size != BLOCK_TOKENS:
            raise ConfigError(f"block size must be {BLOCK_TOKENS} on the CPU")
        for name in _COUNTED:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.host_blocks < 0 or self.threads < 0:
            raise ConfigError("host_blocks and threads must be at least 0")
        for name in (*_COUNTED, "host_blocks", "threads"):
            if getattr(self, name) > _LARGEST:
                raise ConfigError(f"{name} must be at most {_LARGEST:,}")


class NativeExecutor:
    """Implements headway.core.plan.Executor. Logits of a sequence are the same to the bit whatever
    shares its steps, however it is chunked, and on however many threads, for one build and
    instruction set. Raises ModelError where the weights can't be run, ConfigError for options.

    cache: keeps the packed weights for later processes; None packs them for this one alone.
    """

    def __init__(
        self, weights: Weights, options: NativeOptions, cache: WeightCache | None = None
    ) -> None:
        capacity = _capacity(weights.config, options)
        file = cache.file_for(weights.fingerprint) if cache else ""
        self._native: _native.Executor | None = _build(weights, capacity, options.isa, file)
        if cache and file:
            if self._native.cache_problem:
                cache.complain(self._native.cache_problem)
            else:
                cache.used(file)
        self._capacity = replace(capacity, block_bytes=self._native.block_bytes)

    @property
    def capacity(self) -> Capacity:
        """Sizes, fixed for the executor's life."""
        return self._capacity

    def submit(self, plan: StepPlan, masks: Masks) -> "NativeStep":
        """Start a step. A plan that can't be run makes the handle's `result` raise."""
        if self._native is None:
            raise ExecutorError("the executor is closed")
        return NativeStep(plan.step, self._native.submit(plan, masks))

    def close(self) -> None:
        """Free threads and memory; idempotent. Steps in flight end first."""
        if self._native is not None:
            self._native.stop()
            self._native = None

    @property
    def native(self) -> _native.Executor:
        """The C++ side, for tests and benchmarks."""
        if self._native is None:
            raise ExecutorError("the executor is closed")
        return self._native


class NativeStep:
    """A step under way; implements headway.core.plan.StepHandle."""

    def __init__(self, step: int, native: _native.Step) -> None:
        self._step = step
        self.native = native

    def result(self, timeout_s: float | None = None) -> StepResult:
        """Wait for the step. Raises ExecutorError if it failed as a whole, TimeoutError if the
        time is up first (the step goes on)."""
        self._wait(timeout_s)
        native = self.native
        if native.error:
            raise ExecutorError(native.error)
        timing = StepTiming(*native.timing)
        rows = native.samples()
        return StepResult(
            self._step,
            tuple(
                Sampled(RequestId(request), token, TokenLogprobs(*logprobs) if logprobs else None)
                for request, token, logprobs, error in rows
                if not error
            ),
            tuple(
                RequestError(RequestId(request), error) for request, _, _, error in rows if error
            ),
            timing,
            native.interrupted,
        )

    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self.native.done()

    def interrupt(self) -> None:
        """Ask the step to go on with the plan's `kept` chunks alone from its next layer boundary;
        it may still end normally."""
        self.native.interrupt()

    def _wait(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = -1.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
            slice_s = _SIGNAL_SLICE_S if left_s < 0 else min(left_s, _SIGNAL_SLICE_S)
            if self.native.wait(slice_s, left_s):
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"step {self._step} has not ended within {timeout_s} s")


def _capacity(config: ModelConfig, options: NativeOptions) -> Capacity:
    return Capacity(
        kv_blocks=options.kv_blocks,
        host_blocks=options.host_blocks,
        block_size=options.block_size,
        max_seqs=options.max_seqs,
        max_step_tokens=options.max_step_tokens,
        max_model_len=min(options.max_model_len, config.max_context),
        vocab_size=config.vocab,
        units=options.threads or usable_cpus(),
    )


def _build(weights: Weights, capacity: Capacity, isa: str, file: str) -> _native.Executor:
    native_options = _native.RunnerOptions()
    native_options.capacity = _native_capacity(capacity)
    native_options.spin = may_spin(capacity.units)
    native_options.isa = _isa(isa)
    matrices = {}
    vectors = {}
    for name, tensor in weights.tensors.items():
        if tensor.type is TensorType.F32 and tensor.rows == 1:
            vectors[name] = np.ascontiguousarray(tensor.data.view(np.float32))
        elif tensor.type in _FLOATS:
            raise ModelError(f"the CPU executor needs quantised weights; {name!r} is not")
        else:
            kind = _native.WeightType.__members__[tensor.type.value]
            matrices[name] = (kind, tensor.rows, tensor.cols, np.ascontiguousarray(tensor.data))
    try:
        shape, key = _shape(weights), weights.fingerprint
        return _native.Executor(shape, matrices, vectors, native_options, file, key)
    except MemoryError as error:
        attention = weights.config.attention
        width = 2 * attention.kv_heads * attention.head_dim * _KV_ELEMENT_BYTES
        fit = available_memory_bytes() // (capacity.block_size * weights.config.layers * width)
        raise ConfigError(
            f"{capacity.kv_blocks:,} KV blocks and {capacity.host_blocks:,} host blocks are more "
            f"than this machine's memory holds: about {fit:,} of both together would fit"
        ) from error
    except ValueError as error:
        raise ModelError(f"the model can't be run on the CPU: {error}") from error


def _native_capacity(capacity: Capacity) -> _native.Capacity:
    native = _native.Capacity()
    native.kv_blocks = capacity.kv_blocks
    native.host_blocks = capacity.host_blocks
    native.max_seqs = capacity.max_seqs
    native.max_step_tokens = capacity.max_step_tokens
    native.max_model_len = capacity.max_model_len
    native.vocab = capacity.vocab_size
    native.units = capacity.units
    return native


def _isa(name: str) -> _native.Isa:
    if name == "auto":
        return _native.best_isa()
    known = _native.Isa.__members__
    if name not in known:
        raise ConfigError(f"unknown instruction set {name!r}; one of auto, {', '.join(known)}")
    if not _native.supports(known[name]):
        raise ConfigError(f"this processor has no {name}")
    return known[name]


def _shape(weights: Weights) -> _native.ModelShape:
    config = weights.config
    shape = _native.ModelShape()
    shape.layers = config.layers
    shape.hidden = config.hidden
    shape.intermediate = config.intermediate
    shape.vocab = config.vocab
    shape.heads = config.attention.heads
    shape.kv_heads = config.attention.kv_heads
    shape.head_dim = config.attention.head_dim
    shape.qkv_bias = config.attention.qkv_bias
    shape.qk_norm = config.attention.qk_norm
    shape.tied = weights.tensors.get("head") is weights.tensors.get("embed")
    shape.rope_theta = config.rope.theta
    shape.rope_factors = list(config.rope.factors)
    shape.norm_eps = config.norm_eps
    return shape
