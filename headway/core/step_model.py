"""How long a step takes, and how fast copies and prefill are: small models fitted online."""

from dataclasses import dataclass

_SCALES = (1.0, 0.01, 0.00002, 0.1, 0.0002)
"""Typical size of 1 / feature, so that all of them weigh alike."""
_FEATURES = len(_SCALES)
_FORGET = 0.995
_ANCHOR = 0.001
"""How much the last estimate counts beside the observations: what the load does not excite stays
as it was."""
_SWEEPS = 4
_CERTAIN = 0.5
"""Nothing is clipped while the usual error is above this: the model has yet to learn."""


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

    Least squares of the relative error over late steps, no coefficient below zero. The normal
    equations are kept with exponential forgetting and solved by a few sweeps of projected
    Gauss-Seidel from the last estimate, which can't diverge. A residual beyond four times what is
    usual for its kind of step (with prefill, without) is clipped, since one stolen time slice must
    not move the model.
    """

    def __init__(self) -> None:
        """A vague prior: 2 ms a step and 1 ms a token."""
        self._weights = [0.002, 0.001 / _SCALES[1], 0.0, 0.001 / _SCALES[3], 0.0]
        self._normal = [[0.0] * _FEATURES for _ in range(_FEATURES)]
        self._target = [0.0] * _FEATURES
        self._usual_error = {False: 1.0, True: 1.0}
        self.steps = 0
        self.relative_error = 0.0

    def predict(self, load: StepLoad) -> float:
        """Seconds a step of this load takes."""
        return sum(w * x for w, x in zip(self._weights, _features(load), strict=True))

    def prefill_room(self, load: StepLoad, context: int, limit_s: float) -> int:
        """Most prefill tokens at `context` that can join `load` within `limit_s`; 0 if none."""
        left = limit_s - self.predict(load)
        if left <= 0:
            return 0
        linear = self._weights[1] * _SCALES[1] + self._weights[2] * _SCALES[2] * context
        return int(min(left / linear, _NO_LIMIT)) if linear > 0 else _NO_LIMIT

    def scaled(self, factor: float) -> "StepModel":
        """What to expect of steps that take `factor` times as long, before any was seen."""
        model = StepModel()
        model._weights = [weight * factor for weight in self._weights]
        return model

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds to compute a prefix of `tokens` again."""
        load = StepLoad(prefill_tokens=tokens, prefill_context=tokens * tokens // 2)
        return self.predict(load) - self._weights[0]

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that was computed."""
        seconds = max(seconds, 1e-9)
        predicted = self.predict(load)
        self.relative_error = abs(predicted - seconds) / seconds
        believed = self._clipped(predicted, seconds, load.prefill_tokens > 0)
        row = [x / believed for x in _features(load)]
        for i, x in enumerate(row):
            self._target[i] = _FORGET * self._target[i] + x
            line = self._normal[i]
            self._normal[i] = [_FORGET * a + x * y for a, y in zip(line, row, strict=True)]
        self._solve()
        self.steps += 1

    def _clipped(self, predicted: float, seconds: float, prefill: bool) -> float:
        """The time to learn from: as measured, unless that is far out for such a step."""
        usual = self._usual_error[prefill]
        limit = 4 * usual
        error = seconds / max(predicted, 1e-9) - 1
        self._usual_error[prefill] += 0.05 * (min(abs(error), 4 * limit, 1.0) - usual)
        if usual > _CERTAIN or abs(error) <= max(limit, 0.02):
            return seconds
        return predicted * (1 + limit if error > 0 else max(1 - limit, 0.1))

    def _solve(self) -> None:
        """Improve the weights on the normal equations, held near where they were."""
        weights, last = list(self._weights), self._weights
        for _ in range(_SWEEPS):
            for i, line in enumerate(self._normal):
                others = (
                    sum(a * w for a, w in zip(line, weights, strict=True)) - line[i] * weights[i]
                )
                wanted = self._target[i] - others + _ANCHOR * last[i]
                weights[i] = max(wanted / (line[i] + _ANCHOR), 0.0)
        self._weights = weights


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
