"""`headway serve` in a process of its own, on a tiny random model, and what can be seen of it from
outside: its memory, its gauges, what it prints."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import httpx

from headway.models.quant import Encoding
from tests.models.writers import TINY_WIDE, tiny_gguf

KV_BLOCKS = 64
HOST_BLOCKS = 24
"""Room for two or three that are swapped; whoever else is preempted is computed again."""
MAX_MODEL_LEN = 256
DRAIN_S = 20
_START_S = 90.0
"""However loaded the machine is, no start and no stop takes longer."""


def tiny_model(folder: Path) -> Path:
    """A model that answers in milliseconds, its file in `folder`. It has layers enough for a block
    to be copied out and back in less time than its tokens take to be computed again."""
    config = replace(TINY_WIDE, layers=8, max_context=2 * MAX_MODEL_LEN)
    return tiny_gguf(folder / "tiny.gguf", config, Encoding.Q8_0)


@dataclass(frozen=True, slots=True)
class Pool:
    """Gauges of one tier, in blocks."""

    free: int
    used: int
    cached: int


class ServerProcess:
    """A server on one port and one data folder, which may be stopped and started again."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._data = folder / "data"
        self._errors = folder / "stderr.txt"
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> None:
        """Start, and wait until it is ready. Raises AssertionError where it isn't."""
        sizes = {"kv-blocks": KV_BLOCKS, "host-blocks": HOST_BLOCKS, "max-seqs": 12}
        sizes |= {"max-model-len": MAX_MODEL_LEN, "drain-timeout": DRAIN_S, "threads": 1}
        flags = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
        flags += ["--port", str(self._port), "--data-dir", str(self._data)]
        flags += ["--weight-cache", "none"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headway", "serve", str(self._model), *flags],
                env=kept | {"PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        self._port = _port_printed(self._process.stdout)

    def stop(self) -> int:
        """SIGTERM; what it ended with, or -9 if it did not end in time."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(DRAIN_S + _START_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            self.kill()

    def kill(self) -> None:
        """End it in any case."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def memory_bytes(self) -> int:
        """Memory of its own, mapped files left out; 0 where it has ended."""
        try:
            status = Path(f"/proc/{self._running().pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        return 0 if found is None else int(found[1]) * 1024

    def complaints(self) -> str:
        """What it wrote on stderr, but for the line that says that it is stopping."""
        lines = self._errors.read_text().splitlines()
        return "\n".join(line for line in lines if "headway.server.listen: stopping" not in line)

    def healthy(self) -> bool:
        """Whether /health says so."""
        return httpx.get(f"{self.url}/health", timeout=30).status_code == 200

    def gauges(self) -> dict[str, float]:
        """All samples of /metrics by name and labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def _running(self) -> "subprocess.Popen[str]":
        assert self._process is not None, "not started"
        return self._process


def pool_in(gauges: dict[str, float], tier: str) -> Pool:
    """A tier's gauges."""
    name = 'headway_kv_blocks{{state="{}",tier="{}"}}'
    free, used, cached = (int(gauges[name.format(s, tier)]) for s in ("free", "used", "cached"))
    return Pool(free, used, cached)


def live_in(gauges: dict[str, float]) -> dict[str, float]:
    """Requests that are anywhere in the engine, by gauge."""
    return {k: v for k, v in gauges.items() if k.startswith("headway_requests{") and v}


def at_rest(server: ServerProcess, timeout_s: float = 60.0) -> list[str]:
    """Wait until nothing is live any more; what is not as on a server that has just started."""
    end_s = time.monotonic() + timeout_s
    gauges = server.gauges()
    while time.monotonic() < end_s and (live_in(gauges) or _used(gauges)):
        time.sleep(0.2)
        gauges = server.gauges()
    faults = [f"{name} is {value:.0f} at rest" for name, value in live_in(gauges).items()]
    for tier, total in (("device", KV_BLOCKS), ("host", HOST_BLOCKS)):
        pool = pool_in(gauges, tier)
        if pool.used or pool.free + pool.cached != total:
            faults.append(f"{tier} blocks at rest: {pool}, of {total}")
    return faults


def _used(gauges: dict[str, float]) -> int:
    return pool_in(gauges, "device").used + pool_in(gauges, "host").used


def _port_printed(stream: IO[str]) -> int:
    for line in stream:
        if found := re.search(r"Ready on http://\S+:(\d+) after", line):
            return int(found[1])
    raise AssertionError("the server ended before it was ready")
