"""Kills a server's batch side with SIGKILL at random moments, again and again; then everything must
have been answered, once, with the answers of a run that nobody disturbed.

Usage: python -m tests.batches.kill [--kills 200] [--seed 1]

A process of its own does what `headway serve` does for batches, on the CPU engine with a tiny
random model: takes files in, creates jobs, answers them. Some lines are wrong on purpose.
"""

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from headway.assembly import EngineOptions, Sizes, build_engine
from headway.batches.desk import BatchDesk
from headway.batches.runner import BatchRunner
from headway.batches.types import Order, Page, Status
from headway.batches.work import WorkOptions
from headway.models.loader import load_model
from headway.models.quant import Encoding
from headway.server.line_answer import LineAnswerer
from headway.server.model import ServedModel
from headway.server.tiers import ModelNames
from tests.models.writers import TINY_WIDE, tiny_gguf

URL = "/v1/completions"
LINES = 200
UP = "up"
LONGEST_LIFE_S = 0.6


def input_lines(job: int) -> Iterator[str]:
    """A job's lines; every seventh is wrong in one way or another."""
    for number in range(LINES):
        body = {
            "model": "tiny",
            "prompt": [(job * 31 + number * 7 + i) % 200 + 20 for i in range(6)],
            "max_tokens": 4 + number % 40,
            "temperature": 0 if number % 2 else 1,
            "seed": number,
            "ignore_eos": True,
        }
        line = {"custom_id": f"{job}-{number}", "method": "POST", "url": URL, "body": body}
        if number % 7 == 3:
            body["temperature"] = 9
        yield "{broken" if number % 7 == 5 else json.dumps(line)


def work(folder: Path, model_path: Path, jobs: int) -> None:
    """Have `jobs` jobs in the folder, and answer what is left to answer."""
    desk = BatchDesk(folder)
    model = load_model(model_path)
    sizes = Sizes(kv_blocks=64, max_seqs=8, threads=1)
    engine = build_engine(model, EngineOptions(sizes))
    served = ServedModel(ModelNames("tiny"), model.tokenizer, None, engine.max_model_len, 1)
    runner = BatchRunner(
        desk, LineAnswerer(engine, served), engine.snapshot, WorkOptions(retry_s=0.05, note_s=0.05)
    )
    engine.start()
    runner.start()
    print(UP, flush=True)
    for job in range(len(desk.list_jobs("", Page(limit=10**6))), jobs):
        incoming = desk.receive()
        for line in input_lines(job):
            incoming.write(line.encode() + b"\n")
        file = incoming.accept("", f"{job}.jsonl", 3600)
        desk.create(Order("", file.id, URL, "1h", 3600, {"job": str(job)}))
    while desk.store.live_jobs():
        time.sleep(0.005)
    runner.stop()
    engine.stop()
    desk.close()


@dataclass
class Report:
    """How it went. faults: what should not have been; empty if all is well."""

    kills: int = 0
    jobs: int = 0
    found: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def kill_often(kills: int, seed: int, folder: Path) -> Report:
    """Run the experiment in a folder that is empty."""
    rng, report = random.Random(seed), Report(jobs=2)
    model = tiny_gguf(folder / "tiny.gguf", TINY_WIDE, Encoding.Q8_0)
    data = folder / "data"
    while report.kills < kills:
        with _worker(data, model, report.jobs) as process:
            assert process.stdout is not None
            # Sometimes before it is up: loading a model, or bringing the database in order.
            if rng.random() < 0.9:
                process.stdout.readline()
            try:
                ended = process.wait(rng.uniform(0, LONGEST_LIFE_S))
            except subprocess.TimeoutExpired:
                report.found.update(_statuses(data))
                process.kill()
                report.kills += 1
                continue
            if ended:
                report.faults.append(f"the worker ended with {ended}")
                return report
        report.jobs += 2
    _finish(data, model, report.jobs)
    _finish(folder / "calm", model, report.jobs)
    report.faults += list(_faults(data, _texts(folder / "calm")))
    return report


def _worker(data: Path, model: Path, jobs: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.batches.kill", "--work", str(data), str(model)]
    return subprocess.Popen([*command, str(jobs)], stdout=subprocess.PIPE, text=True)


def _finish(data: Path, model: Path, jobs: int) -> None:
    with _worker(data, model, jobs) as process:
        process.communicate(timeout=600)


def _statuses(data: Path) -> Iterator[str]:
    """Where the jobs are that haven't ended, seen from outside while the worker lives."""
    path = data / "headway.db"
    if not path.exists():
        return
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        try:
            rows = db.execute("SELECT status FROM batches").fetchall()
        except sqlite3.OperationalError:  # not even a table yet
            return
    yield from (row[0] for row in rows if Status(row[0]).live)


def _results(desk: BatchDesk, id: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in desk.content(id, "").read_text().splitlines()]


def _texts(data: Path) -> dict[str, object]:
    """Answers by custom id."""
    desk, texts = BatchDesk(data), {}
    for job in desk.list_jobs("", Page(limit=10**6)):
        for result in _results(desk, job.results.output_file_id):
            texts[str(result["custom_id"])] = _choice(result)
    desk.close()
    return texts


def _choice(result: dict[str, object]) -> object:
    response = result["response"]
    assert isinstance(response, dict)
    return response["body"]["choices"][0]["text"]


def _faults(data: Path, expected: dict[str, object]) -> Iterator[str]:
    desk = BatchDesk(data)
    on_disk = {path.name for path in (data / "files").iterdir()}
    if on_disk != desk.store.known_ids():
        yield f"files without an entry, or the other way round: {on_disk ^ desk.store.known_ids()}"
    texts: dict[str, object] = {}
    for job in desk.list_jobs("", Page(limit=10**6)):
        good = _results(desk, job.results.output_file_id)
        bad = _results(desk, job.results.error_file_id)
        counts = (job.counts.total, job.counts.completed, job.counts.failed)
        if job.status is not Status.COMPLETED:
            yield f"{job.id} is {job.status.value}"
        if counts != (LINES, len(good), len(bad)):
            yield f"{job.id} counts {counts}, its files {len(good)} and {len(bad)}"
        numbers = Counter(str(r["id"]).rpartition("_")[2] for r in good + bad)
        if sorted(map(int, numbers)) != list(range(1, LINES + 1)):
            yield f"{job.id} lost lines: {numbers.keys()}"
        if any(count > 1 for count in numbers.values()):
            yield f"{job.id} answered lines twice: {numbers}"
        texts |= {str(r["custom_id"]): _choice(r) for r in good}
    if texts != expected:
        yield f"{sum(texts.get(k) != v for k, v in expected.items())} answers differ"
    desk.close()


def main() -> int:
    """The command line; 1 if there were faults."""
    parser = argparse.ArgumentParser(description="Kill batch work at random moments.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", nargs=3, metavar=("DATA", "MODEL", "JOBS"))
    settings = parser.parse_args()
    if settings.work:
        data, model, jobs = settings.work
        work(Path(data), Path(model), int(jobs))
        return 0
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = kill_often(settings.kills, settings.seed, Path(folder))
    seen = ", ".join(f"{status} {count}" for status, count in sorted(report.found.items()))
    print(f"{report.kills} kills over {report.jobs} jobs of {LINES} lines; at the kill: {seen}")
    print(f"{len(report.faults)} faults; {time.monotonic() - start_s:.0f} s")
    for fault in report.faults:
        print(fault)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
