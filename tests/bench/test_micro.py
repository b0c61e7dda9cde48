"""Micro-benchmarks: what is measured, and what is said of a baseline."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.bench.machine import Machine, this_machine
from tests.bench.scripts import script

micro = script("micro.py")
HERE = Machine("a processor", 2, 24, "avx2", "a system", "3.11")


def measured(**rounds: list[float]) -> Any:
    """Figures by name."""
    return micro.Measured(HERE, "2026-01-01", rounds)


def test_everything_is_measured_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "REPEATS", 2)
    monkeypatch.setattr(micro, "HTTP_S", 0.5)
    monkeypatch.setattr(micro, "FORMATS", ("Q4_1",))
    monkeypatch.setattr(micro, "RUNNING", 16)
    monkeypatch.setattr(micro, "WAITING", 50)
    # One thread's own time: what neighbours take may be more than a product does.
    monkeypatch.setattr(micro, "Threads", partial(micro.Threads, clock=time.thread_time))
    with ThreadPoolExecutor(1) as pool:
        figures = list(micro.all_figures(pool))
    names = [name for name, _ in figures]
    assert names[0] == micro.PACE
    assert len(set(names)) == len(names) == 12
    assert all(figure > 0 for _, figure in figures)


def test_a_table_says_what_moved_and_by_how_much() -> None:
    base = measured(same=[10.0, 11.0, 10.5], up=[10.0, 10.0, 10.0], down=[10.0] * 3, gone=[1.0])
    now = measured(same=[10.1, 10.4, 11.1], up=[12.0, 12.0, 12.0], down=[8.0] * 3, new=[5.0])
    lines = {line.split(" | ")[0].strip("| "): line for line in micro.table(now, base)}
    assert lines["same"].endswith("|  |")
    assert "| 10.00 | 12.00 | 1.20 (1.20 to 1.20) | slower |" in lines["up"]
    assert "| 10.00 | 8.00 | 0.80 (0.80 to 0.80) | faster |" in lines["down"]
    assert lines["new"].endswith("| 5.00 | - | new |")
    assert lines["gone"].endswith("| - | - | gone |")


def test_what_moved_by_less_than_its_rounds_differ_has_no_verdict() -> None:
    ratio = micro.moved([10.0] * 5, [9.0, 13.0, 10.0, 12.0, 11.0])
    assert ratio.low < 1.05 < ratio.high
    assert micro.verdict(ratio) == ""


def test_rounds_of_unequal_number_are_compared() -> None:
    assert micro.moved([1.0], [2.0, 2.0, 2.0]).median == 2.0
    assert micro.moved([1.0, 1.0, 1.0], [2.0]).median == 2.0


def test_another_machine_and_one_that_has_moved_are_remarked() -> None:
    base = measured(**{micro.PACE: [1.0] * 3})
    assert list(micro.remarks(base, base)) == [f"Baseline of 2026-01-01: {HERE}."]
    other = measured(**{micro.PACE: [1.2] * 3})
    other = replace(other, machine=replace(HERE, processor="another", cores=4))
    _, differs, pace = micro.remarks(other, base)
    assert "(processor, cores)" in differs
    assert "first row" in pace
    assert "--save" in next(iter(micro.remarks(base, None)))


def test_a_baseline_is_read_as_it_was_saved(tmp_path: Path) -> None:
    one = measured(a=[1.0, 2.0])
    one.write(tmp_path / "base.json")
    assert micro.Measured.read(tmp_path / "base.json") == one
    assert json.loads((tmp_path / "base.json").read_text())["machine"]["cores"] == 2


def test_a_baseline_of_disturbed_rounds_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    with pytest.raises(SystemExit, match="not written"):
        micro.save(measured(a=[1.0]), [False, False], path)
    assert not path.exists()
    micro.save(measured(a=[1.0]), [False, True], path)
    assert path.exists()


def test_the_machine_is_what_linux_says_it_is(tmp_path: Path) -> None:
    for name, text in (
        ("proc/cpuinfo", "processor\t: 0\nmodel name\t: A B: C\nmodel name\t: other\n"),
        ("proc/meminfo", "MemTotal:       25165824 kB\nMemFree: 1 kB\n"),
        ("etc/os-release", 'NAME="X"\nPRETTY_NAME="X 12"\n'),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = this_machine(tmp_path)
    assert (machine.processor, machine.memory_gib) == ("A B: C", 24)
    assert machine.system.startswith("X 12, kernel ")
    assert this_machine(tmp_path / "nowhere").memory_gib == 0
    assert this_machine().cores >= 1
