"""Names shared by the whole core: ids, service classes, lanes, states, finish reasons."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NewType

RequestId = NewType("RequestId", int)
"""Unique for the life of a scheduler; given by the engine in order of arrival."""

BlockId = NewType("BlockId", int)
"""Index of a KV block in its tier's pool (device or host), from 0."""


class ServiceClass(IntEnum):
    """Service classes; a smaller value is more urgent, so classes sort in order of service."""

    REALTIME = 0
    STANDARD = 1
    BATCH = 2

    @property
    def weight(self) -> float:
        """Priority weight w(r) of Eq. 1."""
        return _WEIGHTS[self]

    @property
    def label(self) -> str:
        """Lower-case name, as used on the wire and in metrics."""
        return self.name.lower()


_WEIGHTS = {ServiceClass.REALTIME: 10.0, ServiceClass.STANDARD: 1.0, ServiceClass.BATCH: 0.1}


class Lane(IntEnum):
    """A set of compute units with its own step cycle."""

    UNIFIED = 0
    PREFILL = 1
    DECODE = 2


SPLIT_LANES = (Lane.PREFILL, Lane.DECODE)
"""The lanes that run at once where prefill and decode are apart."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the executor's compute units are divided among lanes.

    prefill_units, decode_units: units of the two split lanes; both 0 for one unified lane, which
        has all of them.
    """

    prefill_units: int = 0
    decode_units: int = 0

    @property
    def split(self) -> bool:
        """Whether prefill and decode run apart."""
        return self.decode_units > 0

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes that are planned."""
        return SPLIT_LANES if self.split else (Lane.UNIFIED,)

    def units(self, lane: Lane) -> int:
        """A lane's units; 0 where the arrangement doesn't say."""
        return {Lane.PREFILL: self.prefill_units, Lane.DECODE: self.decode_units}.get(lane, 0)


class State(Enum):
    """Where a request is in its life; `core.states` holds the one transition table."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended. The first two are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


class PreemptKind(Enum):
    """How a victim's KV cache is given up: copied to host memory, or dropped and computed again."""

    SWAP = "swap"
    RECOMPUTE = "recompute"
