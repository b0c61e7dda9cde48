"""Times steps of the CPU executor and writes them for `headway simulate --calibrate`.

    python bench/calibrate.py MODEL.gguf OUT.json [--threads N] [--name smollm2-135m] [--rounds 6]

Cases take turns for several rounds, so that none has all its repeats in one bad second, and the
least time of each counts: neighbours on the machine only add time. Steps of a few decode rows are
timed in a running engine, from commit to commit: they are short, and what the engine delivers
meanwhile takes its share of the cores. Of the others the executor says how long they compute; what
lies between two commits of the engine beyond that is added. What it does at the door is measured
with lone requests: all of their time to the first token but the step's. `fidelity.py` takes means,
since the run that it compares has the neighbours too.
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from step import Case, plans, run_once

from headway.assembly import EngineOptions, Sizes, build_engine
from headway.core.plan import StepResult
from headway.core.types import ServiceClass
from headway.engine.engine import Engine
from headway.engine.types import (
    GenerationRequest,
    RequestEnd,
    SamplingParams,
    StepEnd,
    StopConditions,
)
from headway.executors.native import BLOCK_TOKENS, NativeExecutor, NativeOptions
from headway.models.loader import LoadedModel, load_model

SMALL_HALF = 0x2C00  # 0.0625: contexts are filled with it, which costs attention the same
ENGINE_PROMPT, ENGINE_ANSWER, ENGINE_CONTEXT = 100, 100, 150
ANSWERS_APART = 4
ENGINE_CASES = tuple(Case(f"decode-{n}@{ENGINE_CONTEXT}", n, ENGINE_CONTEXT) for n in (1, 2, 4, 8))
LONE, ROWS = ENGINE_CASES[0], ENGINE_CASES[-1]
CASES = (
    Case("decode-16@300", 16, 300, reps=4),
    Case("decode-32@64", 32, 64, reps=3),
    Case("decode-32@1000", 32, 1000, reps=2),
    Case("decode-1@1000", 1, 1000, reps=6),
    Case("decode-1@4000", 1, 4000, reps=4),
    Case("prefill-16@0", 1, 0, tokens=16, reps=4),
    Case("prefill-32@200", 1, 200, tokens=32, reps=4),
    Case("prefill-64@0", 1, 0, tokens=64, reps=3),
    Case("prefill-128@0", 1, 0, tokens=128, reps=3),
    Case("prefill-128@256", 1, 256, tokens=128, reps=3),
    Case("prefill-256@0", 1, 0, tokens=256, reps=2),
    Case("prefill-512@0", 1, 0, tokens=512, reps=2),
    Case("prefill-512@1536", 1, 1536, tokens=512, reps=1),
)
MOST_ROWS = 64
DOOR_PROMPT, DOOR_ANSWER, DOOR_TRIES = 16, 4, 16


@dataclass(frozen=True, slots=True)
class Host:
    """The engine's turn between two steps, in seconds: a constant, and for each row.

    door_s: as in `headway.simulate.devices.Host`.
    """

    step_s: float
    row_s: float
    door_s: float

    def seconds(self, rows: int) -> float:
        """The turn before a step of so many rows."""
        return self.step_s + self.row_s * rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--name", default="smollm2-135m", help="the model's name to the simulator")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    document = calibration(load_model(args.model), args.name, args.rounds, args.threads)
    args.out.write_text(json.dumps(document, indent=1) + "\n")


Summary = Callable[[Sequence[float]], float]
"""One figure of repeats."""

Timings = dict[Case, list[float]]
"""Seconds of each case's repeats."""


def calibration(
    model: LoadedModel,
    name: str,
    rounds: int,
    threads: int = 0,
    say: bool = True,
    summary: Summary = min,
) -> dict[str, object]:
    """What `headway simulate --calibrate` reads. summary: what counts of a case's repeats."""
    computed = time_steps(model, rounds, threads)
    host, whole = time_engine(model, threads, summary)
    if say:
        for case, repeats in {**whole, **computed}.items():
            print(f"{case.name:20}{summary(repeats) * 1e3:10.3f} ms", flush=True)
        print(
            f"between steps: {host.step_s * 1e3:.3f} ms and {host.row_s * 1e3:.3f} ms a row; "
            f"at the door: {host.door_s * 1e3:.3f} ms"
        )
    return document(name, computed, whole, host, summary)


def document(
    name: str, computed: Timings, whole: Timings, host: Host, summary: Summary
) -> dict[str, object]:
    """The same of what was timed: the computing of some steps, and whole ones."""
    seconds = {case: summary(repeats) for case, repeats in whole.items()}
    seconds |= {c: summary(repeats) + host.seconds(c.rows) for c, repeats in computed.items()}
    steps = [
        {"rows": c.rows, "tokens": c.tokens, "context": c.context, "seconds": s}
        for c, s in seconds.items()
    ]
    return {"model": name, "door_s": host.door_s, "steps": steps}


def time_steps(model: LoadedModel, rounds: int, threads: int = 0, pause_s: float = 0.0) -> Timings:
    """The seconds that each case computes, as the executor says. pause_s: before each chunk of a
    prompt, which then comes upon a machine that has rested, as most do where the load is light."""
    options = NativeOptions(
        kv_blocks=max(c.rows * -(-(c.context + c.tokens) // BLOCK_TOKENS) for c in CASES),
        max_seqs=MOST_ROWS,
        max_model_len=4608,
        threads=threads,
    )
    executor = NativeExecutor(model.weights, options)
    try:
        for block in range(options.kv_blocks):
            executor.native.fill_block(False, block, SMALL_HALF)
        steps = {case: plans(case) for case in CASES}
        timed: Timings = {case: [] for case in CASES}
        for _ in range(rounds):
            for case in CASES:
                run_once(executor, next(steps[case]))
                for _ in range(case.reps):
                    if case.tokens > 1:
                        time.sleep(pause_s)
                    timed[case].append(run_once(executor, next(steps[case])).compute_s)
        return timed
    finally:
        executor.close()


def pace(model: LoadedModel) -> float:
    """Seconds of a typical mixture of steps, medians: how fast the machine is now."""
    executor = NativeExecutor(
        model.weights, NativeOptions(kv_blocks=256, max_seqs=MOST_ROWS, max_model_len=512)
    )
    try:
        seconds = 0.0
        for case in (LONE, ROWS):
            steps = plans(case)
            seconds += median(run_once(executor, next(steps)).whole_s for _ in range(60))
        return seconds
    finally:
        executor.close()


def time_engine(
    model: LoadedModel, threads: int = 0, summary: Summary = min, pause_s: float = 0.0
) -> tuple[Host, Timings]:
    """On an engine of its own: its turn and its door, and whole steps of ENGINE_CASES. pause_s:
    before requests, of which there are more then, with shorter answers."""
    watch = Watch()
    engine = build_engine(model, EngineOptions(Sizes(threads=threads or None)), [watch])
    engine.start()
    try:
        parts = ANSWERS_APART if pause_s else 1
        for case in ENGINE_CASES:
            for _ in range(parts):
                time.sleep(pause_s)
                _answer_all(engine, case.rows, ENGINE_PROMPT, ENGINE_ANSWER // parts)
        turns = [
            summary([whole_s - kernels_s for whole_s, kernels_s in watch.decoded(case.rows)])
            for case in (LONE, ROWS)
        ]
        row_s = max((turns[1] - turns[0]) / (ROWS.rows - LONE.rows), 0.0)
        whole = {c: [whole_s for whole_s, _ in watch.decoded(c.rows)] for c in ENGINE_CASES}
        doors = []
        for _ in range(DOOR_TRIES):
            time.sleep(pause_s)
            seen = len(watch.ends)
            (answer,) = _answer_all(engine, 1, DOOR_PROMPT, DOOR_ANSWER)
            first = next(e for e in watch.ends[seen:] if e.plan.chunks)
            doors.append(answer.times_s[0] - answer.sent_s - computed_s(first) - turns[0])
        return Host(max(turns[0] - row_s, 0.0), row_s, max(summary(doors), 0.0)), whole
    finally:
        engine.stop()


def _answer_all(engine: Engine, rows: int, prompt: int, answer: int) -> "list[Answer]":
    """So many requests at once, to their end."""
    answers = [Answer(engine, tokens_of(i, prompt), answer) for i in range(rows)]
    for each in answers:
        each.thread.join()
    return answers


class Watch:
    """An observer that keeps the ends of steps."""

    def __init__(self) -> None:
        self.ends: list[StepEnd] = []

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """Nothing."""

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Nothing."""

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """Nothing."""

    def on_finished(self, end: RequestEnd) -> None:
        """Nothing."""

    def on_step(self, end: StepEnd) -> None:
        """Keep it."""
        self.ends.append(end)

    def decoded(self, rows: int) -> Iterator[tuple[float, float]]:
        """Of two steps in a row that decode so many rows: seconds between their commits, and those
        that the later one computed."""
        for before, end in pairwise(self.ends):
            if all([len(c.tokens) for c in e.plan.chunks] == [1] * rows for e in (before, end)):
                yield end.when_s - before.when_s, computed_s(end)


def computed_s(end: StepEnd) -> float:
    """Seconds that a step computed; 0 where it failed."""
    return end.outcome.timing.compute_s if isinstance(end.outcome, StepResult) else 0.0


def tokens_of(seed: int, count: int) -> list[int]:
    """A prompt of random tokens."""
    rng = random.Random(seed)
    return [rng.randrange(1000, 40_000) for _ in range(count)]


class Answer:
    """A request of an engine, read by a thread of its own. times_s: of each of its tokens."""

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        answer_tokens: int,
        service_class: ServiceClass = ServiceClass.STANDARD,
    ) -> None:
        """Send it."""
        stop = StopConditions(answer_tokens, ignore_eos=True)
        request = GenerationRequest(prompt, service_class, SamplingParams(temperature=0.0), stop)
        self.times_s: list[float] = []
        self.sent_s = time.monotonic()
        self._deltas = engine.submit_sync(request)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        for delta in self._deltas:
            self.times_s += [time.monotonic()] * len(delta.tokens)


if __name__ == "__main__":
    main()
