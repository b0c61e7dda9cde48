"""Settings of the engine, and what it knows of the model it serves."""

from dataclasses import dataclass

from headway.core.plan import Capacity
from headway.core.types import ServiceClass
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Most choices, or tokens of their prompts, that may wait for their first admission, by
    class. A request that finds none waiting is let in whatever its size."""

    realtime: int = 10_000
    standard: int = 10_000
    batch: int = 100_000

    def __post_init__(self) -> None:
        if min(self.realtime, self.standard, self.batch) < 1:
            raise ConfigError("queue limits must be at least 1")

    def of(self, service_class: ServiceClass) -> int:
        """The limit of one class."""
        return (self.realtime, self.standard, self.batch)[service_class]


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How the engine behaves around the scheduler.

    max_choices: most answers (`n`) of one request.
    stall_limit_s: a step longer than this is taken for a hang: clients get an error and the
        engine stops. Time for which the process was frozen doesn't count.
    interrupt_gain_s: seconds that a step must be expected to end earlier without the lower classes
        for a realtime arrival to take them out of it; inf never does.
    """

    max_choices: int = 128
    stall_limit_s: float = 60.0
    interrupt_gain_s: float = 0.02
    queues: QueueLimits = QueueLimits()
    queue_tokens: QueueLimits = QueueLimits(2_000_000, 4_000_000, 8_000_000)

    def __post_init__(self) -> None:
        if self.max_choices < 1:
            raise ConfigError("max_choices must be at least 1")
        if not self.stall_limit_s > 0:
            raise ConfigError("stall_limit_s must be more than 0")


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request must keep to.

    max_model_len: most tokens of prompt and answer together.
    eos_ids: tokens that end an answer unless the request ignores them.
    """

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]

    @classmethod
    def from_capacity(cls, capacity: Capacity, eos_ids: frozenset[int]) -> "ModelLimits":
        """The model's length, or the KV pool's where that is shorter."""
        pool_tokens = capacity.kv_blocks * capacity.block_size
        length = min(capacity.max_model_len, pool_tokens)
        return cls(capacity.vocab_size, length, eos_ids)
