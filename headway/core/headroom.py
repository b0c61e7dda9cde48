"""How much the residents will still grow: headroom for admission, and when blocks come free.

Both come from one forecast. Each resident is expected to generate as many more tokens as its limit
and the measured output length of its class say; all grow by a token a step, and each frees its
blocks when it ends.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from headway.core.sequence import Sequence, blocks_for
from headway.core.step_model import RunningMean
from headway.core.types import ServiceClass

_PRIOR_TOKENS = 256.0
_LEAST_SHARE = 0.25
"""A sequence that outlived its class's mean is expected to go on for this share of the mean."""


class OutputLengths:
    """Mean output tokens by class, measured."""

    def __init__(self) -> None:
        """Nothing measured yet: `_PRIOR_TOKENS` for every class."""
        self._means = {c: RunningMean(_PRIOR_TOKENS) for c in ServiceClass}

    def add(self, service_class: ServiceClass, tokens: int) -> None:
        """Take in the length of an answer that ended by itself."""
        self._means[service_class].add(tokens)

    def remaining(self, sequence: Sequence) -> int:
        """Tokens the sequence is expected to generate from now, at least 1."""
        return self.outlook((sequence,))[0][0]

    def outlook(self, sequences: Iterable[Sequence]) -> list[tuple[int, int, int]]:
        """Remaining tokens, tokens and blocks of each; in one go, since it is asked for all
        residents."""
        means = [(int(m.value), int(_LEAST_SHARE * m.value)) for m in self._means.values()]
        outlook = []
        for sequence in sequences:
            tokens = len(sequence.tokens)
            left = sequence.most_tokens - tokens
            if sequence.may_stop:
                mean, least = means[sequence.service_class]
                expected = mean - tokens + sequence.prompt_tokens
                if expected < least:
                    expected = least
                if expected < left:
                    left = expected
            outlook.append((left if left > 1 else 1, tokens, len(sequence.blocks)))
        return outlook


class Caution:
    """How much of the forecast growth admission leaves free, from 0 to 1.

    The forecast is of the worst moment, and a preemption costs far less than a pool that is half
    empty; but preemptions that follow each other cost more. So the share creeps down with every
    step, and jumps up when growth has to preempt in its own class.
    """

    _START, _LEAST, _UP, _DOWN = 0.3, 0.1, 0.1, 0.002

    def __init__(self) -> None:
        """Starts at 0.3."""
        self.share = self._START

    def on_step(self) -> None:
        """A step went by."""
        self.share = max(self.share - self._DOWN, self._LEAST)

    def on_growth_preemption(self) -> None:
        """Growth took blocks from its own class."""
        self.share = min(self.share + self._UP, 1.0)


@dataclass(frozen=True, slots=True)
class Relief:
    """When enough blocks will have come free for somebody, and what is left over then."""

    steps: int
    spare_blocks: int


class Forecast:
    """The residents' expected future, worked out once for a set of them."""

    def __init__(
        self, residents: Iterable[Sequence], lengths: OutputLengths, block_size: int
    ) -> None:
        """Shared blocks are counted for each holder; the forecast errs on the safe side."""
        self._size = block_size
        self._lengths = lengths
        self._peak: int | None = None
        self._members = lengths.outlook(residents)
        """Remaining tokens, tokens and blocks of each, who ends first first."""
        self._members.sort(key=_remaining)

    def add(self, sequence: Sequence) -> None:
        """One more resident."""
        self._peak = None
        insort(self._members, self._lengths.outlook((sequence,))[0], key=_remaining)

    def headroom_blocks(self) -> int:
        """Most additional blocks the residents will hold at once, over what they hold now.

        The peak is just before one of them ends; a last block is half full on average.
        """
        if self._peak is None:
            self._peak = self._find_peak()
        return self._peak

    def _find_peak(self) -> int:
        length = held = most_tokens = 0
        size = self._size
        for alive, (remaining, tokens, blocks) in enumerate(reversed(self._members), 1):
            length += tokens
            held += blocks
            then = length + alive * remaining + alive // 2 * size
            if then > most_tokens:
                most_tokens = then
        return max(blocks_for(most_tokens, size) - held, 0)

    def relief(self, shortage_blocks: int) -> Relief:
        """When residents that end will have freed `shortage_blocks`, growth of others ignored;
        never (0 steps, nothing to spare) where they do not."""
        freed = 0
        for remaining, _, blocks in self._members:
            freed += blocks
            if freed >= shortage_blocks:
                return Relief(remaining, freed - shortage_blocks)
        return Relief(0, 0)


_remaining = itemgetter(0)
