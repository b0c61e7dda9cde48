"""Times the scheduler alone: `plan()` and `commit()` in CPU time, over an executor that computes
nothing.

    python bench/plan.py [--running 64,256] [--waiting 0,10000,100000] [--steps 300] [--repeats 1]
        [--json OUT]

All seats are taken, or (`blocks`) the pool, which holds about as many: a sixteenth by realtime,
three eighths by standard answers, the rest by batch, and so many batch requests wait. Who ends is
followed by another of its class, so every few steps somebody is admitted; sequences grow across
block boundaries all the time, and half of the prompts begin alike, so that blocks are shared. The
target leaves room for all rows, since that is most work; a step in which realtime prefills has few.
With the pool full, realtime and standard arrivals displace batch, and growth takes from it.

Every load does the same steps each time. On a machine with neighbours `--repeats 4` does them four
times, and of each step the least time counts.
"""

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.core.budget import Targets
from headway.core.config import SchedulerConfig
from headway.core.plan import Capacity, Sampled, SamplingSpec, StepPlan, StepResult, StepTiming
from headway.core.request import Limits, Request
from headway.core.scheduler import Scheduler
from headway.core.types import Lane, RequestId, ServiceClass

BLOCK = 16
TENANTS = 8
EOS = 0
PREFIX = tuple(range(1, 129))
SHARES = {ServiceClass.REALTIME: 0.0625, ServiceClass.STANDARD: 0.375}
STEP_S, TOKEN_S, ROW_S = 0.01, 0.00002, 0.00001
WARM_UP = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it decided, and seconds of `plan` and of `commit`."""

    chunks: int
    preempted: int
    plan_s: float
    commit_s: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One load, and microseconds of CPU time a call. scarce: what those who wait wait for.
    chunks, preempted: mean number a plan."""

    running: int
    waiting: int
    scarce: str
    chunks: float
    preempted: float
    plan_us: float
    plan_p99_us: float
    commit_us: float
    commit_p99_us: float


class Load:
    """A scheduler kept at a number of running and waiting requests."""

    def __init__(self, running: int, waiting: int, scarce: str = "seats") -> None:
        """Everyone arrives at once."""
        full = scarce == "blocks"
        capacity = Capacity(
            kv_blocks=running * (24 if full else 56),
            host_blocks=running * 8,
            block_size=BLOCK,
            max_seqs=running * 2 if full else running,
            max_step_tokens=2 * running + 2048,
            max_model_len=8192,
            vocab_size=32000,
        )
        self.scheduler = Scheduler(capacity, SchedulerConfig(targets=Targets(itl_s=0.05)))
        self.now = 0.0
        self._random = random.Random(running)
        self._classes: dict[RequestId, ServiceClass] = {}
        self._added = 0
        wanted = {c: int(share * running) for c, share in SHARES.items()}
        wanted[ServiceClass.BATCH] = running - sum(wanted.values()) + waiting
        for service_class, count in wanted.items():
            for _ in range(count):
                self._arrive(service_class)

    def _arrive(self, service_class: ServiceClass) -> None:
        numbers = self._random
        self._added += 1
        request = RequestId(self._added)
        own = tuple(numbers.randrange(1, 32000) for _ in range(numbers.randint(16, 512)))
        self._classes[request] = service_class
        self.scheduler.add(
            Request(
                id=request,
                service_class=service_class,
                prompt=PREFIX + own if numbers.random() < 0.5 else own,
                limits=Limits(numbers.randint(64, 512), frozenset({EOS})),
                sampling=SamplingSpec(),
                arrival_s=self.now,
                tenant="" if numbers.random() < 0.5 else f"tenant {self._added % TENANTS}",
            )
        )

    def step(self) -> Step:
        """One more, timed."""
        start = time.thread_time()
        plan = self.scheduler.plan(Lane.UNIFIED, self.now)
        planned = time.thread_time()
        result = self._compute(plan)
        self.now += result.timing.compute_s
        begin = time.thread_time()
        committed = self.scheduler.commit(plan, result, {}, self.now)
        end = time.thread_time()
        for finished in committed.finished:
            self._arrive(self._classes.pop(finished.request))
        return Step(len(plan.chunks), len(committed.preempted), planned - start, end - begin)

    def _compute(self, plan: StepPlan) -> StepResult:
        numbers = self._random
        sampled = tuple(
            Sampled(c.request, EOS if numbers.random() < 0.004 else numbers.randrange(1, 32000))
            for c in plan.chunks
            if c.sample
        )
        rows = sum(len(c.tokens) == 1 for c in plan.chunks)
        tokens = sum(len(c.tokens) for c in plan.chunks) - rows
        seconds = STEP_S + ROW_S * rows + TOKEN_S * tokens
        seconds *= numbers.uniform(0.97, 1.03)
        return StepResult(plan.step, sampled, timing=StepTiming(compute_s=seconds))


def measure(running: int, waiting: int, scarce: str, steps: int, repeats: int = 1) -> Cell:
    """Steps of one load, after some to warm up; all of it `repeats` times."""
    runs = [timed(Load(running, waiting, scarce), steps) for _ in range(repeats)]
    plans = [min(step.plan_s for step in same) for same in zip(*runs, strict=True)]
    commits = [min(step.commit_s for step in same) for same in zip(*runs, strict=True)]
    return Cell(
        running,
        waiting,
        scarce,
        statistics.mean(step.chunks for step in runs[0]),
        statistics.mean(step.preempted for step in runs[0]),
        *(1e6 * quantile(plans, q) for q in (0.5, 0.99)),
        *(1e6 * quantile(commits, q) for q in (0.5, 0.99)),
    )


def timed(load: Load, steps: int) -> list[Step]:
    """So many steps, once it is warm."""
    for _ in range(WARM_UP):
        load.step()
    gc.collect()
    gc.freeze()
    try:
        return [load.step() for _ in range(steps)]
    finally:
        gc.unfreeze()


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of them does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", default="64,256")
    parser.add_argument("--waiting", default="0,10000,100000")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print("the scheduler alone, CPU time in ms                          plan()            commit()")
    print(f"{'running':>8}{'waiting':>9}  for   {'chunks':>8}{'preempted':>11}", end="")
    print(f"{'median':>12}{'p99':>8}{'median':>12}{'p99':>8}")
    running, waiting = (
        [int(n) for n in given.split(",")] for given in (args.running, args.waiting)
    )
    loads = [(r, w, "seats") for r in running for w in waiting]
    loads += [(max(running), w, "blocks") for w in waiting if w]
    cells = []
    for load in loads:
        cell = measure(*load, args.steps, args.repeats)
        cells.append(cell)
        print(
            f"{cell.running:8}{cell.waiting:9}  {cell.scarce:6}"
            f"{cell.chunks:8.0f}{cell.preempted:11.2f}"
            f"{cell.plan_us / 1e3:12.3f}{cell.plan_p99_us / 1e3:8.3f}"
            f"{cell.commit_us / 1e3:12.3f}{cell.commit_p99_us / 1e3:8.3f}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")


if __name__ == "__main__":
    main()
