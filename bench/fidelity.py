"""A simulated run beside a real one of the same load, on the CPU executor.

    python bench/fidelity.py MODEL.gguf [--runs 5] [--requests 40] [--rate 1.5] [--policy tiered]
        [--json OUT.json] [--markdown OUT.md]

Each run: a seeded load of three classes is sent to a real engine in real time, and the same load is
simulated on a fitted device with the same sizes, policy and scheduler. The device is fitted to
steps timed on either side of the load, so that a pace that drifts counts as its middle (as
`calibrate.py` and `headway simulate --calibrate` do, but to means: the real run has the machine's
neighbours too; a tenth at either end is left out, for a stall now and then moves no median over
requests). They are timed after pauses, since most requests come upon an engine that was idle.
Compared are the medians over the requests, of TTFT and of TPOT; what counts is the median of the
runs' differences. A run between whose ends the machine's pace changed by more than a tenth is
shown, and left out of that median.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import fmean, median

from calibrate import Answer, Host, Timings, document, pace, time_engine, time_steps, tokens_of

from headway.assembly import EngineOptions, Sizes, build_engine
from headway.core.controller import LaneMode
from headway.models.loader import LoadedModel, load_model
from headway.simulate.calibrate import Calibration, calibrated
from headway.simulate.cells import Cell
from headway.simulate.cells import Sizes as SimulatedSizes
from headway.simulate.devices import find_device
from headway.simulate.shapes import find_model
from headway.simulate.traces import Record, Trace
from headway.simulate.workload import Mix, parse_shares

CLASSES = {"realtime": 0.3, "standard": 0.4, "batch": 0.3}
PROMPTS, ANSWERS = (16, 300), (16, 64)
PAUSE_S = 0.25
"""Half of the requests of the load, or so, come upon an engine that has nothing to do, and a
machine that has rested is slower at first than one that computes without end."""
KV_BLOCKS, MAX_SEQS, STEP_TOKENS = 2048, 32, 512
STEADY = 0.1
"""A run counts if the machine's pace changed by less than this share meanwhile."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Seconds; medians over the requests. pace: after the load over before it.

    fit: median error of the fitted device on the steps it was fitted to.
    fits: of each case, modelled over measured, less 1.
    """

    real_ttft_s: float
    real_tpot_s: float
    simulated_ttft_s: float
    simulated_tpot_s: float
    fit: float
    fits: dict[str, float]
    pace: float

    @property
    def ttft(self) -> float:
        """The simulated median over the real one, less 1."""
        return self.simulated_ttft_s / self.real_ttft_s - 1

    @property
    def tpot(self) -> float:
        """The simulated median over the real one, less 1."""
        return self.simulated_tpot_s / self.real_tpot_s - 1

    @property
    def steady(self) -> bool:
        """Whether the machine kept its pace."""
        return abs(self.pace - 1) <= STEADY


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second")
    parser.add_argument("--policy", default="tiered")
    parser.add_argument("--rounds", type=int, default=3, help="of either calibration")
    parser.add_argument("--name", default="smollm2-135m", help="the model's name to the simulator")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    model = load_model(args.model)
    runs = []
    for seed in range(args.runs):
        runs.append(_run(model, args, _load(seed, args.requests, args.rate)))
        print(_row(seed + 1, runs[-1]), flush=True)
    text = "\n".join(_table(runs))
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    if args.json:
        record = {
            "requests": args.requests,
            "rate_per_s": args.rate,
            "policy": args.policy,
            "runs": [{**asdict(r), "steady": r.steady} for r in runs],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


def _load(seed: int, requests: int, rate_per_s: float) -> Trace:
    """Arrivals at random, lengths even in their logarithm."""
    rng, now_s, records = random.Random(f"load {seed}"), 0.0, []
    for _ in range(requests):
        prompt, answer = (
            round(low * (high / low) ** rng.random()) for low, high in (PROMPTS, ANSWERS)
        )
        records.append(Record(now_s, prompt, answer))
        now_s += rng.expovariate(rate_per_s)
    return Trace(f"load {seed}", tuple(records))


def _run(model: LoadedModel, args: argparse.Namespace, trace: Trace) -> Run:
    mix = Mix(parse_shares(CLASSES))
    halves = [_timed(model, args.rounds)]
    before_s = pace(model)
    answers = _real(model, args.policy, trace, mix)
    after_s = pace(model)
    halves.append(_timed(model, args.rounds))
    fit = _fitted(args.name, halves)
    sizes = SimulatedSizes(KV_BLOCKS, -1, MAX_SEQS, STEP_TOKENS)
    lives = Cell(fit.device, find_model(args.name), args.policy, sizes, mix).replay(trace).lives
    return Run(
        real_ttft_s=median(a.times_s[0] - a.sent_s for a in answers),
        real_tpot_s=median((a.times_s[-1] - a.times_s[0]) / (len(a.times_s) - 1) for a in answers),
        simulated_ttft_s=median(x.first_s - x.arrival_s for x in lives.values() if x.first_s),
        simulated_tpot_s=median(
            (x.last_s - x.first_s) / (x.tokens - 1)
            for x in lives.values()
            if x.first_s and x.last_s
        ),
        fit=fit.error,
        fits=dict(zip(_cases(halves[0]), fit.errors, strict=True)),
        pace=after_s / before_s,
    )


@dataclass(frozen=True, slots=True)
class Half:
    """What was timed on one side of the load: see `calibrate.document`."""

    computed: Timings
    whole: Timings
    host: Host


def _cases(half: Half) -> list[str]:
    """Names, in the order of the document's steps."""
    return [case.name for case in (*half.whole, *half.computed)]


def _timed(model: LoadedModel, rounds: int) -> Half:
    host, whole = time_engine(model, summary=middle, pause_s=PAUSE_S)
    return Half(time_steps(model, rounds, pause_s=PAUSE_S), whole, host)


def _fitted(name: str, halves: Sequence[Half]) -> Calibration:
    """The device that fits what was timed on either side of the load."""
    computed, whole = _joined([h.computed for h in halves]), _joined([h.whole for h in halves])
    hosts = [astuple(half.host) for half in halves]
    host = Host(*(fmean(values) for values in zip(*hosts, strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.json"
        path.write_text(json.dumps(document(name, computed, whole, host, middle)))
        return calibrated(find_device("cpu"), path)


def _joined(sides: Sequence[Timings]) -> Timings:
    return {case: [s for side in sides for s in side[case]] for case in sides[0]}


def middle(values: Sequence[float]) -> float:
    """The mean without a tenth at either end."""
    ordered, cut = sorted(values), len(values) // 10
    return fmean(ordered[cut : len(ordered) - cut])


def _real(model: LoadedModel, policy: str, trace: Trace, mix: Mix) -> list[Answer]:
    """The load on an engine, in real time."""
    sizes = Sizes(KV_BLOCKS, 0, max_seqs=MAX_SEQS, max_step_tokens=STEP_TOKENS)
    options = EngineOptions(sizes, policy=policy, lanes=LaneMode.UNIFIED)
    engine = build_engine(model, options)
    prompts = [tokens_of(i, record.prompt_tokens) for i, record in enumerate(trace.records)]
    engine.start()
    try:
        start_s, answers = time.monotonic(), []
        for index, record in enumerate(trace.records):
            time.sleep(max(start_s + record.at_s - time.monotonic(), 0))
            service_class = mix.service_class(index)
            answers.append(Answer(engine, prompts[index], record.answer_tokens, service_class))
        for answer in answers:
            answer.thread.join()
        return answers
    finally:
        engine.stop()


def _table(runs: Sequence[Run]) -> list[str]:
    """In Markdown."""
    steady = [r for r in runs if r.steady]
    lines = [
        "| run | TTFT real, simulated, ms | TPOT real, simulated, ms | fit | pace |",
        "|---|---|---|---|---|",
        *(_row(i, r) for i, r in enumerate(runs, 1)),
        "",
    ]
    if not steady:
        return [*lines, f"None of {len(runs)} runs was steady: nothing can be said."]
    ttft, tpot = median(r.ttft for r in steady), median(r.tpot for r in steady)
    lines.append(
        f"Median of {len(steady)} steady runs of {len(runs)}: TTFT {ttft:+.1%}, TPOT {tpot:+.1%}."
    )
    return lines


def _row(number: int, run: Run) -> str:
    pairs = (
        (run.real_ttft_s, run.simulated_ttft_s, run.ttft),
        (run.real_tpot_s, run.simulated_tpot_s, run.tpot),
    )
    ttft, tpot = (f"{a * 1e3:.1f}, {b * 1e3:.1f} ({c:+.1%})" for a, b, c in pairs)
    return f"| {number} | {ttft} | {tpot} | {run.fit:.1%} | {run.pace:.2f} |"


if __name__ == "__main__":
    main()
