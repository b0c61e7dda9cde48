"""Puts an engine together: executor, scheduler and loop, sized to the machine."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headway.core.budget import Targets
from headway.core.config import SchedulerConfig
from headway.core.controller import Controller, LaneMode
from headway.core.plan import Capacity, Executor
from headway.core.scheduler import Scheduler
from headway.core.sequence import blocks_for
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import LoopOptions, ModelLimits
from headway.engine.types import Observer
from headway.errors import ConfigError
from headway.executors.cpu import available_memory_bytes
from headway.executors.native import NativeExecutor, NativeOptions
from headway.executors.packed import WeightCache
from headway.models.cache import default_cache
from headway.models.loader import LoadedModel
from headway.models.types import ModelConfig, Weights

KV_ELEMENT_BYTES = 2
DEFAULT_SEQS = 64
DEFAULT_STEP_TOKENS = 512
DEFAULT_POOL_TOKENS = 65_536
POOL_SHARE_OF_MEMORY = 0.4
SCRATCH_SHARE_OF_MEMORY = 0.5

_MOST = {"max_seqs": 1 << 16, "max_step_tokens": 1 << 20, "threads": 1 << 10}
"""More than any machine makes sense of: a slip of the keyboard rather than a wish."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the executor; what is None fits the machine.

    kv_blocks: blocks of the KV pool; by default 65,536 tokens, or what two fifths of the memory
        that is free hold.
    host_blocks: blocks that preempted sequences are swapped into; by default none, as on a CPU
        they take the same memory as KV blocks do.
    block_size: tokens of a block.
    max_seqs: sequences that hold a seat at once; by default 64.
    max_step_tokens: tokens of a step; by default 512, or what the seats and a block need.
    max_model_len: tokens of prompt and answer together, no more than the pool holds; by default
        the model's own length, or the pool's where that is less.
    threads: threads that compute; by default one for each CPU this process may use.
    """

    kv_blocks: int | None = None
    host_blocks: int | None = None
    block_size: int = 16
    max_seqs: int | None = None
    max_step_tokens: int | None = None
    max_model_len: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                raise ConfigError(f"{name} must be a whole number, not {value!r}")
        for name in ("kv_blocks", "block_size", "max_seqs", "max_step_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name, most in _MOST.items():
            if (getattr(self, name) or 0) > most:
                raise ConfigError(f"{name} must be at most {most:,}")
        if self.host_blocks is not None and self.host_blocks < 0:
            raise ConfigError("host blocks must not be negative")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError("the model length must be at least 2: a prompt and an answer")


@dataclass(frozen=True, slots=True)
class Backend:
    """What computes: "native", the CPU's own kernels, or "torch" on a device.

    device: "cpu", "cuda" or "cuda:N". dtype: "bf16", "fp16", "fp32" or "auto", which is bf16 on a
        GPU and fp32 on a CPU. attention: "gathered", "paged" or "auto"; graphs: "on", "off" or
        "auto"; as headway.executors.torch_.options has them.
    All but the first are torch's: ConfigError for others than the defaults elsewhere.
    """

    executor: str = "native"
    device: str = "cpu"
    dtype: str = "auto"
    attention: str = "auto"
    graphs: str = "auto"

    def __post_init__(self) -> None:
        torchs = (self.device, self.dtype, self.attention, self.graphs)
        if self.executor == "native" and torchs != ("cpu", "auto", "auto", "auto"):
            raise ConfigError("--device, --dtype, --attention and --graphs need --executor torch")

    @property
    def floats(self) -> str:
        """The type of the KV cache."""
        if self.executor == "native":
            return "f16"
        if self.dtype != "auto":
            return self.dtype
        return "fp32" if self.device == "cpu" else "bf16"

    @property
    def quantize(self) -> str:
        """What float weights become at load."""
        return "int8" if self.executor == "native" else "none"

    @property
    def notices(self) -> tuple[str, ...]:
        """A line each, for who starts it."""
        if self.executor == "native":
            return ()
        return ("the torch executor is experimental: it has been tested on CPUs, on no GPU",)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """All there is to choose about an engine.

    policy: a scheduling policy by name; ConfigError for one the scheduler doesn't know.
    targets: realtime latency targets in seconds; 0 = derived from measured steps.
    lanes: whether prefill and decode run on cores of their own; ConfigError for SPLIT on one core.
    weight_cache: where weights packed for the kernels are kept; None packs them at each start.
    backend: what computes.
    """

    sizes: Sizes = Sizes()
    policy: str = "tiered"
    targets: Targets = Targets()
    loop: LoopOptions = LoopOptions()
    lanes: LaneMode = LaneMode.AUTO
    weight_cache: WeightCache | None = None
    backend: Backend = Backend()


def build_engine(
    model: LoadedModel, options: EngineOptions, observers: Sequence[Observer] = ()
) -> Engine:
    """An engine for a model on this machine; `start` it, and `stop` it at the end.

    Raises ConfigError for sizes or a policy that can't work, ModelError for weights that can't.
    """
    key = f"{model.weights.fingerprint} {options.backend.floats}".encode()
    scheduling = SchedulerConfig(options.policy, options.targets, model_key=key)
    executor = _executor(model.weights, options)
    try:
        capacity = executor.capacity
        lanes = Controller(options.lanes, capacity, options.targets)
        scheduler = Scheduler(capacity, scheduling, lanes)
        return _around(executor, scheduler, model, options.loop, observers)
    except BaseException:
        executor.close()
        raise


def _executor(weights: Weights, options: EngineOptions) -> Executor:
    backend, sizes = options.backend, options.sizes
    if backend.executor == "native":
        return NativeExecutor(weights, native_options(weights.config, sizes), options.weight_cache)
    try:
        from headway.executors.torch_ import build
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            "the torch executor needs PyTorch: pip install 'headway[torch]'"
        ) from None
    torch_options = replace(
        build.options_for(backend.device, backend.floats),
        divided=options.lanes is not LaneMode.UNIFIED,
        attention=backend.attention,
        graphs=backend.graphs,
    )
    blocks = sizes.kv_blocks or build.pool_blocks(weights, torch_options, sizes.block_size)
    whole = native_options(weights.config, replace(sizes, kv_blocks=blocks))
    return build.build_executor(weights, whole, torch_options)


def lane_mode(name: str) -> LaneMode:
    """`unified`, `split` or `auto`. Raises ConfigError for another name."""
    try:
        return LaneMode(name)
    except ValueError:
        known = ", ".join(mode.value for mode in LaneMode)
        raise ConfigError(f"lanes {name!r} are not one of: {known}") from None


def weight_cache(given: str | None) -> WeightCache | None:
    """A folder for packed weights: `given`, or one in the cache folder; none for "none"."""
    if given == "none":
        return None
    return WeightCache(Path(given).expanduser() if given else default_cache() / "weights")


def native_options(config: ModelConfig, sizes: Sizes) -> NativeOptions:
    """Sizes with nothing left open. Raises ConfigError where the memory holds no pool, or model or
    pool no sequence of a length that was asked for."""
    kv_blocks = sizes.kv_blocks or _default_blocks(config, sizes.block_size)
    max_seqs = sizes.max_seqs or DEFAULT_SEQS
    wanted_len = sizes.max_model_len or config.max_context
    if wanted_len > config.max_context:
        raise ConfigError(
            f"a model length of {wanted_len:,} is beyond this model's {config.max_context:,}"
        )
    pool_tokens = kv_blocks * sizes.block_size
    if (sizes.max_model_len or 0) > pool_tokens:
        raise ConfigError(
            f"a model length of {wanted_len:,} (max_model_len) is beyond the {pool_tokens:,} "
            f"tokens of a pool of {kv_blocks:,} blocks (kv_blocks)"
        )
    step_tokens = sizes.max_step_tokens or max(DEFAULT_STEP_TOKENS, max_seqs + sizes.block_size)
    _require_scratch(config, step_tokens)
    return NativeOptions(
        kv_blocks=kv_blocks,
        host_blocks=sizes.host_blocks or 0,
        block_size=sizes.block_size,
        max_seqs=max_seqs,
        max_step_tokens=step_tokens,
        max_model_len=min(wanted_len, pool_tokens),
        threads=sizes.threads or 0,
    )


def describe(capacity: Capacity) -> str:
    """The pool in words: `KV: 4,096 blocks = 65,536 tokens = 32 sequences of 2,048; 1,440 MiB`."""
    tokens = capacity.kv_blocks * capacity.block_size
    length = min(capacity.max_model_len, tokens)
    fit = capacity.kv_blocks // blocks_for(length, capacity.block_size)
    sequences = "sequence" if fit == 1 else "sequences"
    blocks = "block" if capacity.kv_blocks == 1 else "blocks"
    line = f"KV: {capacity.kv_blocks:,} {blocks} = {tokens:,} tokens = {fit:,} {sequences}"
    line += f" of {length:,}"
    if capacity.block_bytes:
        line += f"; {capacity.kv_blocks * capacity.block_bytes / (1 << 20):,.0f} MiB"
    if capacity.host_blocks:
        line += f"; host: {capacity.host_blocks:,} blocks"
    return line


def block_bytes(config: ModelConfig, block_size: int) -> int:
    """Bytes of a KV block: keys and values of all layers, in half precision."""
    attention = config.attention
    width = 2 * attention.kv_heads * attention.head_dim
    return block_size * config.layers * width * KV_ELEMENT_BYTES


def _require_scratch(config: ModelConfig, step_tokens: int) -> None:
    """Raises ConfigError where the activations of such a step would fill the memory."""
    attention = config.attention
    qkv = (attention.heads + 2 * attention.kv_heads) * attention.head_dim
    # In single precision, and once more as 8-bit integers with their scales.
    wanted = step_tokens * 6 * (config.hidden + qkv + 2 * config.intermediate)
    free = available_memory_bytes()
    if wanted > free * SCRATCH_SHARE_OF_MEMORY:
        raise ConfigError(
            f"steps of {step_tokens:,} tokens (max_seqs, max_step_tokens) need "
            f"{wanted / 1e9:,.1f} GB for their activations, and {free / 1e9:,.1f} GB are free"
        )


def _default_blocks(config: ModelConfig, block_size: int) -> int:
    memory = available_memory_bytes()
    fit = int(memory * POOL_SHARE_OF_MEMORY) // block_bytes(config, block_size)
    if fit < 1:
        raise ConfigError(f"{memory / 1e6:,.0f} MB of free memory hold no KV pool")
    return min(fit, DEFAULT_POOL_TOKENS // block_size)


def _around(
    executor: Executor,
    scheduler: Scheduler,
    model: LoadedModel,
    loop: LoopOptions,
    observers: Sequence[Observer],
) -> Engine:
    return Engine(
        scheduler,
        executor,
        model.tokenizer,
        ModelLimits.from_capacity(executor.capacity, model.stop_ids),
        Surroundings(time.monotonic, random.Random(), observers),
        loop,
    )
