"""What serving streams over HTTP adds to a native decode step, with a real model.

    python bench/http_step.py MODEL.gguf [--streams 1,64] [--rounds 8] [--tokens 96]

`headway serve` in a process of its own, and a client in this one that reads so many streams at
once. Its time for a step is that between the first token of the last stream and the end, over the
tokens in between. In the same round the same step is run on an executor without engine or HTTP.
Prints the ratio by the rule of headway.bench.rounds, and the CPU that server and client used for a
token beyond the native step's own.
"""

import argparse
import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from startup import cpu_seconds
from step import Case, plans, run_once

from headway.bench.client import Client
from headway.bench.rounds import Probe, estimate, note, steady
from headway.executors.native import BLOCK_TOKENS, NativeExecutor, NativeOptions
from headway.models.loader import load_model
from headway.models.types import Weights

PROMPT = "The history of the number {} begins long before anybody wrote it down, for"
NATIVE_STEPS = 12
SMALL_HALF = 0x2C00


@dataclass(frozen=True, slots=True)
class Served:
    """A decode step over HTTP: wall time, and CPU of the server and of the client."""

    step_s: float
    server_s: float
    client_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    weights = load_model(options.model).weights
    probe = Probe()
    print("| streams | native step | over HTTP | ratio | server CPU a token | client CPU a token |")
    print("|---|---|---|---|---|---|")
    with serving(options.model) as (process, url):
        for streams in map(int, options.streams.split(",")):
            native = Native(weights, streams, options.tokens)
            rounds: list[tuple[float, float, Served]] = []
            probes: list[tuple[float, float]] = []
            for _ in range(options.rounds):
                before = probe.rate()
                wall_s, cpu_s = native.step_s()
                rounds.append((wall_s, cpu_s, ask(url, process, streams, options.tokens)))
                probes.append((before, probe.rate()))
            native.close()
            report(streams, rounds, steady(probes))


def report(streams: int, rounds: list[tuple[float, float, Served]], kept: list[bool]) -> None:
    """A line of the table."""
    counted = [r for r, keep in zip(rounds, kept, strict=True) if keep] or rounds
    beyond = [1e6 * (served.server_s - cpu_s) / streams for _, cpu_s, served in counted]
    client = [1e6 * served.client_s / streams for _, _, served in counted]
    print(
        f"| {streams} | {median(wall for wall, _, _ in counted) * 1e3:.2f} ms "
        f"| {median(served.step_s for _, _, served in counted) * 1e3:.2f} ms "
        f"| {estimate([served.step_s / wall for wall, _, served in counted])} "
        f"| {median(beyond):.0f} us | {median(client):.0f} us |   {note(kept)}",
        flush=True,
    )


class Native:
    """The step by itself, at the middle of the streams' lengths."""

    def __init__(self, weights: Weights, streams: int, tokens: int) -> None:
        self._case = Case("", streams, 16 + tokens // 2)
        blocks = streams * -(-(self._case.context + 1) // BLOCK_TOKENS)
        self._executor = NativeExecutor(weights, NativeOptions(blocks, max_seqs=streams))
        for block in range(blocks):
            self._executor.native.fill_block(False, block, SMALL_HALF)

    def step_s(self) -> tuple[float, float]:
        """Median wall and CPU seconds."""
        steps = plans(self._case)
        timed = [run_once(self._executor, next(steps)) for _ in range(NATIVE_STEPS)]
        return median(t.compute_s for t in timed), median(t.cpu_s for t in timed)

    def close(self) -> None:
        """Free it."""
        self._executor.close()


def ask(url: str, process: int, streams: int, tokens: int) -> Served:
    """All streams at once, to their ends. CPU is of the whole, prompts and all, a step."""
    server_s, client_s = cpu_seconds(process), time.process_time()
    first_s, last_s = asyncio.run(read_all(url, streams, tokens))
    steps = tokens - 1
    return Served(
        (last_s - first_s) / steps,
        (cpu_seconds(process) - server_s) / tokens,
        (time.process_time() - client_s) / tokens,
    )


async def read_all(url: str, streams: int, tokens: int) -> tuple[float, float]:
    """When the last stream had its first token, and when the first stream had its last."""
    bodies: list[dict[str, object]] = [
        {"model": "m", "prompt": PROMPT.format(i), "max_tokens": tokens, "ignore_eos": True}
        for i in range(streams)
    ]
    answers = await asyncio.gather(*(Client(url).complete(body) for body in bodies))
    return max(a.times_s[0] for a in answers), max(a.times_s[-1] for a in answers)


@contextmanager
def serving(model: Path) -> Iterator[tuple[int, str]]:
    """A server's process and address."""
    command = [sys.executable, "-m", "headway", "serve", str(model), "--port", "0"]
    command += ["--no-batches", "--served-model-name", "m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = next(found[0] for line in process.stdout if (found := re.findall(r"http\S+\d", line)))
        try:
            yield process.pid, url
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()


if __name__ == "__main__":
    main()
