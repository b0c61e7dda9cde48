"""The step in flight: whether interrupting it for a realtime arrival pays."""

from collections.abc import Callable
from dataclasses import dataclass

from headway.core.plan import StepHandle, StepPlan, StepResult
from headway.core.record import StepRecord
from headway.core.types import RequestId


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

    def end(self, limit_s: float) -> StepResult | Exception:
        """Wait for its end, `limit_s` at most: its result, or what the handle raised (TimeoutError
        where it goes on)."""
        try:
            return self.handle.result(limit_s)
        except Exception as error:
            return error

    def interrupt_if_worth(
        self, now_s: float, gain_s: float, is_realtime: Callable[[RequestId], bool]
    ) -> None:
        """Ask it to stop if it computes for lower classes only and has at least `gain_s` to go.

        From any thread. A step with a realtime chunk is never interrupted, so realtime arrivals
        in a row don't undo each other's work: after the first, every step carries some.
        """
        if self.started_s + self.expected_s - now_s < gain_s or not self.plan.chunks:
            return
        if not any(is_realtime(chunk.request) for chunk in self.plan.chunks):
            self.handle.interrupt()


class Pace:
    """Seconds per token of late steps, a running mean. Estimates steps from their tokens alone:
    too long for a few decode rows, close for the prefill chunks worth interrupting."""

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self._token_s = 0.0

    def expect(self, plan: StepPlan) -> float:
        """Seconds a plan should take; 0 before anything was measured."""
        return self._token_s * _num_tokens(plan)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step that ran to its end."""
        tokens = _num_tokens(plan)
        if not tokens or result.interrupted:
            return
        measured = result.timing.compute_s / tokens
        weight = self._weight if self._token_s else 1.0
        self._token_s += weight * (measured - self._token_s)


def _num_tokens(plan: StepPlan) -> int:
    return sum(len(chunk.tokens) for chunk in plan.chunks)
