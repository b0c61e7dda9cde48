"""Whether a realtime arrival interrupts a step in flight."""

from collections.abc import Sequence

from headway.core.plan import Chunk, StepPlan
from headway.core.types import Lane


class Interrupts:
    """An interrupt takes the lower classes out of a step; realtime's chunks go on, so that realtime
    arrivals in a row don't undo each other's work.

    However often realtime arrives, the lower classes lose at most every other step of their own, or
    half of their tokens. The decode lane isn't where an arrival would begin.
    """

    def __init__(self, gain_s: float) -> None:
        """`gain_s`: seconds that a step must end earlier by it; inf never interrupts."""
        self._gain_s = gain_s
        self._owed_tokens = 0

    def pays(self, plan: StepPlan, left_s: float) -> bool:
        """Whether to interrupt a step that would go on for `left_s`. From any thread."""
        given_up = given_up_tokens(plan)
        if self._owed_tokens or not given_up or plan.lane is Lane.DECODE:
            return False
        return left_s * given_up / num_tokens(plan.chunks) >= self._gain_s

    def note(self, plan: StepPlan, interrupted: bool) -> None:
        """How a step has ended."""
        if interrupted:
            self._owed_tokens = given_up_tokens(plan)
        elif self._owed_tokens and plan.chunks and plan.lane is not Lane.DECODE:
            paid = given_up_tokens(plan) if plan.kept else self._owed_tokens
            self._owed_tokens = max(self._owed_tokens - paid, 0)


def num_tokens(chunks: Sequence[Chunk]) -> int:
    """Tokens that are computed."""
    return sum([len(chunk.tokens) for chunk in chunks])


def given_up_tokens(plan: StepPlan) -> int:
    """Tokens that an interrupt takes out of a step."""
    return num_tokens(plan.chunks[plan.kept :])
