"""From the start of the process to the first token over HTTP, and what memory it takes.

    python bench/startup.py [MODEL] [--rounds 5] [--two]

Starts `headway serve` again and again and asks for one streamed completion as soon as it says that
it is ready: by turns with weights packed at each start, and with packed weights from the cache,
which an uncounted start has filled. Prints wall time, CPU seconds of the process, and its memory at
the first token: what is resident, and its proportional share, in which a page that two processes
map counts half to each. `--two` leaves another server of the same kind running beside it.
"""

import argparse
import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.bench.client import Client


@dataclass(frozen=True, slots=True)
class Start:
    """One start. first_token_s: wall time; cpu_s: of the process; rss_mb, pss_mb: memory then."""

    first_token_s: float
    cpu_s: float
    rss_mb: float
    pss_mb: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--two", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        setups = {"packed at each start": "none", "packed once, mapped": cache}
        starts: dict[str, list[Start]] = {name: [] for name in setups}
        measure(options.model, cache, two=False)
        for _ in range(options.rounds):
            for name, where in setups.items():
                starts[name].append(measure(options.model, where, options.two))
    for name, each in starts.items():
        print(name)
        for field in Start.__slots__:
            values = sorted(getattr(start, field) for start in each)
            print(f"  {field:<14} median {statistics.median(values):7.2f}  least {values[0]:7.2f}")


def measure(model: str | None, cache: str, two: bool) -> Start:
    """Start a server, ask it for a token, and stop it."""
    with ExitStack() as stack:
        if two:
            stack.enter_context(served(model, cache))
        begun_s = time.perf_counter()
        process = stack.enter_context(served(model, cache))
        first_token_s = time.perf_counter() - begun_s
        memory = Path(f"/proc/{process}/smaps_rollup").read_text()
        cpu_s = cpu_seconds(process)
    return Start(first_token_s, cpu_s, megabytes(memory, "Rss"), megabytes(memory, "Pss"))


@contextmanager
def served(model: str | None, cache: str) -> Iterator[int]:
    """The id of a server that has answered once; stopped at the end."""
    command = [sys.executable, "-m", "headway", "serve", *([model] if model else [])]
    command += ["--port", "0", "--no-batches", "--served-model-name", "m"]
    command += ["--weight-cache", cache, "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = next(found[0] for line in process.stdout if (found := re.findall(r"http\S+\d", line)))
        asyncio.run(Client(url).complete({"model": "m", "prompt": "Hello", "max_tokens": 1}))
        yield process.pid
        process.send_signal(signal.SIGTERM)
        process.stdout.read()


def cpu_seconds(process: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(rollup: str, name: str) -> float:
    """A field of /proc/PID/smaps_rollup."""
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith(name)) / 1e3


if __name__ == "__main__":
    main()
