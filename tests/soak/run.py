"""Mixed traffic against `headway serve` for as long as one likes, a stop and start in its middle.

Usage: python -m tests.soak.run [--seconds 1200] [--seed 1] [--clients 24]

Nothing may be lost: every request gets its answer (the same as alone), an explicit error, or has
been left by its client. Memory stays flat, /health green, and at the end every block is free or
cached; victims are swapped and computed again. Then 500 streams at once.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.soak.jobs import Jobs
from tests.soak.memory import Growth, Sample, growth
from tests.soak.process import ServerProcess, at_rest, tiny_model
from tests.soak.traffic import Ledger, Phase, Traffic

MOST_GROWTH_BYTES = 16 << 20
"""Of a server's memory over the later half of its life."""

LONG_S = 300.0
"""From which on every kind of preemption has to happen."""

KINDS = ("swap", "recompute")

_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PEEK_S = 0.25
_LATE_S = 2.0
"""How long after a start clients may still report what they saw of the stop."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run: seconds of mixed traffic, the same number before the stop as after it."""

    seconds: float
    seed: int = 1
    clients: int = 24
    crowd: int = 500


@dataclass
class Report:
    """How it went; without faults all was well. restart_s: from SIGTERM to being ready again.
    preempted: by kind and class, of both servers."""

    ledger: Ledger
    memory: list[Growth] = field(default_factory=list)
    looks: int = 0
    restart_s: float = 0.0
    preempted: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def faults(self) -> list[str]:
        return self.ledger.faults

    def preemptions(self, kind: str) -> int:
        """Of all classes."""
        return sum(count for (each, _), count in self.preempted.items() if each == kind)


def soak(plan: Plan, folder: Path) -> Report:
    """Do it, in a folder that is empty."""
    server = ServerProcess(tiny_model(folder), folder)
    report = Report(Ledger())
    server.start()
    try:
        asyncio.run(_Soak(server, plan, report).run())
        if code := server.stop():
            report.faults.append(f"the server ended with {code} at SIGTERM")
    finally:
        server.kill()
    if plan.seconds >= LONG_S:
        for kind in KINDS:
            if not report.preemptions(kind):
                report.faults.append(f"nobody was preempted by {kind}")
    if complaints := server.complaints():
        report.faults.append(f"the server complained: {complaints[-2000:]}")
    return report


class _Soak:
    """One run against a server that is up."""

    def __init__(self, server: ServerProcess, plan: Plan, report: Report) -> None:
        self._server = server
        self._plan = plan
        self._report = report
        self._ledger = report.ledger
        self._traffic = Traffic(server.url, server.port, self._ledger, plan.seed)

    async def run(self) -> None:
        try:
            await self._traffic.learn()
            async with self._clients():
                await self._life()
                await self._count_preemptions()
                await self._restart()
                await self._life()
            self._report.faults.extend(await asyncio.to_thread(at_rest, self._server))
            await self._count_preemptions()
            await self._traffic.crowd(self._plan.crowd)
            self._report.faults.extend(await asyncio.to_thread(at_rest, self._server))
        finally:
            await self._traffic.close()

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[None]:
        """Everybody at work, until the block ends and all have what they waited for."""
        until, plan = asyncio.Event(), self._plan
        jobs = Jobs(self._server.url, self._ledger, plan.seed)
        async with asyncio.TaskGroup() as group:
            for _ in range(plan.clients):
                group.create_task(self._traffic.client(until))
            group.create_task(jobs.client(until))
            try:
                yield
            finally:
                until.set()

    async def _life(self) -> None:
        """Watch the server for half of the time."""
        samples = []
        end_s = time.monotonic() + self._plan.seconds / 2
        while (now_s := time.monotonic()) < end_s:
            samples.append(Sample(now_s, self._server.memory_bytes()))
            if not await self._healthy():
                self._report.faults.append("/health is not green")
                break
            await asyncio.sleep(max(_PEEK_S, self._plan.seconds / 1000))
        grown = growth(samples)
        self._report.memory.append(grown)
        if grown.grown_bytes > MOST_GROWTH_BYTES:
            self._report.faults.append(f"memory is not flat: {grown}")

    async def _count_preemptions(self) -> None:
        """Of the server there is, shortly before its end."""
        for name, count in (await asyncio.to_thread(self._server.gauges)).items():
            if name.startswith("headway_preemptions_total"):
                labels = dict(_LABEL.findall(name))
                self._report.preempted[labels["kind"], labels["service_class"]] += int(count)

    async def _healthy(self) -> bool:
        self._report.looks += 1
        try:
            return await asyncio.to_thread(self._server.healthy)
        except httpx.TransportError:
            return False

    async def _restart(self) -> None:
        started_s = time.monotonic()
        self._ledger.phase = Phase.STOPPING
        if code := await asyncio.to_thread(self._server.stop):
            self._report.faults.append(f"the server ended with {code} at SIGTERM")
        await asyncio.to_thread(self._server.start)
        self._report.restart_s = time.monotonic() - started_s
        await asyncio.sleep(_LATE_S)
        self._ledger.phase = Phase.UP


def summary(report: Report) -> str:
    """A table of what became of the requests, and the rest in lines."""
    ledger = report.ledger
    rows = [f"{n:9,}  {kind}: {what}" for (kind, what), n in sorted(ledger.outcomes.items())]
    rows += [f"memory of server {i}: {grown}" for i, grown in enumerate(report.memory, 1)]
    rows += [
        f"{count:9,}  preempted by {kind}: {name}"
        for (kind, name), count in sorted(report.preempted.items())
    ]
    rows.append(f"stopped and started in {report.restart_s:.1f} s; green {report.looks:,} times")
    rows.append(f"{ledger.requests:,} requests, {len(report.faults)} faults")
    return "\n".join([*rows, *report.faults[:50]])


def main() -> int:
    """The command line; 1 if there were faults."""
    parser = argparse.ArgumentParser(description="Mixed traffic against a server, for long.")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=24)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soak(Plan(settings.seconds, settings.seed, settings.clients), Path(folder))
    print(summary(report))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
