"""How much of Eq. 1's optimum greedy with its fix-up misses, on selections made of a trace.

Usage: python -m tests.simulate.greedy TRACE [--count 300] [--seed 0]

A selection is a stretch of consecutive requests, as many as would need 1.5 to 4 times the pool.
Each has a class by the simulator's seeded rule; a third run already, with a part of their answer
and the bonus that `weighted` gives residents, and the others need blocks for their prompt. The pool
is one of four sizes; seats are plenty, or bind too. The optimum is a dynamic program's.
"""

import argparse
import random
import statistics
from dataclasses import dataclass

import numpy as np

from headway.core.selection import Item, select
from headway.core.sequence import blocks_for
from headway.core.types import ServiceClass
from headway.simulate.synthetic import load_trace
from headway.simulate.traces import Record, Trace
from headway.simulate.workload import Mix

BLOCK = 16
POOLS = (512, 1024, 2048, 4096)
MIX = Mix(((ServiceClass.REALTIME, 0.2), (ServiceClass.STANDARD, 0.3), (ServiceClass.BATCH, 0.5)))
RESIDENT_BONUS = 1.1
UNIT = 0.01
"""All weights are whole multiples of it, so that sums of them can be compared."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One selection to make."""

    items: tuple[Item, ...]
    blocks: int
    seats: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Fractions of the optimum that were missed: by greedy with its fix-up alone, and by `select`
    as the scheduler calls it."""

    greedy: float
    searched: float


def optimum(problem: Problem) -> float:
    """Exact, by a dynamic program over seats and blocks."""
    width = problem.blocks + 1
    best = np.zeros((problem.seats + 1, width), np.int64)
    for item in problem.items:
        if item.blocks <= problem.blocks:
            taken = best[:-1, : width - item.blocks] + round(item.value / UNIT)
            np.maximum(best[1:, item.blocks :], taken, out=best[1:, item.blocks :])
    return float(best[-1, -1]) * UNIT


def draw(trace: Trace, numbers: random.Random) -> Problem:
    """A selection from somewhere in the trace."""
    pool = numbers.choice(POOLS)
    wanted = numbers.uniform(1.5, 4) * pool
    at = numbers.randrange(len(trace.records))
    items: list[Item] = []
    while sum(i.blocks for i in items) < wanted:
        record = trace.records[at % len(trace.records)]
        item = _item(record, MIX.service_class(at), numbers)
        if item.blocks <= pool:  # what can never fit is refused at arrival
            items.append(item)
        at += 1
    fitting = max(int(len(items) / wanted * pool), 1)
    seats = min(len(items), 64) if numbers.random() < 0.5 else fitting
    return Problem(tuple(items), pool, seats)


def _item(record: Record, service_class: ServiceClass, numbers: random.Random) -> Item:
    if numbers.random() < 1 / 3:
        tokens = record.prompt_tokens + numbers.randint(0, record.answer_tokens)
        return Item(service_class.weight * RESIDENT_BONUS, blocks_for(tokens + 1, BLOCK))
    return Item(service_class.weight, blocks_for(record.prompt_tokens + 1, BLOCK))


def losses(trace: Trace, count: int, seed: int) -> list[Loss]:
    """Of so many selections."""
    numbers = random.Random(seed)
    found = []
    for _ in range(count):
        problem = draw(trace, numbers)
        best = optimum(problem)
        greedy = select(problem.items, problem.blocks, problem.seats, nodes=0)
        searched = select(problem.items, problem.blocks, problem.seats)
        found.append(Loss(1 - greedy.value / best, 1 - searched.value / best))
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = losses(load_trace(args.trace, args.seed), args.count, args.seed)
    for name, values in (
        ("greedy and fix-up", [loss.greedy for loss in found]),
        ("as the scheduler calls it", [loss.searched for loss in found]),
    ):
        mean, worst = statistics.mean(values), max(values)
        print(f"{name:26} {mean:8.3%} missed on average, {worst:.2%} at worst")


if __name__ == "__main__":
    main()
