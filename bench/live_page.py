"""What the live page costs while it is watched: CPU time of a picture (on the engine's thread) and
of a frame (on HTTP's), at several sizes of the pool.

    python bench/live_page.py
"""

import statistics
import time

from headway.core.config import SchedulerConfig
from headway.core.scheduler import Scheduler
from headway.core.types import ServiceClass
from headway.server.dashboard.frames import Moment, Reader, event
from headway.server.dashboard.recent import Recent
from headway.testing import (
    ManualClock,
    ScriptedExecutor,
    Simulation,
    make_capacity,
    make_request,
)

SIZES = ((1_000, 64), (4_096, 64), (4_096, 200), (16_384, 256))
PICTURES = 40
WAITING = 100


def filled(kv_blocks: int, seqs: int) -> Simulation:
    """A scheduler with every seat taken, and more that wait."""
    capacity = make_capacity(
        kv_blocks=kv_blocks, max_seqs=seqs, max_step_tokens=4096, max_model_len=2048
    )
    clock = ManualClock()
    executor = ScriptedExecutor(capacity, clock=clock)
    simulation = Simulation(Scheduler(capacity, SchedulerConfig()), executor, clock)
    prompt = min(1000, kv_blocks * capacity.block_size // seqs - 60)
    for i in range(seqs + WAITING):
        simulation.add(make_request(i, ServiceClass(i % 3), prompt=prompt, max_tokens=60))
    for _ in range(kv_blocks * capacity.block_size // 4096 + 6):
        simulation.step()
    return simulation


def main() -> None:
    """Measure and print."""
    print(f"{'blocks':>7} {'seats':>6} {'picture ms':>11} {'frame ms':>9} {'frame bytes':>12}")
    for kv_blocks, seqs in SIZES:
        simulation = filled(kv_blocks, seqs)
        scheduler, reader = simulation.scheduler, Reader(Recent(simulation.clock))
        pictures, frames, sizes = [], [], []
        for number in range(PICTURES):
            simulation.step()
            began_s = time.thread_time()
            picture = scheduler.picture()
            taken_s = time.thread_time()
            snapshot = scheduler.snapshot()
            coded_s = time.thread_time()
            frame = event("frame", reader.frame(Moment(number, 1.0, picture, snapshot)))
            frames.append(time.thread_time() - coded_s)
            pictures.append(taken_s - began_s)
            sizes.append(len(frame))
        taken_ms, coded_ms = statistics.median(pictures) * 1e3, statistics.median(frames) * 1e3
        size = statistics.median(sizes)
        print(f"{kv_blocks:7,} {seqs:6} {taken_ms:11.2f} {coded_ms:9.2f} {size:12,.0f}")


if __name__ == "__main__":
    main()
