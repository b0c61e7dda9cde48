"""Eq. 1 as a problem of its own: the most valuable set that fits into blocks and seats.

A 0/1 knapsack with a cardinality bound. Greedy by value per block with one fix-up; where the bound
says that more than 1 % may be lost, depth-first branch and bound on the bound of the linear
relaxation, with a budget of nodes. What may still be lost is returned.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

_ENOUGH = 0.01
_NODES = 200


@dataclass(frozen=True, slots=True)
class Item:
    """A candidate: `value` is its weight, `blocks` what it needs, at least 1."""

    value: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Chosen items by index, ascending. gap: fraction of the optimum that may be missing."""

    chosen: tuple[int, ...]
    value: float
    gap: float


def select(
    items: Seq[Item], blocks: int, seats: int, nodes: int = _NODES, enough: float = _ENOUGH
) -> Selection:
    """Maximise the summed value of at most `seats` items that need at most `blocks` together.

    Equal items are taken in the order given. `nodes`: most nodes branch and bound may visit.
    `enough`: greedy's choice is kept where its gap is no more; 0, with nodes enough, is exact.
    """
    order = sorted(range(len(items)), key=lambda i: (-items[i].value / items[i].blocks, i))
    fitting = [i for i in order if items[i].blocks <= blocks]
    search = _Search([items[i] for i in fitting], nodes)
    value, picks = search.greedy(blocks, seats)
    bound = search.bound(0, blocks, seats)
    if bound > value * (1 + enough):
        value, picks, bound = search.branch(blocks, seats, value, picks, bound)
    gap = max(0.0, 1 - value / bound) if bound > 0 else 0.0
    return Selection(tuple(sorted(fitting[p] for p in picks)), value, gap)


class _Search:
    """Items in order of density, and what can be done with them."""

    def __init__(self, items: list[Item], nodes: int) -> None:
        self._items = items
        self._nodes = nodes
        self._rest = [0.0] * (len(items) + 1)
        for i in range(len(items) - 1, -1, -1):
            self._rest[i] = max(self._rest[i + 1], items[i].value)

    def greedy(self, blocks: int, seats: int) -> tuple[float, list[int]]:
        """By density; the fix-up is the same by value, where that gives more."""
        fills = [self._fill(range(len(self._items)), blocks, seats)]
        by_value = sorted(range(len(self._items)), key=lambda i: (-self._items[i].value, i))
        fills.append(self._fill(by_value, blocks, seats))
        best = max(fills, key=self._value)
        return self._value(best), best

    def bound(self, start: int, blocks: int, seats: int) -> float:
        """Most that items from `start` on can add, by two relaxations: fractional items, and seats
        times the most valuable item left."""
        total, room = 0.0, blocks
        for item in self._items[start:]:
            if room <= 0:
                break
            total += min(1.0, room / item.blocks) * item.value
            room -= item.blocks
        return min(total, seats * self._rest[start])

    def branch(
        self, blocks: int, seats: int, value: float, picks: list[int], bound: float
    ) -> tuple[float, list[int], float]:
        """Depth first, taking before leaving out; best value, its items, and what bounds it."""
        stack: list[tuple[int, int, int, float, tuple[int, ...]]] = [(0, blocks, seats, 0.0, ())]
        nodes = 0
        while stack and nodes < self._nodes:
            at, room, left, gained, taken = stack.pop()
            nodes += 1
            if gained > value:
                value, picks = gained, list(taken)
            if gained + self.bound(at, room, left) <= value * (1 + 1e-12):
                continue
            stack.append((at + 1, room, left, gained, taken))
            item = self._items[at]
            if item.blocks <= room:
                more = (at + 1, room - item.blocks, left - 1, gained + item.value, (*taken, at))
                stack.append(more)
        open_bounds = [gained + self.bound(at, room, left) for at, room, left, gained, _ in stack]
        return value, picks, min(bound, max([value, *open_bounds]))

    def _fill(self, order: Seq[int], blocks: int, seats: int) -> list[int]:
        picks: list[int] = []
        room = blocks
        for i in order:
            if len(picks) == seats:
                break
            if self._items[i].blocks <= room:
                picks.append(i)
                room -= self._items[i].blocks
        return picks

    def _value(self, picks: list[int]) -> float:
        return sum(self._items[i].value for i in picks)
