"""How well the scheduler's step-time model predicts the steps of the CPU executor.

    python bench/step_error.py [MODEL.gguf] [--steps 600] [--clients 12] [--lanes unified]
        [--seed 0] [--json OUT.json]

A real engine, started with priors alone, serves clients of all three classes that send one request
after another, prompts and answers of random lengths. Each step's prediction is made before the step
and compared with the seconds that it took; the median of the relative error is shown by hundreds of
steps, and from the 201st on, beside what `headway_step_time_error_ratio` says at the end. Without
MODEL it is the embedded one.

The same few steps are timed before and after, on the executor alone: where their time has changed,
or where they vary, neighbours were at work, and the error is theirs too.
"""

import argparse
import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from calibrate import Answer, pace, tokens_of

from headway.assembly import EngineOptions, build_engine
from headway.core.controller import LaneMode
from headway.core.plan import StepResult
from headway.core.types import Lane, ServiceClass
from headway.engine.engine import Engine
from headway.engine.types import RequestEnd, StepEnd
from headway.models.loader import load_model
from headway.models.pull import pull

PROMPTS, ANSWERS = (16, 300), (16, 64)
LEARNING, PART = 200, 100


class Watch:
    """An observer that keeps each step's relative error, lane by lane, until there are enough."""

    def __init__(self, steps: int) -> None:
        self.errors: list[float] = []
        self.lanes: list[Lane] = []
        self.enough = threading.Event()
        self._steps = steps

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """Of no interest."""

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Of no interest."""

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """Of no interest."""

    def on_finished(self, end: RequestEnd) -> None:
        """Of no interest."""

    def on_step(self, end: StepEnd) -> None:
        """One more, unless it was interrupted or had nothing to compute."""
        outcome = end.outcome
        if not isinstance(outcome, StepResult) or outcome.interrupted or not end.plan.chunks:
            return
        seconds = outcome.timing.compute_s
        self.errors.append(abs(end.record.predicted_s - seconds) / seconds)
        self.lanes.append(end.plan.lane)
        if len(self.errors) >= self._steps:
            self.enough.set()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--lanes", type=LaneMode, default=LaneMode.UNIFIED)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.steps <= LEARNING:
        parser.error(f"--steps: more than {LEARNING}, which it learns from")
    model, watch = load_model(args.model or pull()), Watch(args.steps)
    before_s = pace(model)
    engine = build_engine(model, EngineOptions(lanes=args.lanes), [watch])
    engine.start()
    try:
        metric = _serve(engine, watch, args.clients, args.seed)
    finally:
        engine.stop()
    document = {
        "by_hundreds": _parts(watch.errors),
        "from_201": median(watch.errors[LEARNING:]),
        "metric": metric,
        "steps": len(watch.errors),
        "split_steps": sum(lane is not Lane.UNIFIED for lane in watch.lanes),
        "pace": pace(model) / before_s,
    }
    _say(document)
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")


def _serve(engine: Engine, watch: Watch, clients: int, seed: int) -> float:
    """Clients until there are steps enough; the metric then."""

    def client(number: int) -> None:
        rng, service_class = random.Random(seed * 1000 + number), ServiceClass(number % 3)
        while not watch.enough.is_set():
            prompt, answer = (round(a * (b / a) ** rng.random()) for a, b in (PROMPTS, ANSWERS))
            tokens = tokens_of(rng.getrandbits(32), prompt)
            Answer(engine, tokens, answer, service_class).thread.join()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    watch.enough.wait()
    metric = engine.snapshot().step_error
    for thread in threads:
        thread.join()
    return metric


def _parts(errors: Sequence[float]) -> list[float]:
    """The median of each hundred steps, a last part of fewer left out."""
    starts = range(0, len(errors) - PART + 1, PART)
    return [median(errors[start : start + PART]) for start in starts]


def _say(found: dict[str, Any]) -> None:
    print("median relative error of a step's predicted time")
    for place, error in enumerate(found["by_hundreds"]):
        print(f"steps {place * PART + 1:5} to {(place + 1) * PART:5}{error:8.1%}")
    print(f"steps {LEARNING + 1:5} to {found['steps']:5}{found['from_201']:8.1%}")
    print(f"headway_step_time_error_ratio{found['metric']:6.1%} (of the last 101)")
    print(f"{found['split_steps']} steps on split lanes; pace after ÷ before {found['pace']:.2f}")


if __name__ == "__main__":
    main()
