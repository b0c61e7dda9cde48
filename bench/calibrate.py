"""Times steps of the CPU executor and writes them for `headway simulate --calibrate`.

    python bench/calibrate.py MODEL.gguf OUT.json [--threads N] [--name smollm2-135m] [--rounds 6]

Cases take turns for several rounds, so that none has all its repeats in one bad second, and the
least time of each counts: neighbours on the machine only add time. What the engine does between two
steps is measured by running it, and is part of every step's time. `fidelity.py` takes means, since
the run that it compares has the neighbours too.
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from step import BLOCK_TOKENS, Case, plans, run_once

from headway.assembly import EngineOptions, Sizes, build_engine
from headway.core.types import ServiceClass
from headway.engine.engine import Engine
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.executors.native import NativeExecutor, NativeOptions
from headway.models.loader import LoadedModel, load_model

SMALL_HALF = 0x2C00  # 0.0625: contexts are filled with it, which costs attention the same
LONE, ROWS = Case("decode-1@150", 1, 150, reps=8), Case("decode-8@150", 8, 150, reps=8)
CASES = (
    LONE,
    Case("decode-2@100", 2, 100, reps=6),
    Case("decode-4@200", 4, 200, reps=6),
    ROWS,
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
ENGINE_PROMPT, ENGINE_ANSWER, IN_A_ROW = 100, 100, 10


@dataclass(frozen=True, slots=True)
class Host:
    """The engine's turn between two steps, in seconds: a constant, and for each row."""

    step_s: float
    row_s: float

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


def calibration(
    model: LoadedModel,
    name: str,
    rounds: int,
    threads: int = 0,
    say: bool = True,
    summary: Callable[[Sequence[float]], float] = min,
) -> dict[str, object]:
    """What `headway simulate --calibrate` reads. summary: what counts of a case's repeats."""
    timed = time_steps(model, rounds, threads)
    best = {case: min(repeats) for case, repeats in timed.items()}
    host = time_host(model, best, threads)
    steps = []
    for case, repeats in timed.items():
        seconds = summary(repeats)
        whole_s = seconds + host.seconds(case.rows) * seconds / best[case]
        steps.append(
            {"rows": case.rows, "tokens": case.tokens, "context": case.context, "seconds": whole_s}
        )
        if say:
            print(f"{case.name:20}{seconds * 1e3:10.3f} ms", flush=True)
    if say:
        print(f"between steps: {host.step_s * 1e3:.3f} ms and {host.row_s * 1e3:.3f} ms a row")
    return {"model": name, "steps": steps}


def time_steps(model: LoadedModel, rounds: int, threads: int = 0) -> dict[Case, list[float]]:
    """The seconds of each case's repeats."""
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
        timed: dict[Case, list[float]] = {case: [] for case in CASES}
        for _ in range(rounds):
            for case in CASES:
                run_once(executor, next(steps[case]))
                for _ in range(case.reps):
                    timed[case].append(run_once(executor, next(steps[case])).whole_s)
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


def time_host(model: LoadedModel, best: dict[Case, float], threads: int = 0) -> Host:
    """The engine's turn: what is between tokens of running answers beyond the executor's step."""
    turns = []
    for case in (LONE, ROWS):
        engine = build_engine(model, EngineOptions(Sizes(threads=threads or None)))
        engine.start()
        try:
            turns.append(max(_least_gap(engine, case.rows) - best[case], 0.0))
        finally:
            engine.stop()
    row_s = max((turns[1] - turns[0]) / (ROWS.rows - LONE.rows), 0.0)
    return Host(max(turns[0] - row_s, 0.0), row_s)


def _least_gap(engine: Engine, rows: int) -> float:
    """Time between tokens while all of the rows decode: the least mean of ten in a row."""
    answers = [Answer(engine, tokens_of(i, ENGINE_PROMPT), ENGINE_ANSWER) for i in range(rows)]
    for answer in answers:
        answer.thread.join()
    first_s, last_s = max(a.times_s[0] for a in answers), min(a.times_s[-1] for a in answers)
    return min(
        (later_s - sooner_s) / IN_A_ROW
        for a in answers
        for sooner_s, later_s in zip(a.times_s, a.times_s[IN_A_ROW:], strict=False)
        if first_s <= sooner_s and later_s <= last_s
    )


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
