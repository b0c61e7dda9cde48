"""Prefill and decode on the same cores or apart: decoding goes on while prompts arrive.

    python bench/lanes.py MODEL.gguf [--rows 8,32] [--itl 20,40,80,250] [--rounds 3] [--seconds 8]

So many realtime answers decode under an ITL target, and prompts of 512 random tokens (realtime too,
one token of answer) come as soon as the one before the last has been answered: two at a time. Each
round runs unified, split and auto lanes one after the other, in changing order. Prints a table in
Markdown, the median over the rounds: prompt tokens per second, median and 90th percentile of TTFT,
median and 99th percentile of ITL, and the share of the time that `auto` spent split.

`--classes realtime,batch` makes the prompts batch requests. `--chunk N` caps the tokens of a step:
the best chunk size by hand is what a controller has to compare itself with.
"""

import argparse
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from headway.assembly import EngineOptions, Sizes, build_engine, lane_mode
from headway.core.budget import Targets
from headway.core.request import Usage
from headway.core.types import FinishReason, ServiceClass
from headway.engine.engine import Engine
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.models.loader import LoadedModel, load_model

PROMPT_TOKENS = 512
OUTSTANDING = 2
WARM_S = 3.0
MODES = ("unified", "split", "auto")


@dataclass(frozen=True, slots=True)
class Cell:
    """What is asked for: rows that decode, their ITL target, the prompts' class."""

    rows: int
    itl_s: float
    prompts: ServiceClass
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. Seconds, but for tokens per second and the share of time split."""

    prompt_tokens_per_s: float
    ttft_p50: float
    ttft_p90: float
    itl_p50: float
    itl_p99: float
    split: float


@dataclass
class Tape:
    """An observer that writes down gaps between tokens while it is on."""

    prompts: ServiceClass
    on: bool = False
    gaps_s: list[float] = field(default_factory=list)

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """Not of interest."""

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Prompts have a first token only: what is left are the decoding rows."""
        if self.on and not first:
            self.gaps_s += gaps_s

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """Not of interest."""

    def on_finished(self, service_class: ServiceClass, reason: FinishReason, usage: Usage) -> None:
        """Not of interest."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rows", default="8,32")
    parser.add_argument("--itl", default="20,40,80,250", help="targets in milliseconds")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--chunk", type=int, default=512, help="most tokens of a step")
    parser.add_argument("--prompts", default="realtime", help="class of the prompts")
    options = parser.parse_args()
    model = load_model(Path(options.model))
    prompts = ServiceClass[options.prompts.upper()]
    print(
        "| decoding | ITL target | lanes | prompt tokens/s | TTFT p50, p90 | ITL p50, p99 | split |"
    )
    print("|---|---|---|---|---|---|---|")
    for rows in map(int, options.rows.split(",")):
        for itl_ms in map(float, options.itl.split(",")):
            cell = Cell(rows, itl_ms / 1000, prompts, options.chunk)
            _measure_cell(model, cell, options)


def _measure_cell(model: LoadedModel, cell: Cell, options: argparse.Namespace) -> None:
    modes = options.modes.split(",")
    runs: dict[str, list[Measured]] = {mode: [] for mode in modes}
    for i in range(options.rounds):
        for mode in modes[i % len(modes) :] + modes[: i % len(modes)]:
            runs[mode].append(_run(model, cell, mode, options.seconds))
    for mode in modes:
        m = _median(runs[mode])
        print(
            f"| {cell.rows} | {cell.itl_s * 1000:.0f} ms | {mode} | {m.prompt_tokens_per_s:.0f} "
            f"| {m.ttft_p50:.2f}, {m.ttft_p90:.2f} s "
            f"| {m.itl_p50 * 1000:.1f}, {m.itl_p99 * 1000:.1f} ms | {m.split:.0%} |",
            flush=True,
        )


def _run(model: LoadedModel, cell: Cell, mode: str, seconds: float) -> Measured:
    # A TTFT target that leaves the ITL target to be the one that binds.
    targets = Targets(cell.itl_s, ttft_s=8 * cell.itl_s + 1)
    sizes = Sizes(max_seqs=cell.rows + OUTSTANDING, max_step_tokens=cell.step_tokens)
    tape = Tape(cell.prompts)
    engine = build_engine(
        model, EngineOptions(sizes, targets=targets, lanes=lane_mode(mode)), [tape]
    )
    engine.start()
    try:
        return _drive(engine, cell, tape, seconds)
    finally:
        engine.stop()


def _drive(engine: Engine, cell: Cell, tape: Tape, seconds: float) -> Measured:
    rng = random.Random(cell.rows)
    # An answer nobody holds on to is given up.
    answers = [
        engine.submit_sync(_request(rng, 32, 4000, ServiceClass.REALTIME)) for _ in range(cell.rows)
    ]
    asking = Asking(engine, cell.prompts)
    time.sleep(WARM_S)
    tape.on = True
    start_s, split, looks = time.monotonic(), 0, 0
    while time.monotonic() - start_s < seconds:
        time.sleep(0.02)
        looks += 1
        split += engine.snapshot().arrangement.split
    tape.on = False
    end_s = time.monotonic()
    asking.stop()
    for answer in answers:
        answer.close()
    answered = [(t, ttft) for t, ttft in asking.answered if start_s <= t < end_s]
    # The first one in the window was begun before it: count from its end on.
    took_s = answered[-1][0] - answered[0][0] if len(answered) > 1 else seconds
    ttfts = sorted(ttft for _, ttft in answered) or [float("inf")]
    gaps = sorted(tape.gaps_s) or [float("inf")]
    return Measured(
        (len(answered) - 1) * PROMPT_TOKENS / took_s,
        ttfts[len(ttfts) // 2],
        ttfts[len(ttfts) * 9 // 10],
        gaps[len(gaps) // 2],
        gaps[len(gaps) * 99 // 100],
        split / looks,
    )


class Asking:
    """Threads that ask one prompt after the other. answered: when, and after how long."""

    def __init__(self, engine: Engine, service_class: ServiceClass) -> None:
        self.answered: list[tuple[float, float]] = []
        self._engine = engine
        self._class = service_class
        self._stopping = False
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(OUTSTANDING)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the last answers."""
        self._stopping = True
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stopping:
            asked_s = time.monotonic()
            for _ in self._engine.submit_sync(_request(rng, PROMPT_TOKENS, 1, self._class)):
                pass
            now_s = time.monotonic()
            self.answered.append((now_s, now_s - asked_s))


def _request(
    rng: random.Random, prompt_tokens: int, max_tokens: int, service_class: ServiceClass
) -> GenerationRequest:
    prompt = [rng.randrange(1000, 40_000) for _ in range(prompt_tokens)]
    stop = StopConditions(max_tokens, ignore_eos=True)
    return GenerationRequest(prompt, service_class, SamplingParams(temperature=0.0), stop)


def _median(runs: Sequence[Measured]) -> Measured:
    return Measured(
        *(statistics.median(getattr(m, f.name) for m in runs) for f in fields(Measured))
    )


if __name__ == "__main__":
    main()
