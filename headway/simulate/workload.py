"""Requests made of a trace: a class for each by a seeded rule, prompts that take no memory."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import overload

from headway.core.plan import SamplingSpec
from headway.core.request import Limits, Request
from headway.core.types import RequestId, ServiceClass
from headway.errors import ConfigError
from headway.executors.simulated import END_TOKEN
from headway.simulate.traces import MOONCAKE_BLOCK_TOKENS, Record, Trace

_FIRST_PROMPT_TOKEN = 2
"""Below are the tokens of answers."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How a trace becomes load.

    shares: of the service classes; a request's class is drawn with them from the seed and its
        place in the trace, so that it is the same at every rate and under every policy.
    rate_scale: arrivals this many times as fast.
    backlog: batch requests that are always there, each replaced when it ends, as long as the trace
        goes on; their lengths are those of trace records drawn by the seed.
    """

    shares: tuple[tuple[ServiceClass, float], ...]
    rate_scale: float = 1.0
    backlog: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for a value outside its range."""
        if not 0 < self.rate_scale < float("inf"):
            raise ConfigError(f"rate scale {self.rate_scale:g} is not above 0")
        if not self.shares or any(not 0 <= share < float("inf") for _, share in self.shares):
            raise ConfigError("class shares must be at least 0")
        if sum(share for _, share in self.shares) <= 0:
            raise ConfigError("class shares must not all be 0")

    def service_class(self, index: int) -> ServiceClass:
        """The class of a request by its place in the trace."""
        edges = list(accumulate(share for _, share in self.shares))
        drawn = random.Random(f"class {self.seed} {index}").random() * edges[-1]
        return self.shares[min(bisect_right(edges, drawn), len(edges) - 1)][0]


@dataclass(frozen=True, slots=True)
class Job:
    """A request to come, and how many tokens its answer will have."""

    request: Request
    answer_tokens: int


class Workload:
    """Jobs in order of arrival, and replacements for the backlog."""

    def __init__(self, trace: Trace, mix: Mix) -> None:
        """Requests may generate up to the trace's longest answer, rounded up to a power of two;
        where they really end is not known to the scheduler."""
        self._trace = trace
        self._mix = mix
        self._max_tokens = 1 << (trace.longest_answer - 1).bit_length()
        self._draw = random.Random(f"backlog {mix.seed}")
        self._next_id = len(trace.records)

    @property
    def end_s(self) -> float:
        """Arrival of the trace's last request."""
        return self._trace.records[-1].at_s / self._mix.rate_scale

    def arrivals(self) -> Iterator[Job]:
        """The trace's requests."""
        for index, record in enumerate(self._trace.records):
            at_s = record.at_s / self._mix.rate_scale
            yield self._job(RequestId(index), record, at_s, self._mix.service_class(index))

    def backlog(self) -> Iterator[Job]:
        """The batch requests there at the start."""
        for _ in range(self._mix.backlog):
            yield self.replacement(0.0)

    def replacement(self, now_s: float) -> Job:
        """A further batch request."""
        record = self._draw.choice(self._trace.records)
        request = RequestId(self._next_id)
        self._next_id += 1
        return self._job(request, record, now_s, ServiceClass.BATCH)

    def _job(
        self, request: RequestId, record: Record, at_s: float, service_class: ServiceClass
    ) -> Job:
        return Job(
            Request(
                id=request,
                service_class=service_class,
                prompt=_prompt(request, record),
                limits=Limits(self._max_tokens, frozenset({END_TOKEN})),
                sampling=_SAMPLING,
                arrival_s=at_s,
                # Without ids no two prompts are alike: the prefix cache could find nothing.
                cacheable=bool(record.blocks),
            ),
            record.answer_tokens,
        )


_SAMPLING = SamplingSpec()


def _prompt(request: RequestId, record: Record) -> Sequence[int]:
    if record.blocks:
        return BlockPrompt(record.blocks, record.prompt_tokens)
    return range(_FIRST_PROMPT_TOKEN, _FIRST_PROMPT_TOKEN + record.prompt_tokens)


class BlockPrompt(Sequence[int]):
    """A prompt spelled by the ids of its 512-token blocks: equal ids give equal tokens.

    Token j of block i is 2 + 512 · i + j.
    """

    def __init__(self, blocks: Sequence[int], num_tokens: int) -> None:
        self._blocks = blocks
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        return self._num_tokens

    def __iter__(self) -> Iterator[int]:
        left = self._num_tokens
        for block in self._blocks:
            start = _FIRST_PROMPT_TOKEN + block * MOONCAKE_BLOCK_TOKENS
            yield from range(start, start + min(left, MOONCAKE_BLOCK_TOKENS))
            left -= MOONCAKE_BLOCK_TOKENS
            if left <= 0:
                return

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self._num_tokens))]
        position = at + self._num_tokens if at < 0 else at
        if not 0 <= position < self._num_tokens:
            raise IndexError(f"token {at} of {self._num_tokens}")
        block, offset = divmod(position, MOONCAKE_BLOCK_TOKENS)
        return _FIRST_PROMPT_TOKEN + self._blocks[block] * MOONCAKE_BLOCK_TOKENS + offset


def parse_shares(values: Mapping[str, float]) -> tuple[tuple[ServiceClass, float], ...]:
    """Class shares by label, in class order. Raises ConfigError for an unknown class."""
    labels = {c.label: c for c in ServiceClass}
    for label in values:
        if label not in labels:
            raise ConfigError(f"class {label!r} is not one of: {', '.join(labels)}")
    return tuple((c, values[c.label]) for c in ServiceClass if c.label in values)
