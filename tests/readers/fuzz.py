"""Broken files for the readers, made from valid ones: no crash, no exception but the documented
one, no hang, and memory stays within bounds.

Usage: python -m tests.readers.fuzz [--seconds 600] [--seed N] [--readers gguf jsonl]

Each reader runs in a process of its own that may not take more than so much memory and so much
time a case. Case N of a seed is always the same; what fails is kept, with its number:

    python -m tests.readers.fuzz --readers gguf --seed 7 --case 1234
"""

import argparse
import faulthandler
import random
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.readers.targets import READERS

MEMORY_BYTES = 512 << 20
"""That a reader may take on top of what its process has when it starts."""

CASE_S = 60
"""After which a case counts as one that hangs: the worst template ends in seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One reader's run. fault: what its process ended with, "" if all is well."""

    reader: str
    report: str
    fault: str


def fuzz(reader: str, seconds: float, seed: int) -> Outcome:
    """Run a reader's cases, in a process of its own, for so long."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.readers.fuzz", "--child", folder]
        command += ["--readers", reader, "--seconds", str(seconds), "--seed", str(seed)]
        child = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": folder},
            capture_output=True,
            text=True,
            timeout=seconds + 4 * CASE_S,
        )
    fault = "" if child.returncode == 0 else f"ended with {child.returncode}: {child.stderr}"
    return Outcome(reader, child.stdout.strip(), fault)


def _child(reader: str, folder: Path, seconds: float, seed: int, only: int | None) -> None:
    """Run cases until the time is over or one fails."""
    case = READERS[reader](folder)
    _bound_memory()
    tally: Counter[str] = Counter()
    number, end_s = only or 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        faulthandler.dump_traceback_later(CASE_S, exit=True)
        # On stderr, of which the last line matters: a crash leaves no other trace.
        try:
            tally[case(random.Random(f"{seed} {number}"))] += 1
        except BaseException:
            print(f"seed {seed}, case {number} of {reader}", file=sys.stderr)
            raise
        number += 1
        if only is not None:
            break
    faulthandler.cancel_dump_traceback_later()
    found = ", ".join(f"{what} {count:,}" for what, count in sorted(tally.items()))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{number:,} cases: {found}; at most {peak_mib} MiB")


def _bound_memory() -> None:
    status = Path("/proc/self/statm").read_text()
    taken = int(status.split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES,) * 2)


def main() -> int:
    """The command line; 1 if there were faults."""
    parser = argparse.ArgumentParser(description="Broken files for the readers.")
    parser.add_argument("--seconds", type=float, default=600, help="for each reader")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--readers", nargs="+", default=list(READERS), choices=READERS)
    parser.add_argument("--case", type=int, help="this one only, in this process")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.child is not None or settings.case is not None:
        with tempfile.TemporaryDirectory() as own:
            for reader in settings.readers:
                folder = settings.child or Path(own)
                _child(reader, folder, settings.seconds, settings.seed, settings.case)
        return 0
    failed = 0
    for reader in settings.readers:
        outcome = fuzz(reader, settings.seconds, settings.seed)
        print(f"{reader}, seed {settings.seed}: {outcome.report or outcome.fault}", flush=True)
        failed |= bool(outcome.fault)
    return int(failed)


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
