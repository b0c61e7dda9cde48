"""How long a step takes, and how fast copies and prefill are: small models fitted online."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from math import inf, sqrt

_SCALES = (1.0, 0.01, 0.00002, 0.1, 0.0002)
"""Typical size of 1 / feature, so that all of them weigh alike."""
_FEATURES = len(_SCALES)
_FORGET = 0.995
_ANCHOR = 0.001
"""How much the last estimate counts beside the observations: what the load does not excite stays
as it was."""
_SWEEPS = 4
_ERRORS = 101
_OVERRUN_PART, _LEAST_OVERRUN, _MOST_OVERRUN = 1e-3, 0.01, 1.0
_HIDDEN = 1.1
"""A step with prefill that is no longer than this times the decode plane says little of prefill."""
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

    def with_rows(self, rows: int, context: int) -> "StepLoad":
        """The load with so many more decode rows, of `context` cached tokens together."""
        return StepLoad(
            self.prefill_tokens,
            self.prefill_context,
            self.decode_rows + rows,
            self.decode_context + context,
        )

    def with_all(self, other: "StepLoad") -> "StepLoad":
        """The load of both."""
        return StepLoad(
            self.prefill_tokens + other.prefill_tokens,
            self.prefill_context + other.prefill_context,
            self.decode_rows + other.decode_rows,
            self.decode_context + other.decode_context,
        )

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return self.prefill_tokens + self.decode_rows

    def plus(self, tokens: int, context: int, decoding: bool) -> "StepLoad":
        """The load with one more chunk of `tokens` at `context` cached tokens."""
        if decoding:
            return self.with_rows(1, context)
        return StepLoad(
            self.prefill_tokens + tokens,
            self.prefill_context + tokens * context + tokens * tokens // 2,
            self.decode_rows,
            self.decode_context,
        )


class StepModel:
    """The larger of two planes, since a step is as long as what it is bound by takes:

        decode    c0 + c3·rows + c4·context, and the prefill plane's c2·prefill tokens·context
        prefill   c0 + c1·prefill tokens + c2·prefill tokens·context + c3·rows + c4·context

    A step without prefill is on the decode plane. On an accelerator that plane's c0 is the reading
    of the weights, which a long chunk hides; one plane for both would misjudge a lone row.
    Attention comes after the matrices and hides behind nothing.

    overrun: of the steps that were held to an ITL target, one in a hundred took longer than
        predicted by more than this share of its limit, from 0 to 1. It follows that quantile, up by
        99 parts and down by one, each a thousandth of itself (of a hundredth, where it is less).
    """

    def __init__(self) -> None:
        """A vague prior: 2 ms a step and 1 ms a token."""
        self._decode, self._prefill = _Plane(), _Plane()
        self.steps = 0
        self.relative_error = 0.0
        self.overrun = 0.0
        self._errors: deque[float] = deque(maxlen=_ERRORS)

    @property
    def median_error(self) -> float:
        """Median relative error of the latest predictions, each made before its step was learned
        from; 0 before the first."""
        errors = sorted(self._errors)
        return errors[len(errors) // 2] if errors else 0.0

    def predict(self, load: StepLoad) -> float:
        """Seconds a step of this load takes."""
        row = _features(load)
        decode_s = self._decode_seconds(row)
        if not load.prefill_tokens:
            return decode_s
        return max(decode_s + self._prefill.part(2, row), self._prefill.predict(row))

    def rows_room(self, load: StepLoad, contexts: Seq[int], limit_s: float) -> int:
        """How many decode rows at so many cached tokens each, in this order, can join `load` within
        `limit_s`. No row makes a step shorter, so the last that fits is found by halves."""
        if limit_s == inf:
            return len(contexts)
        sums = list(accumulate(contexts))

        def too_long(i: int) -> bool:
            return self.predict(load.with_rows(i + 1, sums[i])) > limit_s

        if not sums or not too_long(len(sums) - 1):
            return len(sums)
        return bisect_left(range(len(sums)), True, key=too_long)

    def prefill_room(self, load: StepLoad, context: int, limit_s: float) -> int:
        """Most prefill tokens at `context` that can join `load` within `limit_s`; 0 if none."""
        if limit_s == inf:
            return _NO_LIMIT
        beside_s, present_s = self.beside(load), self.predict(load)
        if max(beside_s, present_s) >= limit_s:
            return 0
        pair_s = self._prefill.slope(2)
        context_s = pair_s * context
        token_s = self._prefill.slope(1) + context_s
        room = _most_tokens(token_s, pair_s, limit_s - beside_s)
        return min(room, _most_tokens(context_s, pair_s, limit_s - present_s))

    def beside(self, load: StepLoad) -> float:
        """Seconds that the load adds to chunks of which a step is full, what every step costs
        included."""
        return self._prefill.predict(_features(load))

    def scaled(self, factor: float) -> "StepModel":
        """What to expect of steps that take `factor` times as long, before any was seen."""
        model = StepModel()
        model._decode = self._without_prefill.scaled(factor)
        model._prefill = self._prefill.scaled(factor)
        return model

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds to compute a prefix of `tokens` again."""
        return self._prefill.slope(1) * tokens + self._prefill.slope(2) * (tokens * tokens // 2)

    @property
    def fixed_seconds(self) -> float:
        """What a step with prefill takes whatever it computes."""
        return self._prefill.slope(0)

    def observe(
        self,
        load: StepLoad,
        seconds: float,
        limit_s: float = inf,
        elapsed_s: float | None = None,
    ) -> None:
        """Learn from a step that was computed. limit_s: what an ITL target left it; elapsed_s: what
        it took with all that is around computing it."""
        seconds = max(seconds, 1e-9)
        row, predicted_s = _features(load), self.predict(load)
        if limit_s < inf and self.steps >= _ERRORS:
            took_s = seconds if elapsed_s is None else elapsed_s
            longer = took_s > predicted_s + self.overrun * limit_s
            part = _OVERRUN_PART * max(self.overrun, _LEAST_OVERRUN)
            moved = self.overrun + part * (99 if longer else -1)
            self.overrun = min(max(moved, 0.0), _MOST_OVERRUN)
        self.relative_error = abs(predicted_s - seconds) / seconds
        self._errors.append(self.relative_error)
        self.steps += 1
        if not load.prefill_tokens:
            self._decode.observe(row, seconds)
        elif seconds > _HIDDEN * self._decode_seconds(row):
            self._prefill.observe(row, seconds)
        elif self._prefill.predict(row) > seconds:
            # The chunk was hidden behind the decode plane: all it says of prefill is "no more".
            self._prefill.observe(row, seconds)

    @property
    def _without_prefill(self) -> "_Plane":
        """The decode plane. Where every step so far had prefill in it, what the other plane says of
        none is better than the prior."""
        return self._decode if self._decode.seen or not self._prefill.seen else self._prefill

    def _decode_seconds(self, row: "_Row") -> float:
        return self._without_prefill.predict((1.0, 0.0, 0.0, row[3], row[4]))


class _Plane:
    """Least squares of the relative error over late steps, no coefficient below zero.

    The normal equations are kept with exponential forgetting and solved by a few sweeps of
    projected Gauss-Seidel from the last estimate, which can't diverge. A residual beyond four times
    the usual one is clipped, since one stolen time slice must not move the model.
    """

    def __init__(self) -> None:
        """The prior; `seen`: whether a step was learned from."""
        self.seen = False
        self._weights = [0.002, 0.001 / _SCALES[1], 0.0, 0.001 / _SCALES[3], 0.0]
        self._normal = [[0.0] * _FEATURES for _ in range(_FEATURES)]
        self._target = [0.0] * _FEATURES
        self._usual_error = 1.0

    def predict(self, row: "_Row") -> float:
        """Seconds for a row of scaled features."""
        a, b, c, d, e = self._weights
        return a * row[0] + b * row[1] + c * row[2] + d * row[3] + e * row[4]

    def part(self, feature: int, row: tuple[float, ...]) -> float:
        """Seconds of a row that come of one feature."""
        return self._weights[feature] * row[feature]

    def scaled(self, factor: float) -> "_Plane":
        """One that has seen nothing and predicts `factor` times as much."""
        plane = _Plane()
        plane._weights = [weight * factor for weight in self._weights]
        return plane

    def slope(self, feature: int) -> float:
        """Seconds for one unit of a feature."""
        return self._weights[feature] * _SCALES[feature]

    def observe(self, row: "_Row", seconds: float) -> None:
        """Learn from one step."""
        self.seen = True
        believed_s = self._clipped(self.predict(row), seconds)
        scaled = [x / believed_s for x in row]
        for i, x in enumerate(scaled):
            self._target[i] = _FORGET * self._target[i] + x
            line = self._normal[i]
            self._normal[i] = [_FORGET * a + x * y for a, y in zip(line, scaled, strict=True)]
        self._solve()

    def _clipped(self, predicted_s: float, seconds: float) -> float:
        """The time to learn from: as measured, unless that is far out."""
        usual = self._usual_error
        limit = 4 * usual
        error = seconds / max(predicted_s, 1e-9) - 1
        self._usual_error += 0.05 * (min(abs(error), 4 * limit, 1.0) - usual)
        if usual > _CERTAIN or abs(error) <= max(limit, 0.02):
            return seconds
        return predicted_s * (1 + limit if error > 0 else max(1 - limit, 0.1))

    def _solve(self) -> None:
        """Improve the weights on the normal equations, held near where they were."""
        w, last = list(self._weights), self._weights
        for _ in range(_SWEEPS):
            for i, line in enumerate(self._normal):
                a, b, c, d, e = line
                products = a * w[0] + b * w[1] + c * w[2] + d * w[3] + e * w[4]
                wanted = self._target[i] - products + line[i] * w[i] + _ANCHOR * last[i]
                w[i] = max(wanted / (line[i] + _ANCHOR), 0.0)
        self._weights = w


_Row = tuple[float, float, float, float, float]
"""Scaled features of a load."""


def _features(load: StepLoad) -> _Row:
    return (
        1.0,
        load.prefill_tokens * _SCALES[1],
        load.prefill_context * _SCALES[2],
        load.decode_rows * _SCALES[3],
        load.decode_context * _SCALES[4],
    )


_NO_LIMIT = 1 << 30


def _most_tokens(token_s: float, pair_s: float, left_s: float) -> int:
    """The most n with token_s * n + pair_s * n^2 / 2 <= left_s; a chunk's tokens see each other."""
    slowest = token_s + sqrt(token_s * token_s + 2 * pair_s * left_s)
    return int(min(2 * left_s / slowest, _NO_LIMIT)) if slowest > 0 else _NO_LIMIT


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
