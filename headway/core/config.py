"""The scheduler's settings, validated once."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from headway.core.budget import Targets
from headway.errors import ConfigError

POLICIES = ("tiered", "weighted", "fcfs", "static")
"""Policies this scheduler knows."""

_CLASSLESS = ("fcfs", "static")


@dataclass(frozen=True, slots=True)
class Reserve:
    """The only protection of batch requests from the classes above.

    share: fraction of the KV blocks that promoted requests may hold, 0 = no reserve.
    seats: seats that promoted requests may hold.
    guard_s: a batch request that made no progress for this long may be promoted.
    preemptions: as may one that was preempted this often.
    """

    share: float = 0.05
    seats: int = 1
    guard_s: float = 60.0
    preemptions: int = 3

    def __post_init__(self) -> None:
        """Raise ConfigError for a value outside its range."""
        if not 0 <= self.share < 1:
            raise ConfigError(f"reserve share {self.share} is not in [0, 1)")
        if self.seats < 0 or self.guard_s < 0 or self.preemptions < 1:
            raise ConfigError(
                "the reserve needs seats and guard time of at least 0, preemptions of at least 1"
            )

    def deserves(self, stuck_s: float, preemptions: int) -> bool:
        """Whether a batch request may be promoted that made no progress for `stuck_s` seconds and
        was preempted so often."""
        return stuck_s >= self.guard_s or preemptions >= self.preemptions

    def has_room(self, promoted_blocks: Seq[int], wanted_blocks: int, pool_blocks: int) -> bool:
        """Whether a request of `wanted_blocks` may be promoted beside those who hold
        `promoted_blocks`, one entry each. One that is larger than the reserve is taken alone; it
        widens the reserve for itself."""
        if not promoted_blocks:
            return True
        blocks = sum(promoted_blocks) + wanted_blocks
        return len(promoted_blocks) < self.seats and blocks <= int(self.share * pool_blocks)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Knobs of the scheduling rules; each default is the documented one.

    policy: one of POLICIES.
    reserve, floor_share: what lower classes keep; floor_share is a fraction of all step tokens.
    pass_s: a head of the line that waited this long is not passed any more.
    realtime_memory_s: steps stay short for this long after realtime was last seen.
    records: how many of the last plans are kept for `Scheduler.records`; 0 = none.
    model_key: what prefix digests start from: model and KV type.
    """

    policy: str = "tiered"
    targets: Targets = Targets()
    reserve: Reserve = Reserve()
    floor_share: float = 0.02
    pass_s: float = 1.0
    realtime_memory_s: float = 30.0
    model_key: bytes = b""
    records: int = 256

    @property
    def ignores_classes(self) -> bool:
        """Whether the policy makes no difference between service classes."""
        return self.policy in _CLASSLESS

    def __post_init__(self) -> None:
        """Raise ConfigError for a value outside its range."""
        if self.policy not in POLICIES:
            raise ConfigError(f"policy {self.policy!r} is not one of: {', '.join(POLICIES)}")
        if not 0 <= self.floor_share < 1:
            raise ConfigError(f"floor share {self.floor_share} is not in [0, 1)")
