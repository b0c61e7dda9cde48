"""Prefill and decode on the same cores or apart: decoding goes on while prompts arrive.

    python bench/lanes.py MODEL.gguf [--rows 8,32] [--itl 20,40,80,250] [--rounds 1] [--seconds 8]

So many realtime answers decode under an ITL target, and prompts of 512 random tokens (of one token
of answer) come as soon as the one before the last has been answered: two at a time. Each cell runs
unified, split and auto lanes one after the other, in changing order; the whole table takes five
minutes. Prints it in Markdown: prompt tokens per second, TTFT (median and 90th percentile), ITL
(median and 99th percentile), and the share of the time that was split. Each run is looked at in
windows of a second, and the fifth of them in which most tokens were computed counts: on a machine
with neighbours, what there is when they leave it alone.

`--prompts batch` makes the prompts batch requests. `--chunk N` caps the tokens of a step.
"""

import argparse
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.assembly import EngineOptions, Sizes, build_engine, lane_mode, weight_cache
from headway.core.budget import Targets
from headway.core.types import ServiceClass
from headway.engine.engine import Engine
from headway.engine.types import (
    GenerationRequest,
    RequestEnd,
    SamplingParams,
    StepEnd,
    StopConditions,
)
from headway.models.loader import LoadedModel, load_model

PROMPT_TOKENS = 512
OUTSTANDING = 2
WARM_S = 3.0
WINDOW_S = 1.0
STRIDE_S = 0.25
MODES = ("unified", "split", "auto")


@dataclass(frozen=True, slots=True)
class Cell:
    """What is asked for: rows that decode, their ITL target, the prompts' class."""

    rows: int
    itl_s: float
    prompts: ServiceClass
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Window:
    """A second of a run: prompt tokens computed, TTFTs of prompts and gaps between tokens."""

    prompt_tokens: int
    ttfts_s: tuple[float, ...]
    gaps_s: tuple[float, ...]
    split: float

    @property
    def work(self) -> int:
        """Tokens of both kinds."""
        return self.prompt_tokens + len(self.gaps_s)


@dataclass
class Tape:
    """An observer that writes down gaps between tokens, and when."""

    gaps: list[tuple[float, float]] = field(default_factory=list)

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """Not of interest."""

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Prompts have a first token only: what is left are the decoding rows."""
        if not first:
            now_s = time.monotonic()
            self.gaps += [(now_s, gap_s) for gap_s in gaps_s]

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """Not of interest."""

    def on_finished(self, end: RequestEnd) -> None:
        """Not of interest."""

    def on_step(self, end: StepEnd) -> None:
        """Not of interest."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rows", default="8,32")
    parser.add_argument("--itl", default="20,40,80,250", help="targets in milliseconds")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int, default=1)
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
    runs: dict[str, list[Window]] = {mode: [] for mode in modes}
    for i in range(options.rounds):
        for mode in modes[i % len(modes) :] + modes[: i % len(modes)]:
            runs[mode] += _run(model, cell, mode, options.seconds)
    for mode in modes:
        windows = sorted(runs[mode], key=lambda w: w.work)[-max(len(runs[mode]) // 5, 1) :]
        tokens_per_s = statistics.mean(w.prompt_tokens for w in windows) / WINDOW_S
        ttfts = sorted(t for w in windows for t in w.ttfts_s) or [float("nan")]
        gaps = sorted(g for w in windows for g in w.gaps_s) or [float("nan")]
        itl_ms, tail_ms = gaps[len(gaps) // 2] * 1000, gaps[len(gaps) * 99 // 100] * 1000
        print(
            f"| {cell.rows} | {cell.itl_s * 1000:.0f} ms | {mode} | {tokens_per_s:.0f} "
            f"| {ttfts[len(ttfts) // 2]:.2f}, {ttfts[len(ttfts) * 9 // 10]:.2f} s "
            f"| {itl_ms:.1f}, {tail_ms:.1f} ms "
            f"| {statistics.mean(w.split for w in windows):.0%} |",
            flush=True,
        )


def _run(model: LoadedModel, cell: Cell, mode: str, seconds: float) -> list[Window]:
    # A TTFT target that leaves the ITL target to be the one that binds.
    targets = Targets(cell.itl_s, ttft_s=8 * cell.itl_s + 1)
    sizes = Sizes(max_seqs=cell.rows + OUTSTANDING, max_step_tokens=cell.step_tokens)
    tape = Tape()
    engine = build_engine(
        model,
        EngineOptions(
            sizes, targets=targets, lanes=lane_mode(mode), weight_cache=weight_cache(None)
        ),
        [tape],
    )
    engine.start()
    try:
        return _drive(engine, cell, tape, seconds)
    finally:
        engine.stop()


def _drive(engine: Engine, cell: Cell, tape: Tape, seconds: float) -> list[Window]:
    rng = random.Random(cell.rows)
    # An answer nobody holds on to is given up.
    answers = [
        engine.submit_sync(_request(rng, 32, 4000, ServiceClass.REALTIME)) for _ in range(cell.rows)
    ]
    asking = Asking(engine, cell.prompts)
    time.sleep(WARM_S)
    looks: list[tuple[float, int, bool]] = []
    start_s, step = time.monotonic(), engine.snapshot().step
    while time.monotonic() - start_s < seconds:
        time.sleep(0.01)
        now = engine.snapshot()
        records = [engine.explain(i) for i in range(step + 1, now.step + 1)]
        step = now.step
        computed = [c for record in records if record for c in record.computed]
        tokens = sum(c.tokens for c in computed if not c.decoding)
        looks.append((time.monotonic(), tokens, now.arrangement.split))
    asking.stop()
    for answer in answers:
        answer.close()
    return [
        _window(start_s + i * STRIDE_S, looks, asking.answered, tape.gaps)
        for i in range(int((seconds - WINDOW_S) / STRIDE_S))
    ]


def _window(
    start_s: float,
    looks: Sequence[tuple[float, int, bool]],
    answered: Sequence[tuple[float, float]],
    gaps: Sequence[tuple[float, float]],
) -> Window:
    end_s = start_s + WINDOW_S
    seen = [(tokens, split) for when_s, tokens, split in looks if start_s <= when_s < end_s]
    return Window(
        sum(tokens for tokens, _ in seen),
        tuple(ttft_s for when_s, ttft_s in answered if start_s <= when_s < end_s),
        tuple(gap_s for when_s, gap_s in gaps if start_s <= when_s < end_s),
        statistics.mean(split for _, split in seen) if seen else 0.0,
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


if __name__ == "__main__":
    main()
