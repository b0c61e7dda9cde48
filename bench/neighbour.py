"""What is left when other processes take the cores: decode steps beside busy neighbours.

    python bench/neighbour.py MODEL.gguf [--rows 1,8,32] [--seconds 60]

Decode steps on all cores, in windows of half a second: alone, beside one process that computes
without end, beside two, and so on up to one for each core; the windows alternate. Prints in
Markdown, for each number of neighbours: tokens per second, the share of the cores' time that the
process had, tokens per second of that time, and the longest step. Throughput in proportion means
that the third figure stays; a collapse shows as a long step.
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from lane_steps import Work, make_work

from headway.core.types import Lane
from headway.executors.cpu import usable_cpus
from headway.models.loader import load_model

WINDOW_S = 0.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    options = parser.parse_args()
    weights = load_model(options.model).weights
    cores = usable_cpus()
    all_rows = [int(rows) for rows in options.rows.split(",")]
    print("| decoding | neighbours | tokens/s | share of cores | per CPU second | longest step |")
    print("|---|---|---|---|---|---|")
    for rows in all_rows:
        work = make_work(weights, rows, cores)
        windows = [measure(work, count) for count in range(cores + 1)]  # warms up
        taken: list[list[Window]] = [[] for _ in windows]
        end_s = time.monotonic() + options.seconds / len(all_rows)
        while time.monotonic() < end_s:
            for count, each in enumerate(taken):
                each.append(measure(work, count))
        for count, each in enumerate(taken):
            print(
                f"| {rows} | {count} | {median(w.tokens_per_s for w in each):.0f} "
                f"| {median(w.cpu_share for w in each) / cores:.2f} "
                f"| {median(w.tokens_per_s / w.cpu_share for w in each):.0f} "
                f"| {max(w.longest_s for w in each) * 1000:.0f} ms |",
                flush=True,
            )
        work.executor.close()


class Window:
    """Half a second of steps. cpu_share: CPU seconds a second that this process had."""

    def __init__(self, rows: int, steps_s: list[float], wall_s: float, cpu_s: float) -> None:
        self.tokens_per_s = rows * len(steps_s) / wall_s
        self.longest_s = max(steps_s)
        self.cpu_share = cpu_s / wall_s


def measure(work: Work, neighbours: int) -> Window:
    """A window beside so many neighbours."""
    with ExitStack() as stack:
        for _ in range(neighbours):
            stack.enter_context(busy())
        begun_s, cpu_s, steps_s = time.monotonic(), cpu(), []
        while time.monotonic() < begun_s + WINDOW_S:
            steps_s.append(work.seconds(work.plan(Lane.UNIFIED, 0, work.rows, 0)))
        return Window(work.rows, steps_s, time.monotonic() - begun_s, cpu() - cpu_s)


@contextmanager
def busy() -> Iterator[None]:
    """A process that computes until the end of the block."""
    process = multiprocessing.Process(target=compute, daemon=True)
    process.start()
    try:
        time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.join()


def compute() -> None:
    """Without end."""
    while True:
        sum(range(10_000))


def cpu() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
