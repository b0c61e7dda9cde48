"""The same trace gives the same plans."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.traces import digest_of, run_seed

TRACES = 30


def digests_in_a_process_of_its_own(hash_seed: str) -> list[str]:
    """A line for each trace; strings, and all that is ordered by them, hash by the seed."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.core.traces", "0", str(TRACES)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
    )
    return run.stdout.splitlines()


def test_two_processes_plan_the_same() -> None:
    """Whatever strings hash to, and wherever objects lie."""
    first, second = map(digests_in_a_process_of_its_own, ("1", "2"))
    assert len(first) == TRACES == len(set(first))
    assert first == second


@pytest.mark.parametrize("seed", [1000, 1001, 1002])
def test_a_scheduler_keeps_nothing_from_another(seed: int) -> None:
    assert digest_of(seed) == digest_of(seed)


def test_the_traces_have_what_makes_plans_hard() -> None:
    """Else equal plans would be cheap: preemptions of both kinds, both arrangements."""
    runs = [run_seed(seed) for seed in range(15)]
    kinds = {p.kind for run in runs for t in run.traces.values() for p in t.preempted}
    assert len(kinds) == 2
    assert len({plan.lane for run in runs for plan in run.plans}) == 3
    assert any(plan.swap_in for run in runs for plan in run.plans)
