"""A request as it arrives, and what the core says about it afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from headway.core.plan import SamplingSpec, TokenLogprobs
from headway.core.types import Arrangement, FinishReason, PreemptKind, RequestId, ServiceClass


@dataclass(frozen=True, slots=True)
class Limits:
    """When a request ends by the core's own rules.

    max_tokens: most tokens to generate, at least 1.
    stop_ids: token ids that end the request (end of sequence, stop ids); empty to ignore them.
    deadline_s: absolute time, on the scheduler's clock, after which the request ends; inf = none.
    """

    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    deadline_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. `n > 1` is several requests with the same `group` and prompt.

    prompt: token ids, at least one.
    arrival_s: time of arrival on the scheduler's clock.
    tenant: who is served; separates prefix caches and shares service within a class.
    group: id of the first choice of this request's group; equal to `id` for a lone request.
    cacheable: whether prefix-cache blocks may be read (False where prompt log probabilities
        are wanted).
    """

    id: RequestId
    service_class: ServiceClass
    prompt: Sequence[int]
    limits: Limits
    sampling: SamplingSpec
    arrival_s: float
    tenant: str = ""
    group: RequestId | None = None
    cacheable: bool = True


class VerdictKind(Enum):
    """What the engine found in the tokens of a step."""

    CONTINUE = "continue"
    STOP = "stop"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The engine's word on a request between result and commit; no entry means CONTINUE.

    keep_tokens: with STOP, how many generated tokens the answer keeps in all.
    message: with ERROR, one line for the client.
    """

    kind: VerdictKind
    keep_tokens: int = 0
    message: str = ""


class Emitted(NamedTuple):
    """A token that now belongs to a request's answer. A named tuple, since a step has hundreds."""

    request: RequestId
    token: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `cached` prompt tokens came from the prefix cache."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    recomputed: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's end; nothing is said of it afterwards."""

    request: RequestId
    reason: FinishReason
    usage: Usage
    message: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting request got its blocks and a seat for the first time."""

    request: RequestId
    queued_s: float
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request gave up its blocks."""

    request: RequestId
    kind: PreemptKind
    blocks: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What one commit changed, in order. Aborts and deadlines since the last one are in it."""

    emitted: tuple[Emitted, ...] = ()
    finished: tuple[Finished, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    preempted: tuple[Preempted, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Requests of one service class by where they are now."""

    waiting: int = 0
    running: int = 0
    paused: int = 0
    swapped: int = 0


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Blocks of one tier; free + used + cached = total always holds."""

    free: int
    used: int
    cached: int
    total: int

    def released(self) -> "TierCounts":
        """The tier once nobody holds blocks of it."""
        return replace(self, free=self.free + self.used, used=0)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Decode tokens per second over the last steps that decoded; 0 before the first."""

    achieved: float = 0.0
    bound: float = 0.0
    paper: float = 0.0

    @property
    def ratio(self) -> float:
        """Share of the bound that was reached."""
        return self.achieved / self.bound if self.bound else 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable picture of the scheduler, published after each commit.

    headroom_blocks: blocks the residents are expected to grow by.
    step_error: median relative error of the latest step-time predictions.
    selection_gap: fraction of Eq. 1's optimum the last selection may have missed.
    arrangement: how the compute units are divided among lanes.
    """

    step: int
    device: TierCounts
    host: TierCounts
    classes: Mapping[ServiceClass, ClassCounts] = field(default_factory=dict)
    headroom_blocks: int = 0
    selection_gap: float = 0.0
    promoted: int = 0
    throughput: Throughput = Throughput()
    step_error: float = 0.0
    arrangement: Arrangement = Arrangement()

    @property
    def idle(self) -> bool:
        """Whether no request is alive."""
        return not any(
            c.waiting or c.running or c.paused or c.swapped for c in self.classes.values()
        )

    def emptied(self) -> "Snapshot":
        """The scheduler once everybody alive has ended."""
        device, host = self.device.released(), self.host.released()
        return replace(self, device=device, host=host, classes={}, headroom_blocks=0, promoted=0)
