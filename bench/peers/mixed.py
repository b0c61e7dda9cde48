"""A mixed load on Headway and its peers: a closed-loop batch flood beside Poisson realtime.

    python bench/peers/mixed.py MODEL.gguf --out FOLDER [--llama-cpp PYTHON --q4-0 GGUF]
        [--openvino PYTHON] [--vllm PYTHON --vllm-plugin PYTHON --hf FOLDER]
        [--itl 20,50,100] [--u 0.1,0.3,0.6] [--seconds 60] [--longest 60] [--rounds 3]

First the rates: those at which the realtime traffic alone keeps Headway busy a share u of the time.
Then, round by round, every server by itself: batch alone, and at each rate realtime alone and under
the flood. Every server of a round gets the same requests, and no load those of another, which a
prefix cache may hold. Cells of Headway's own servers last until all rounds together have as many
realtime requests as a p99 takes, where --longest seconds a cell are enough. Writes
FOLDER/mixed.json after each cell, and at the end the tables to FOLDER/mixed.md (mixed_tables.py).
Everything is sent by `headway bench serve`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import servers
from mixed_tables import Cell, tables
from servers import Server, running

from headway.simulate.figures import ENOUGH_FOR_P99

REALTIME = "prompt=80,answer=32"
FLOOD = "batch:streams=32,prompt=190,answer=128"
_SPARE = 1.15  # arrivals are random


@dataclass(frozen=True, slots=True)
class Load:
    """Realtime requests a second, or 0, with or without the flood, for so long; drawn from a
    seed."""

    rate: float
    flood: bool
    seed: int
    seconds: float

    def on(self, url: str, server: Server, settings: argparse.Namespace) -> dict[str, Any]:
        """What `headway bench serve` says of it."""
        out = settings.out / "cell.json"
        command = [sys.executable, "-m", "headway", "bench", "serve", url, "--json", str(out)]
        command += ["--priority", server.priority, "--seconds", f"{self.seconds:g}"]
        command += ["--warmup", f"{settings.warmup:g}", "--seed", f"{self.seed}"]
        if self.rate:
            command += ["--traffic", f"realtime:rate={self.rate:g},{REALTIME}"]
        if self.flood:
            command += ["--traffic", FLOOD]
        out.unlink(missing_ok=True)
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        if done.returncode not in (0, 1) or not out.exists():
            sys.exit(f"{server.name}: the load could not be sent")
        said: dict[str, Any] = json.loads(out.read_text())
        return said


def busy_s(url: str) -> float:
    """Seconds that Headway's steps have taken so far."""
    with urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = [one for one in lines if one.startswith("headway_step_seconds_sum")]
    if not found:
        sys.exit("the server does not say how long its steps take")
    return sum(float(one.rpartition(" ")[2]) for one in found)


def rates(server: Server, settings: argparse.Namespace) -> dict[float, float]:
    """The rate for each u, by two looks at how busy realtime alone keeps Headway."""
    found: dict[float, float] = {}
    with running(server, settings.port, settings.out / f"{server.slug}.log") as live:
        a_request_s = 0.1
        for u in settings.u:
            for look in range(2):
                before_s, begin_s = busy_s(live.url), time.monotonic()
                once = Load(u / a_request_s, False, len(found) * 2 + look, settings.seconds)
                once.on(live.url, server, settings)
                busy = (busy_s(live.url) - before_s) / (time.monotonic() - begin_s)
                a_request_s *= busy / u
            found[u] = u / a_request_s
            print(f"u = {u:g}: {found[u]:.2f} requests/s", file=sys.stderr, flush=True)
    return found


def measure(
    all_servers: Sequence[Server], rate_of: dict[float, float], settings: argparse.Namespace
) -> list[Cell]:
    """All cells; the order of the servers turns with the rounds."""
    cells: list[Cell] = []
    for turn in range(settings.rounds):
        first = turn % len(all_servers)
        for server in (*all_servers[first:], *all_servers[:first]):
            with running(server, settings.port, settings.out / f"{server.slug}.log") as live:
                cases = [(0.0, 0.0, True)]
                cases += [
                    (u, rate, flood) for u, rate in rate_of.items() for flood in (False, True)
                ]
                for index, (u, rate, flood) in enumerate(cases):
                    seed = settings.seed + 100 * turn + index
                    load = Load(rate, flood, seed, cell_s(server, rate, settings))
                    said = load.on(live.url, server, settings)
                    cells.append(Cell.of(server.name, turn, u, flood, said))
                    place = f"round {turn + 1} of {settings.rounds}"
                    print(f"{place}: {cells[-1]}", file=sys.stderr, flush=True)
                    document = {"rates": rate_of, "cells": [asdict(c) for c in cells]}
                    (settings.out / "mixed.json").write_text(json.dumps(document, indent=1))
    return cells


def cell_s(server: Server, rate: float, settings: argparse.Namespace) -> float:
    """Seconds a cell lasts."""
    ours = server.python == sys.executable and rate
    for_p99_s = 0.0
    if ours:
        for_p99_s = settings.warmup + _SPARE * ENOUGH_FOR_P99 / rate / settings.rounds
    seconds: float = settings.seconds
    return max(seconds, for_p99_s) if for_p99_s <= settings.longest else seconds


def floats(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    return tuple(float(part) for part in text.split(","))


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    servers.add_arguments(parser)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--itl", type=floats, default=(20.0, 50.0, 100.0), metavar="MS[,…]")
    parser.add_argument("--u", type=floats, default=(0.1, 0.3, 0.6), metavar="U[,…]")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--longest", type=float, default=0.0)
    parser.add_argument("--warmup", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1000)
    settings = parser.parse_args()
    settings.out.mkdir(parents=True, exist_ok=True)
    chosen = servers.chosen(settings, settings.itl)
    cells = measure(chosen, rates(chosen[0], settings), settings)
    text = "\n".join(tables(cells)) + "\n"
    (settings.out / "mixed.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
