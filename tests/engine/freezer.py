"""A process to freeze: an engine in the middle of one long step. It prints how that went.

`python -m tests.engine.freezer LANES STEP_S LIMIT_S`, LANES being `unified` or `split`.
"""

import json
import sys
import threading
import time

from headway.core.config import SchedulerConfig
from headway.core.controller import Controller, LaneMode
from headway.core.plan import Capacity
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine
from headway.engine.options import LoopOptions
from headway.testing import LinearDuration, WallClock, make_capacity
from headway.testing.builders import make_prompt
from tests.engine.helpers import collect, greedy, make_rig


def main(lanes: str, step_s: float, limit_s: float) -> None:
    """Ask for one token; print `going` once its step is under way, then what came of it."""

    def scheduler(capacity: Capacity, config: SchedulerConfig) -> Scheduler:
        return Scheduler(capacity, config, Controller(LaneMode(lanes), capacity, config.targets))

    rig = make_rig(
        make_capacity(units=2),
        clock=WallClock(),
        duration=LinearDuration(step_s=step_s),
        options=LoopOptions(stall_limit_s=limit_s),
        make_scheduler=scheduler,
    )
    rig.engine.start()
    generation = rig.engine.submit_sync(greedy(make_prompt(1, 16), 1))
    while not rig.executor.submitted:
        time.sleep(0.001)
    print("going", flush=True)
    over, ill = threading.Event(), threading.Event()
    watcher = threading.Thread(target=_watch, args=(rig.engine, over, ill))
    watcher.start()
    (answer,) = collect(list(generation))
    over.set()
    watcher.join()
    rig.engine.stop()
    assert answer.finish is not None
    print(json.dumps([answer.finish.value, answer.message, ill.is_set()]), flush=True)


def _watch(engine: Engine, over: threading.Event, ill: threading.Event) -> None:
    while not over.wait(0.002):
        if not engine.healthy:
            ill.set()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
