"""A tiny random model, an engine in one process: what a realtime request waits, and that nobody's
answer changes. Each engine runs alone, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
_LIMIT_S = 500
POLICIES = ("fcfs", "priority", "headway")


def run(model: Path, situation: str, policy: str, *options: str) -> dict[str, Any]:
    """One engine through one situation."""
    command = [sys.executable, str(HERE / "situations.py"), str(model), situation, policy, *options]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": threads(options)},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def threads(options: tuple[str, ...]) -> str:
    """Cores for each worker; vLLM wants it said where there are two."""
    two = "--tensor-parallel" in options or "--pipeline-parallel" in options
    return "0|1" if two else "nobind"


class Table(dict[tuple[str, str], dict[str, Any]]):
    """Rows by situation and policy; each is run when it is first asked for."""

    def __init__(self, model: Path) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, key: tuple[str, str]) -> dict[str, Any]:
        self[key] = run(self._model, *key)
        return self[key]

    def print(self) -> None:
        """For people."""
        print("\n| situation | policy | TTFT, steps | steps in all | restored tokens |")
        for (situation, policy), row in sorted(self.items()):
            figures = (row["ttft_steps"], row["steps"], row.get("restored_tokens", 0))
            print("| " + " | ".join(map(str, (situation, policy, *figures))) + " |")


@pytest.fixture(scope="session")
def table(tiny: Path) -> Iterator[Table]:
    """Printed at the end."""
    rows = Table(tiny)
    yield rows
    rows.print()


@pytest.mark.parametrize("situation", ["seats", "blocks"])
def test_realtime_gets_its_first_token_within_two_steps(table: Table, situation: str) -> None:
    assert table[situation, "headway"]["ttft_steps"] <= 2
    assert table[situation, "priority"]["ttft_steps"] > 10
    assert table[situation, "fcfs"]["ttft_steps"] > 10


@pytest.mark.parametrize("situation", ["seats", "blocks"])
def test_answers_are_those_without_preemption(table: Table, situation: str) -> None:
    found = {table[situation, policy]["answers"] for policy in POLICIES}
    assert len(found) == 1, "preempted, swapped and never displaced: all the same tokens"
    assert table[situation, "headway"]["preemptions"] >= 1


@pytest.mark.parametrize("situation", ["seats", "blocks"])
def test_the_same_work_takes_as_many_steps(table: Table, situation: str) -> None:
    ours, stock = table[situation, "headway"]["steps"], table[situation, "priority"]["steps"]
    assert ours <= 1.03 * stock


@pytest.mark.parametrize("situation", ["seats", "blocks"])
def test_every_token_that_was_saved_is_restored(table: Table, situation: str) -> None:
    row = table[situation, "headway"]
    assert row["saved_tokens"] == row["restored_tokens"] > 0
    assert row["host_used"] == 0


def test_corrupted_host_memory_changes_answers(table: Table, tiny: Path) -> None:
    """The negative control: what comes back is what is attended to."""
    corrupted = run(tiny, "blocks", "headway", "--then", "corrupt")
    assert corrupted["restored_tokens"] > 0
    assert corrupted["answers"] != table["blocks", "headway"]["answers"]


def test_without_host_memory_it_is_computed_again(table: Table, tiny: Path) -> None:
    row = run(tiny, "blocks", "headway", "--host-gib", "0")
    assert row["saved_tokens"] == 0
    assert row["preemptions"] >= 1
    assert row["ttft_steps"] <= 2
    assert row["answers"] == table["blocks", "headway"]["answers"]


def test_what_was_kept_goes_with_an_aborted_request(table: Table, tiny: Path) -> None:
    row = run(tiny, "blocks", "headway", "--then", "abort")
    assert row["restored_tokens"] < row["saved_tokens"]
    assert row["tokens"] < table["blocks", "headway"]["tokens"]
    assert row["host_used"] == 0


def test_and_on_a_reset_of_the_prefix_cache_which_changes_no_answer(
    table: Table, tiny: Path
) -> None:
    row = run(tiny, "blocks", "headway", "--then", "reset")
    assert row["restored_tokens"] < row["saved_tokens"]
    assert row["host_used"] == 0
    assert row["answers"] == table["blocks", "headway"]["answers"]


def test_with_a_prefix_cache_too(table: Table, tiny: Path) -> None:
    row = run(tiny, "cached", "headway")
    assert row["ttft_steps"] <= 2
    assert row["answers"] == table["blocks", "headway"]["answers"]


@cache
def parallel(model: Path, kind: str) -> dict[str, Any]:
    """Two worker processes."""
    return run(model, "blocks", "headway", f"--{kind}", "2")


@pytest.mark.parametrize("kind", ["tensor-parallel", "pipeline-parallel"])
def test_two_workers_give_the_answers_of_one(table: Table, tiny: Path, kind: str) -> None:
    row = parallel(tiny, kind)
    assert row["answers"] == table["blocks", "headway"]["answers"]
    assert row["restored_tokens"] > 0


@pytest.mark.parametrize("kind", ["tensor-parallel", "pipeline-parallel"])
def test_two_workers_let_realtime_in_at_once(tiny: Path, kind: str) -> None:
    assert parallel(tiny, kind)["ttft_steps"] <= 2
