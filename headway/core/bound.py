"""The throughput bound: what decoding could reach with this pool, and what it did reach.

Over a window of T seconds, with S seats and, at step t, mean k_t blocks held by a decoding resident
(shared blocks counted once):

    bound     = sum over t of min(S, K_max / k_t) / T          tokens per second
    achieved  = sum over t of decode rows / T
    paper     = (K_max x block size / n) x steps / T           n = mean final length

Each step's rows are at most min(S, K_max / k_t), so achieved never exceeds the bound. The paper's
formula uses final lengths where live sequences are shorter, and can be exceeded.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.blocks import BlockPool
from headway.core.plan import Capacity
from headway.core.request import Throughput
from headway.core.sequence import Sequence
from headway.core.step_model import RunningMean

_WINDOW_STEPS = 1000
_PRIOR_LENGTH = 512.0


@dataclass(frozen=True, slots=True)
class StepRoom:
    """A planned step: decode rows in it, and the most rows there could have been."""

    rows: int
    room: float


def step_room(
    capacity: Capacity, residents: Iterable[Sequence], rows: int, pool: BlockPool
) -> StepRoom:
    """How many rows like these the pool and the seats would have had room for."""
    decoding = [s for s in residents if s.decoding]
    if not decoding:
        return StepRoom(0, 0.0)
    if not pool.shared:
        union = sum([len(s.blocks) for s in decoding])
    else:
        # All that is used, less what only the others hold: those are the fewer as a rule.
        others = (s for s in residents if not s.decoding)
        union = pool.in_use - pool.held_by_no_one_but(b for s in others for b in s.blocks)
    return StepRoom(rows, min(capacity.max_seqs, capacity.kv_blocks * len(decoding) / union))


class BoundMeter:
    """Sums over the last steps that had decoding residents."""

    def __init__(self, capacity: Capacity) -> None:
        """Nothing measured yet."""
        self._capacity = capacity
        self._steps: deque[tuple[StepRoom, float]] = deque()
        self._rows = 0
        self._room = 0.0
        self._seconds = 0.0
        self._length = RunningMean(_PRIOR_LENGTH)

    def add_step(self, step: StepRoom, seconds: float) -> None:
        """Count a committed step; those without a decoding resident say nothing."""
        if not step.room:
            return
        self._steps.append((step, seconds))
        self._count(step, seconds, 1)
        if len(self._steps) > _WINDOW_STEPS:
            self._count(*self._steps.popleft(), -1)

    def add_final_length(self, tokens: int) -> None:
        """Count a finished sequence's prompt and answer."""
        self._length.add(tokens)

    def read(self) -> Throughput:
        """Rates over the window."""
        if self._seconds <= 0:
            return Throughput()
        capacity = self._capacity
        pool_sequences = capacity.kv_blocks * capacity.block_size / self._length.value
        return Throughput(
            achieved=self._rows / self._seconds,
            bound=self._room / self._seconds,
            paper=pool_sequences * len(self._steps) / self._seconds,
        )

    def _count(self, step: StepRoom, seconds: float, sign: int) -> None:
        self._rows += sign * step.rows
        self._room += sign * step.room
        self._seconds += sign * seconds
