"""The step in flight, and how long it should take."""

from collections.abc import Callable
from dataclasses import dataclass

from headway.core.interrupts import num_tokens
from headway.core.plan import StepHandle, StepPlan, StepResult
from headway.core.record import StepRecord


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it decided and why; None where the scheduler keeps no records."""

    plan: StepPlan
    record: StepRecord | None


@dataclass(frozen=True, slots=True)
class Flight:
    """A submitted step. `expected_s`: how long it should take, from `started_s` on."""

    planned: Planned
    handle: StepHandle
    started_s: float
    expected_s: float

    @property
    def plan(self) -> StepPlan:
        """What was submitted."""
        return self.planned.plan

    def end(self, limit_s: float, frozen_s: Callable[[], float]) -> StepResult | Exception:
        """Wait for its end, `limit_s` at most: its result, or what the handle raised (TimeoutError
        where it goes on). What `frozen_s` grows by meanwhile is waited longer."""
        before_s = frozen_s()
        while True:
            try:
                return self.handle.result(limit_s)
            except TimeoutError as error:
                now_s = frozen_s()
                limit_s, before_s = now_s - before_s, now_s
                if limit_s <= 0:
                    return error
            except Exception as error:
                return error

    def left_s(self, now_s: float) -> float:
        """How long it should still take; negative where it is late."""
        return self.started_s + self.expected_s - now_s


class Pace:
    """Seconds per token of late steps, a running mean. Estimates steps from their tokens alone:
    too long for a few decode rows, close for the prefill chunks worth interrupting."""

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self._token_s = 0.0

    def expect(self, plan: StepPlan) -> float:
        """Seconds a plan should take; 0 before anything was measured."""
        return self._token_s * num_tokens(plan.chunks)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step that ran to its end."""
        tokens = num_tokens(plan.chunks)
        if not tokens or result.interrupted:
            return
        measured = result.timing.compute_s / tokens
        weight = self._weight if self._token_s else 1.0
        self._token_s += weight * (measured - self._token_s)
