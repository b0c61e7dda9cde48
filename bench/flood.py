"""What is left after realtime's share: simulates section 5 of docs/claims.md, and writes its table
and both plots.

    python bench/flood.py TRACE.csv [--out build/flood] [--jobs 1] [--page docs/claims.md]
        [--only u0.62,batch]

Realtime arrivals of a trace at three rates beside an endless batch backlog: `tiered` and `weighted`
under an ITL target, `fcfs` at chunks of 512 with caps on how many batch requests there are at once,
`fcfs` and `static` with as many as `tiered` has. At the lowest rate p99 is compared over four times
as many requests too.

Each cell's figures go to a file of the folder `--out` as soon as they are known, and cells that are
there already are not simulated again: a run may be broken off and gone on with. Delete the folder
when scheduler or device has changed. `--only` takes the cells whose names begin so. What is there
goes between two markers of the page; the plots, once their cells are there, into the folder `plots`
beside it.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import plots

from headway.core.budget import Targets
from headway.core.types import ServiceClass
from headway.simulate.cells import Cell, Sizes
from headway.simulate.devices import find_device
from headway.simulate.figures import Spread, figures
from headway.simulate.record import Recorder, ended_well
from headway.simulate.report import settings, title, values
from headway.simulate.shapes import find_model
from headway.simulate.synthetic import load_trace
from headway.simulate.workload import Mix

BEGIN, END = "<!-- flood: begin -->", "<!-- flood: end -->"
RATES = {"u0.62": 0.172, "u0.30": 0.058, "u0.11": 0.0185, "u0.13": 0.0185}
"""The last is the third with MORE requests, whose prompts and answers are longer."""
CAPS = {"u0.62": (4, 8, 16, 32, 64), "u0.30": (4, 8, 16, 32), "u0.11": (4, 8, 16, 32)}
BACKLOG, CHUNK, ITL_S, DUE = 400, 512, 0.009, 0.85
REQUESTS, FEW, ALONE = 500, 160, 520
MORE = {"u0.13": 2000}
"""Requests where p99 is to be known better; only PAIR is simulated, and batch alone."""
PAIR, DRAWS = ("alone", "tiered"), 1000
SHOWN_AT, SHOWN = "u0.62", ("tiered", "cap4", "cap16", "cap64", "fcfs")
"""Cells that are in the plots."""

Run = tuple[Cell, int]  # and how many requests of the trace

Figures = Mapping[str, dict[str, Any]]  # what a cell's file holds, by its name


def runs() -> dict[str, Run]:
    """All cells by name, first those that say most."""
    device, model = find_device("h100"), find_model("llama-3.1-8b")

    def cell(policy: str, rate: float, backlog: int = BACKLOG, itl_s: float = 0.0) -> Cell:
        mix = Mix(((ServiceClass.REALTIME, 1.0),), rate, backlog)
        sizes = Sizes(max_step_tokens=CHUNK) if policy == "fcfs" else Sizes()
        return Cell(device, model, policy, sizes, mix, targets=Targets(itl_s))

    batch = Mix(((ServiceClass.BATCH, 1.0),), 0.5, BACKLOG)
    batch_alone = Cell(device, model, "tiered", Sizes(), batch)
    found: dict[str, Run] = {"batch": (batch_alone, ALONE)}
    found |= {batch_cell(u): (batch_alone, requests) for u, requests in MORE.items()}
    for u, rate in RATES.items():
        found[f"{u}-alone"] = cell("tiered", rate, 0, ITL_S), MORE.get(u, REQUESTS)
        found[f"{u}-tiered"] = cell("tiered", rate, itl_s=ITL_S), MORE.get(u, REQUESTS)
        if u not in MORE:
            found[f"{u}-weighted"] = cell("weighted", rate, itl_s=ITL_S), REQUESTS
    for u, rate in RATES.items():
        if u in MORE:
            continue
        for cap in CAPS[u]:
            found[f"{u}-cap{cap}"] = cell("fcfs", rate, cap), REQUESTS
        found[f"{u}-fcfs"] = cell("fcfs", rate), FEW
        found[f"{u}-static"] = cell("static", rate), FEW
    return found


def batch_cell(group: str) -> str:
    """The cell of batch alone with the lengths of the group's requests."""
    return f"batch-{group}" if group in MORE else "batch"


def simulate(name: str, trace: str, folder: Path) -> str:
    """Simulate a cell and keep its figures; a line about it."""
    cell, requests = runs()[name]
    started_s = time.process_time()
    recorder = cell.replay(load_trace(trace, cell.mix.seed, requests))
    found = {
        "settings": settings(cell),
        "figures": values(figures(recorder, cell.objectives)),
        "ttft_s": realtime_ttft_s(recorder),
    }
    document = {"cells": [found]}
    part = folder / f"{name}.part"
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(folder / f"{name}.json")
    return f"{name}: {title(cell)}: {time.process_time() - started_s:.0f} s of CPU time"


def realtime_ttft_s(recorder: Recorder) -> list[float | None]:
    """Each realtime request's time to first token, in order of arrival; None where it had none."""
    return [
        life.first_s - life.arrival_s if life.first_s is not None and ended_well(life) else None
        for life in recorder.lives.values()
        if life.service_class is ServiceClass.REALTIME
    ]


def read(folder: Path) -> Figures:
    """The cells that were simulated."""
    names = [name for name in runs() if (folder / f"{name}.json").exists()]
    return {name: json.loads((folder / f"{name}.json").read_text())["cells"][0] for name in names}


def table(found: Figures) -> Iterator[str]:
    """In Markdown: the rows of the cells there are, which need those of batch alone, and realtime
    alone."""
    others = [f"{batch_rate(found[batch_cell(u)]):,.0f} at u = {u[1:]}" for u in MORE]
    yield f"Batch alone gets {batch_rate(found['batch']):,.0f} tokens/s, {' and '.join(others)}."
    yield ""
    yield (
        "| u | | realtime TTFT p50 / p90 / p99, ms | realtime ITL p50 / p90 / p99, ms "
        "| batch tokens/s, of alone (due) | batch preempted |"
    )
    yield "|---|---|---|---|---|---|"
    for group in (group for group in RATES if f"{group}-alone" in found):
        u = found[f"{group}-alone"]["figures"]["busy"]
        due, batch = DUE * (1 - u), batch_rate(found[batch_cell(group)])
        for name, cell in found.items():
            kind = name.removeprefix(f"{group}-")
            if kind != name:
                yield f"| {u:.2f} | {label(kind)} | {' | '.join(row(cell, batch, due))} |"
    yield ""
    yield (
        "The p99 of TTFT beside 400 batch requests over that of the same requests alone, and its "
        "95 % interval by drawing requests again:"
    )
    yield ""
    for group in (group for group in RATES if {f"{group}-{k}" for k in PAIR} <= found.keys()):
        cells = [found[f"{group}-{kind}"] for kind in PAIR]
        u = cells[0]["figures"]["busy"]
        yield f"- u = {u:.2f}: {tail_ratio(*(cell['ttft_s'] for cell in cells))}"


def tail_ratio(alone_s: Sequence[float | None], beside_s: Sequence[float | None]) -> str:
    """How often the p99 beside batch is that alone. Both are drawn again by the same requests."""
    both = zip(alone_s, beside_s, strict=True)
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    rng = random.Random(0)

    def ratio(drawn: Sequence[tuple[float, float]]) -> float:
        alone, beside = (Spread.of(each).p99 for each in zip(*drawn, strict=True))
        return beside / alone

    ratios = sorted(ratio(rng.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    low, high = ratios[DRAWS // 40], ratios[-DRAWS // 40]
    return f"{ratio(pairs):.2f} ({low:.2f} to {high:.2f}), of {len(pairs):,} requests"


def label(kind: str) -> str:
    """A cell's name for people."""
    if kind == "alone":
        return "realtime alone"
    if kind.startswith("cap"):
        return f"`fcfs`, at most {kind.removeprefix('cap')} batch requests"
    name = f"`{kind}`, {BACKLOG} batch requests"
    return f"{name} ({FEW} realtime ones: no p99)" if kind in ("fcfs", "static") else name


def row(cell: dict[str, Any], alone: float, due: float) -> Iterator[str]:
    """What realtime saw, and what batch got."""
    classes = cell["figures"]["classes"]
    realtime = classes["realtime"]
    levels = ("p50", "p90", "p99") if realtime["tail"] == "p99" else ("p50", "p90")
    for what in ("ttft", "itl"):
        yield " / ".join(milliseconds(realtime[what][level]) for level in levels)
    if not cell["settings"]["backlog"]:
        yield from ("", "")
        return
    rate = batch_rate(cell)
    yield f"{rate:,.0f}, {rate / alone:.0%} ({due:.0%})"
    yield str(classes["batch"]["preemptions"])


def batch_rate(cell: dict[str, Any]) -> float:
    """Batch tokens a second."""
    return float(cell["figures"]["classes"]["batch"]["tokens_per_s"])


def milliseconds(seconds: float) -> str:
    """Three digits or so."""
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def draw(found: Figures, folder: Path) -> None:
    """Both plots."""
    shown = [found[f"{SHOWN_AT}-{kind}"] for kind in SHOWN]
    (folder / "flood-trade.svg").write_text(plots.drawing(plots.trade(shown)))
    with_alone = [found[f"{SHOWN_AT}-alone"], *(c for c in shown if c["settings"]["backlog"] != 4)]
    (folder / "flood-ttft.svg").write_text(plots.drawing(plots.ttft(with_alone)))


def write(page: Path, lines: Iterator[str]) -> None:
    """Replace what is between the markers. Ends the run if they are not there."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{page} has no markers: {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    body = "\n".join(lines)
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--out", type=Path, default=Path("build/flood"))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--page", type=Path, default=Path("docs/claims.md"))
    parser.add_argument(
        "--only", default="", help="cells whose names begin so, with commas between"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = tuple(args.only.split(","))
    due = [n for n in runs() if n.startswith(wanted) and n not in read(args.out)]
    with ProcessPoolExecutor(args.jobs) as pool:
        for line in pool.map(simulate, due, [args.trace] * len(due), [args.out] * len(due)):
            print(line, flush=True)
    found = read(args.out)
    if missing := [name for name in runs() if name not in found]:
        print(f"still to be simulated: {', '.join(missing)}", file=sys.stderr)
    if {"batch", *map(batch_cell, MORE)} <= found.keys():
        write(args.page, table(found))
    if all(f"{SHOWN_AT}-{kind}" in found for kind in ("alone", *SHOWN)):
        draw(found, args.page.parent / "plots")


if __name__ == "__main__":
    main()
