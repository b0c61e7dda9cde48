"""The integration's settings, as they travel in vLLM's `kv_connector_extra_config`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.core.config import Reserve
from headway.errors import ConfigError

UNTESTED = ("async-scheduling", "model-runner-v2", "data-parallel")
"""What can be allowed by name although no test of ours has run it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Each default is the documented one.

    host_gib: host memory for swapped KV, in GiB for each worker; 0 = recompute always.
    reserve: what batch keeps, as in Headway's own scheduler.
    pass_s: a head of the line that waited this many seconds is not passed any more.
    allowed: names of UNTESTED that the operator takes upon himself.
    """

    host_gib: float = 4.0
    reserve: Reserve = Reserve()
    pass_s: float = 1.0
    allowed: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Raise ConfigError for a value outside its range."""
        if not 0 <= self.host_gib < float("inf"):
            raise ConfigError(f"host memory of {self.host_gib} GiB is not 0 or more")
        if not self.pass_s >= 0:
            raise ConfigError(f"pass_s {self.pass_s} is less than 0")
        if unknown := sorted(self.allowed - set(UNTESTED)):
            known = ", ".join(UNTESTED)
            raise ConfigError(f"can't allow {', '.join(unknown)}; can be allowed: {known}")

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> "Settings":
        """What `to_extra` made. Raises ConfigError for a key or value that is not of ours."""
        known = dict(extra)
        try:
            reserve = Reserve(**known.pop("reserve", {}))
            allowed = frozenset(known.pop("allowed", ()))
            return cls(reserve=reserve, allowed=allowed, **known)
        except TypeError as error:
            raise ConfigError(f"kv_connector_extra_config: {error}") from None

    def to_extra(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "host_gib": self.host_gib,
            "reserve": asdict(self.reserve),
            "pass_s": self.pass_s,
            "allowed": sorted(self.allowed),
        }
