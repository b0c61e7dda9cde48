"""50,000 lines of 2 KB through a data folder; prints by how many MB the process grew.

Usage: python -m tests.batches.many_lines FOLDER
"""

import sys
import time
from collections.abc import Collection
from pathlib import Path

from headway.batches.desk import BatchDesk
from headway.batches.runner import BatchRunner
from headway.batches.types import LineAnswer, Order
from headway.batches.work import WorkOptions
from headway.core.request import Snapshot, TierCounts

LINES = 50_000
URL = "/v1/completions"
ANSWER = b'{"object":"text_completion","choices":[{"text":"' + b"y" * 500 + b'"}]}'


class Echo:
    """Answers at once."""

    @property
    def endpoints(self) -> Collection[str]:
        return (URL,)

    async def answer(self, endpoint: str, body: bytes, tenant: str) -> LineAnswer:
        return LineAnswer(200, ANSWER, "req_1")


def idle() -> Snapshot:
    """An engine that always has room."""
    nothing = TierCounts(0, 0, 0, 0)
    return Snapshot(0, nothing, nothing)


def peak_mb() -> float:
    """The most memory this process has had, from the system's books."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main(folder: Path) -> None:
    desk = BatchDesk(folder)
    incoming = desk.receive()
    text = "x" * 1900
    for number in range(LINES):
        incoming.write(
            f'{{"custom_id":"line-{number}","method":"POST","url":"{URL}",'
            f'"body":{{"prompt":"{text}"}}}}\n'.encode()
        )
    file = incoming.accept("", "in.jsonl", 3600)
    before_mb = peak_mb()
    job = desk.create(Order("", file.id, URL, "1h", 3600))
    runner = BatchRunner(desk, Echo(), idle, WorkOptions(breath_s=0))
    runner.start()
    while desk.job(job.id, "").status.live:
        time.sleep(0.05)
    runner.stop()
    print(f"{peak_mb() - before_mb:.1f} {desk.job(job.id, '').counts.completed} {before_mb:.1f}")
    desk.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
