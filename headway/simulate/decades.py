"""A logarithmic axis of seconds for plots of distributions."""

from collections.abc import Iterable, Iterator
from math import ceil, floor, log10

from headway.simulate.figures import Spread

LEVELS = (0.0, 0.5, 0.9, 0.99)
"""Shares of the requests that get a line across."""

_LEAST_S = 1e-4


class Decades:
    """Whole powers of ten that hold distributions. Places are shares of the axis, from 0 to 1."""

    def __init__(self, spreads: Iterable[Spread]) -> None:
        """Holds these; values below 0.1 ms count as that."""
        values = [max(value, _LEAST_S) for spread in spreads for value in spread.levels]
        self._low = floor(log10(min(values, default=_LEAST_S)))
        self._high = max(ceil(log10(max(values, default=1.0))), self._low + 1)

    def place(self, seconds: float) -> float:
        """Where a value is."""
        return (log10(max(seconds, _LEAST_S)) - self._low) / (self._high - self._low)

    def marks(self) -> Iterator[tuple[float, str]]:
        """Place and label of each power of ten."""
        for exponent in range(self._low, self._high + 1):
            small = exponent < 0
            label = f"{10 ** (exponent + 3):g} ms" if small else f"{10**exponent:g} s"
            yield self.place(10.0**exponent), label

    def curve(self, spread: Spread) -> Iterator[tuple[float, float]]:
        """Place of a value, and the share of requests up to it."""
        last = max(len(spread.levels) - 1, 1)
        return ((self.place(value), i / last) for i, value in enumerate(spread.levels))
