"""The scheduler: every iteration, which sequences hold blocks, and which of them compute."""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.plan import Capacity, StepFailure, StepPlan, StepResult
from headway.core.request import Committed, Request, Snapshot, Verdict
from headway.core.types import Lane, RequestId


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets in seconds; 0 = derived from measured realtime-only decode steps."""

    itl_s: float = 0.0
    ttft_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Knobs of the scheduling rules."""

    policy: str = "tiered"
    targets: Targets = Targets()


class Scheduler:
    """Owns every request and every KV block. Not thread-safe: one thread calls it."""

    def __init__(self, capacity: Capacity, config: SchedulerConfig) -> None:
        raise NotImplementedError

    def add(self, request: Request) -> None:
        """Queue a request. Raises NeverFitsError if its prompt can never be admitted."""
        raise NotImplementedError

    def abort(self, request: RequestId) -> None:
        """End a request at the next plan or commit; unknown or finished ids are ignored."""
        raise NotImplementedError

    def plan(self, lane: Lane, now: float) -> StepPlan:
        """Decide the lane's next step; may be empty. Every plan is committed, empty ones too."""
        raise NotImplementedError

    def commit(
        self,
        plan: StepPlan,
        outcome: StepResult | StepFailure,
        verdicts: Mapping[RequestId, Verdict],
        now: float,
    ) -> Committed:
        """Apply a plan's outcome and report all that changed since the last commit."""
        raise NotImplementedError

    def snapshot(self) -> Snapshot:
        """An immutable picture of the state now."""
        raise NotImplementedError
