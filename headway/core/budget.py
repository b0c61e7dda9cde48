"""What one step may hold: tokens, and time under the latency targets; and the floor credit."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.step_model import StepLoad, StepModel

_OWN_MARGIN = 0.05
_ITL_FACTOR = 1.5
_TTFT_LEAST_S = 0.2
_TTFT_STEPS = 8
_MAX_STEP_SHARE = 0.25
_FIXED_SHARE = 0.05
_PROMPT_PACE = 6.0
"""Steps with realtime's prompts may be this many times what they take beside these."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of the realtime class in seconds; 0 = derived from measured steps.

    itl_s: default 1.5 x the realtime-only decode step.
    ttft_s: default 0.2 s or 8 realtime-only decode steps, whichever is longer.
    """

    itl_s: float = 0.0
    ttft_s: float = 0.0

    def itl(self, realtime_step_s: float) -> float:
        """Target for the time between tokens, given the realtime-only decode step."""
        return self.itl_s or _ITL_FACTOR * realtime_step_s

    def margin(self, overrun: float) -> float:
        """How much of that stays free for steps that take longer than predicted by `overrun`, as a
        share of the rest: as much where the target was given; where it is our own a twentieth at
        most, for on a shared machine batch would lose all of it."""
        return overrun if self.itl_s else min(overrun, _OWN_MARGIN)

    def max_step(self, realtime_step_s: float) -> float:
        """Longest step while realtime is about: a quarter of the TTFT target."""
        ttft_s = self.ttft_s or max(_TTFT_LEAST_S, _TTFT_STEPS * realtime_step_s)
        return _MAX_STEP_SHARE * ttft_s

    def prompt_step(self, realtime_step_s: float, beside_s: float) -> float:
        """Longest step with realtime rows and prompts where no ITL target is given; all of it but
        `beside_s` is the prompts'. They may have five sixths, so that rows slow a prompt down by no
        more than a fifth."""
        return min(_PROMPT_PACE * beside_s, self.max_step(realtime_step_s))


def long_enough(model: StepModel) -> float:
    """Seconds of a step with prefill beyond which a longer one gains little: what every step costs,
    whatever it computes, is a twentieth of it."""
    return model.fixed_seconds / _FIXED_SHARE


_NOTHING = StepLoad()


class StepBudget:
    """Fills one step: what was put in, and whether more fits. Lives for one plan."""

    def __init__(self, model: StepModel, max_tokens: int, limit_s: float) -> None:
        """`limit_s` binds what is asked with `rows_room`; what must run is put in with `take`."""
        self._model = model
        self._limit_s = limit_s
        self.load = StepLoad()
        self.tokens_left = max_tokens

    def rows_room(self, contexts: Sequence[int]) -> int:
        """How many decode rows at these contexts, in this order, keep the step within its
        limits."""
        most = contexts[: max(self.tokens_left, 0)]
        return self._model.rows_room(self.load, most, self._limit_s)

    def chunk_room(self, context: int, limit_s: float, beside: StepLoad = _NOTHING) -> int:
        """Most prefill tokens at `context` that keep the step within `limit_s` and its tokens, with
        `beside` still to be put in."""
        load = self.load.with_all(beside) if beside.tokens else self.load
        room = self._model.prefill_room(load, context, limit_s)
        return max(min(room, self.tokens_left - beside.tokens), 0)

    def take_rows(self, contexts: Sequence[int]) -> None:
        """Put decode rows in."""
        self.load = self.load.with_rows(len(contexts), sum(contexts))
        self.tokens_left -= len(contexts)

    def take(self, tokens: int, context: int, decoding: bool) -> None:
        """Put a chunk in."""
        self.load = self.load.plus(tokens, context, decoding)
        self.tokens_left -= tokens


class FloorCredit:
    """Tokens that lower classes may compute whatever the targets say: `share` of all tokens.

    In every step in which a lower-class resident had tokens to compute the credit grows by share x
    tokens of the step and shrinks by what the lower classes computed, not below 0. Since it is
    spent as soon as it covers a row or a chunk, over any window
    served >= share x tokens - one chunk.
    """

    def __init__(self, share: float, most_tokens: int) -> None:
        """`most_tokens`: credit kept at most, for times when nobody can spend it."""
        self._share = share
        self._most = most_tokens
        self._credit = 0.0

    def tokens(self, step_tokens: int) -> int:
        """Whole tokens that may be spent in a step of so many tokens, which earns its share."""
        return int(self._credit + self._share * step_tokens + 1e-9)

    def settle(self, step_tokens: int, lower_tokens: int) -> None:
        """Account for a step in which a lower-class resident had tokens to compute."""
        credit = self._credit + self._share * step_tokens - lower_tokens
        self._credit = min(max(credit, 0.0), float(self._most))
