"""Synthetic traces: Poisson or gamma arrivals, lengths as in Azure's conversation trace.

`conversation.json` holds that trace's quantiles; prompt and answer are drawn independently.
"""

import json
import random
from bisect import bisect_right
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from headway.errors import ConfigError
from headway.simulate.traces import Record, Trace, read_trace

_DEFAULT_REQUESTS = 2000
_USAGE = {"poisson": "poisson[:RATE]", "gamma": "gamma[:RATE[:CV]]"}


def load_trace(source: str, seed: int, max_requests: int | None = None) -> Trace:
    """A trace file, or `poisson[:RATE]` or `gamma[:RATE[:CV]]`: requests a second, and the gaps'
    coefficient of variation.

    seed: of jitter and of synthetic traces. max_requests: how many of the first to keep.
    Raises ConfigError for a file or words that can't be used.
    """
    kind, *numbers = source.split(":")
    if kind not in _USAGE or Path(source).exists():
        return read_trace(source, seed, max_requests)
    fit = json.loads(files("headway.simulate").joinpath("conversation.json").read_text())
    rate, cv = _arrivals(kind, numbers, fit["rate"], fit["cv"])
    levels = tuple(fit["levels"])
    prompts = Quantiles(levels, tuple(fit["prompt"]))
    answers = Quantiles(levels, tuple(fit["answer"]))
    draw = random.Random(f"{kind} {seed}")
    records, at_s = [], 0.0
    for _ in range(max_requests or _DEFAULT_REQUESTS):
        records.append(Record(at_s, prompts.tokens(draw.random()), answers.tokens(draw.random())))
        # Gaps of coefficient of variation cv are gamma of shape 1 / cv²; 1 is Poisson.
        at_s += draw.gammavariate(1 / cv**2, cv**2 / rate)
    return Trace(kind, tuple(records))


def _arrivals(kind: str, numbers: list[str], rate: float, cv: float) -> tuple[float, float]:
    """Rate and coefficient of variation, those of the real trace where none are given."""
    defaults = [rate, cv] if kind == "gamma" else [rate]
    try:
        given = [float(n) for n in numbers] + defaults[len(numbers) :]
        if len(given) > len(defaults) or not all(0 < n < float("inf") for n in given):
            raise ValueError
    except ValueError:
        wrong = ":".join((kind, *numbers))
        raise ConfigError(f"trace {wrong!r} is not {_USAGE[kind]}, numbers above 0") from None
    return (given[0], given[1]) if kind == "gamma" else (given[0], 1.0)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of lengths, linear between its quantiles.

    levels: rising from 0 to 1. values: one a level.
    """

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def tokens(self, level: float) -> int:
        """The length at a level in [0, 1]; at least 1."""
        i = min(max(bisect_right(self.levels, level), 1), len(self.levels) - 1)
        low, high = self.levels[i - 1], self.levels[i]
        span = (level - low) / (high - low)
        return max(round(self.values[i - 1] + span * (self.values[i] - self.values[i - 1])), 1)
