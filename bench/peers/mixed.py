"""A mixed load on Headway and its peers: a closed-loop batch flood beside Poisson realtime.

    python bench/peers/mixed.py MODEL.gguf --out FOLDER [--llama-cpp PYTHON] [--openvino PYTHON]
        [--vllm PYTHON --hf FOLDER] [--itl 20,50,100] [--u 0.1,0.3,0.6] [--seconds 60] [--rounds 3]

First the rates: those at which the realtime traffic alone keeps Headway busy a share u of the time.
Then, round by round, every server by itself: batch alone, and at each rate realtime alone and under
the flood. Writes FOLDER/mixed.json after each cell, and at the end FOLDER/mixed.md with the medians
over the rounds. Everything is sent by `headway bench serve`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.request import urlopen

import servers
from servers import Server, running

REALTIME = "prompt=80,answer=32"
FLOOD = "batch:streams=32,prompt=190,answer=128"
SEATS = 40
PORT = 8790


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement. u: share of the time realtime alone keeps Headway busy; 0 is no realtime.

    Times in milliseconds; p99 where 500 requests carry it, else p90.
    """

    server: str
    turn: int
    u: float
    flood: bool
    requests: int
    errors: int
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    batch_tokens_per_s: float
    doubts: str


def load(
    url: str, server: Server, rate: float, flood: bool, turn: int, settings: argparse.Namespace
) -> dict:
    """What `headway bench serve` says of one load. turn: of the loads that this server gets; each
    has prompts of its own, or what is left of the one before would answer the next."""
    out = settings.out / "cell.json"
    command = [sys.executable, "-m", "headway", "bench", "serve", url, "--json", str(out)]
    command += ["--priority", server.priority, "--seconds", f"{settings.seconds:g}"]
    command += ["--warmup", f"{settings.warmup:g}", "--seed", f"{settings.seed + turn}"]
    if rate:
        command += ["--traffic", f"realtime:rate={rate:g},{REALTIME}"]
    if flood:
        command += ["--traffic", FLOOD]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        sys.exit(f"{server.name}: the load could not be sent")
    return json.loads(out.read_text())


def cell(server: Server, turn: int, u: float, flood: bool, said: dict) -> Cell:
    """The figures that the tables show."""
    realtime = said["classes"].get("realtime")
    batch = said["classes"].get("batch")
    ttft = realtime["ttft"] if realtime else {"p50": 0, "p90": 0, "p99": 0}
    itl = realtime["itl"] if realtime else {"p50": 0, "p99": 0}
    classes = said["classes"].values()
    return Cell(
        server.name,
        turn,
        u,
        flood,
        realtime["requests"] if realtime else 0,
        sum(sum(c["errors"].values()) for c in classes),
        *(1e3 * ttft[p] for p in ("p50", "p90", "p99")),
        *(1e3 * itl[p] for p in ("p50", "p99")),
        batch["tokens_per_s"] if batch else 0.0,
        "; ".join(said["doubts"]),
    )


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
    found = {}
    with running(server, PORT, settings.out / "headway.log") as url:
        a_request_s = 0.1
        for u in settings.u:
            for look in range(2):
                before_s, begin_s = busy_s(url), time.monotonic()
                load(url, server, u / a_request_s, False, len(found) * 2 + look, settings)
                busy = (busy_s(url) - before_s) / (time.monotonic() - begin_s)
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
            log = settings.out / f"{server.name.split()[0].strip(',').lower()}.log"
            with running(server, PORT, log) as url:
                loads = [(0.0, 0.0, True)]
                loads += [
                    (u, rate, flood) for u, rate in rate_of.items() for flood in (False, True)
                ]
                for index, (u, rate, flood) in enumerate(loads):
                    said = load(url, server, rate, flood, index, settings)
                    cells.append(cell(server, turn, u, flood, said))
                    print(line(cells[-1]), file=sys.stderr, flush=True)
                    document = {"rates": rate_of, "cells": [asdict(c) for c in cells]}
                    (settings.out / "mixed.json").write_text(json.dumps(document, indent=1))
    return cells


def line(one: Cell) -> str:
    """A cell for a person who waits."""
    what = f"u = {one.u:g}" + (" under the flood" if one.flood else " alone")
    return (
        f"{one.server}, {what}: {one.requests} requests, TTFT {one.ttft_p50:.0f} / "
        f"{one.ttft_p90:.0f} ms, ITL p50 {one.itl_p50:.1f} ms, batch "
        f"{one.batch_tokens_per_s:.0f} tokens/s, {one.errors} errors {one.doubts}"
    )


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Markdown: a row a server and u, medians over the rounds."""
    yield (
        "| u | server | TTFT alone p50 / p90, ms | TTFT under the flood p50 / p90, ms | ITL alone "
        "p50, ms | ITL under the flood p50 / p99, ms | batch tokens/s | of batch alone |"
    )
    yield "|---" * 8 + "|"
    names = list(dict.fromkeys(c.server for c in cells))
    for u in sorted({c.u for c in cells if c.u}):
        for name in names:
            own = [c for c in cells if c.server == name]
            alone = [c for c in own if c.u == u and not c.flood]
            under = [c for c in own if c.u == u and c.flood]
            batch = middle(own, "batch_tokens_per_s", lambda c: c.flood and not c.u)
            kept = middle(under, "batch_tokens_per_s")
            errors = sum(c.errors for c in own if c.u == u)
            yield (
                f"| {u:g} | {name}{f' ({errors} errors)' if errors else ''} "
                f"| {middle(alone, 'ttft_p50'):.0f} / {middle(alone, 'ttft_p90'):.0f} "
                f"| {middle(under, 'ttft_p50'):.0f} / {middle(under, 'ttft_p90'):.0f} "
                f"| {middle(alone, 'itl_p50'):.1f} "
                f"| {middle(under, 'itl_p50'):.1f} / {middle(under, 'itl_p99'):.0f} "
                f"| {kept:.0f} | {kept / batch if batch else 0:.0%} |"
            )


def middle(cells: Sequence[Cell], name: str, wanted=lambda cell: True) -> float:
    """The median of a figure; 0 if there is none."""
    values = [getattr(c, name) for c in cells if wanted(c)]
    return statistics.median(values) if values else 0.0


def floats(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    return tuple(float(part) for part in text.split(","))


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--llama-cpp", metavar="PYTHON")
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--vllm-plugin", metavar="PYTHON", help="with headway-vllm installed")
    parser.add_argument("--hf", metavar="FOLDER", help="the same model for vLLM")
    parser.add_argument("--itl", type=floats, default=(20.0, 50.0, 100.0), metavar="MS[,…]")
    parser.add_argument("--u", type=floats, default=(0.1, 0.3, 0.6), metavar="U[,…]")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    settings = parser.parse_args()
    settings.out.mkdir(parents=True, exist_ok=True)
    chosen = [servers.headway(settings.model, SEATS, itl_ms) for itl_ms in settings.itl]
    if settings.llama_cpp:
        chosen.append(servers.llama_cpp(settings.llama_cpp, settings.model, SEATS))
    if settings.openvino:
        chosen.append(servers.openvino(settings.openvino, settings.model, SEATS))
    for python, plugin in ((settings.vllm, False), (settings.vllm_plugin, True)):
        if python:
            chosen.append(servers.vllm(python, settings.hf, SEATS, plugin))
    cells = measure(chosen, rates(chosen[0], settings), settings)
    text = "\n".join(table(cells)) + "\n"
    (settings.out / "mixed.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
