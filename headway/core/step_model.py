"""How long a step takes, and how fast copies and prefill are: small models fitted online."""

from dataclasses import dataclass

_FEATURES = 5
_FORGET = 0.995
_SCALES = (1.0, 0.01, 0.00002, 0.1, 0.0002)
"""Typical size of 1 / feature, so that one covariance suits all of them."""
_MAX_TRACE = 20.0
"""Forgetting stops here: what the load does not excite must not blow up."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step computes; sums over its chunks.

    prefill_context, decode_context: tokens already in cache, times prefill tokens and rows.
    """

    prefill_tokens: int = 0
    prefill_context: int = 0
    decode_rows: int = 0
    decode_context: int = 0

    def plus(self, tokens: int, context: int, decoding: bool) -> "StepLoad":
        """The load with one more chunk of `tokens` at `context` cached tokens."""
        if decoding:
            return StepLoad(
                self.prefill_tokens,
                self.prefill_context,
                self.decode_rows + 1,
                self.decode_context + context,
            )
        return StepLoad(
            self.prefill_tokens + tokens,
            self.prefill_context + tokens * context + tokens * tokens // 2,
            self.decode_rows,
            self.decode_context,
        )


class StepModel:
    """seconds ≈ c0 + c1·prefill tokens + c2·prefill tokens·context + c3·rows + c4·context.

    Recursive least squares with forgetting; a residual beyond four times the usual error is
    clipped, since one stolen time slice must not move the model. Coefficients below zero count
    as zero.
    """

    def __init__(self) -> None:
        """A vague prior: 2 ms a step and 1 ms a token."""
        self._weights = [0.002, 0.001 / _SCALES[1], 0.0, 0.001 / _SCALES[3], 0.0]
        self._cov = [[1.0 if i == j else 0.0 for j in range(_FEATURES)] for i in range(_FEATURES)]
        self._error_s = 0.0
        self.steps = 0
        self.relative_error = 0.0

    def predict(self, load: StepLoad) -> float:
        """Seconds a step of this load takes."""
        row = _features(load)
        return sum(max(w, 0.0) * x for w, x in zip(self._weights, row, strict=True))

    def prefill_room(self, load: StepLoad, context: int, limit_s: float) -> int:
        """Most prefill tokens at `context` that can join `load` within `limit_s`; 0 if none."""
        left = limit_s - self.predict(load)
        if left <= 0:
            return 0
        linear = (
            max(self._weights[1], 0.0) * _SCALES[1]
            + max(self._weights[2], 0.0) * _SCALES[2] * context
        )
        return int(min(left / linear, _NO_LIMIT)) if linear > 0 else _NO_LIMIT

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds to compute a prefix of `tokens` again."""
        load = StepLoad(prefill_tokens=tokens, prefill_context=tokens * tokens // 2)
        return self.predict(load) - max(self._weights[0], 0.0)

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that was computed."""
        row = _features(load)
        self.relative_error = abs(self.predict(load) - seconds) / max(seconds, 1e-9)
        residual = seconds - sum(w * x for w, x in zip(self._weights, row, strict=True))
        limit = max(4 * self._error_s, 1e-4) if self.steps > 20 else float("inf")
        clipped = min(max(residual, -limit), limit)
        self._error_s += 0.05 * (min(abs(residual), 4 * limit) - self._error_s)
        gain_row = [sum(c * x for c, x in zip(line, row, strict=True)) for line in self._cov]
        trace = sum(self._cov[i][i] for i in range(_FEATURES))
        forget = _FORGET if trace < _MAX_TRACE else 1.0
        denominator = forget + sum(x * g for x, g in zip(row, gain_row, strict=True))
        gain = [g / denominator for g in gain_row]
        self._weights = [w + g * clipped for w, g in zip(self._weights, gain, strict=True)]
        self._cov = [
            [(c - gain[i] * gain_row[j]) / forget for j, c in enumerate(line)]
            for i, line in enumerate(self._cov)
        ]
        self.steps += 1


def _features(load: StepLoad) -> tuple[float, ...]:
    return (
        1.0,
        load.prefill_tokens * _SCALES[1],
        load.prefill_context * _SCALES[2],
        load.decode_rows * _SCALES[3],
        load.decode_context * _SCALES[4],
    )


_NO_LIMIT = 1 << 30


class RunningMean:
    """Exponential mean that starts as a plain one; `value` is the prior until something came."""

    def __init__(self, prior: float, horizon: int = 50) -> None:
        """`horizon`: about how many of the newest observations count."""
        self.value = prior
        self.count = 0
        self._horizon = horizon

    def add(self, observation: float) -> None:
        """Take in one observation."""
        self.count += 1
        self.value += (observation - self.value) / min(self.count, self._horizon)
