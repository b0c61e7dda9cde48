"""bench/gpu.py runs from end to end, on a CPU and a tiny shape, and goes on where a part fails."""

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.project import ROOT

SCRIPT = ROOT / "bench/gpu.py"
STAND_IN = """
import json, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name, parts = given["--attention"] + given["--graphs"], given["--parts"].split(",")
found = {}
for part in parts:
    if part == "correct":
        found[part] = {"failed": ["wrong"] if name == "pagedon" else []}
    elif name == "pagedoff" and part == "swap":
        sys.exit("illegal memory access")
    elif name == "gatheredoff" and part == "lanes":
        time.sleep(600)
    else:
        found[part] = {"measured": []}
    open(given["--out"], "w").write(json.dumps(found))
"""


def test_the_script_runs_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--out", str(tmp_path)]
    subprocess.run([*command, "--limit", "3000"], check=True, timeout=3000)
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["complete"]
    both = ["gathered, graphs off", "gathered, graphs on"]
    assert sorted(document["correct"]) == sorted(document["steps"]) == both
    for checked in document["correct"].values():
        assert checked["failed"] == []
        assert max(checked["logprob_error"].values()) < 1e-4
    swapped = document["swap"][both[0]]
    assert [one["tokens"] for one in swapped["measured"]] == [128, 512, 1024]
    assert swapped["verdict"]["claimed"] == 5
    lanes = document["lanes"][both[0]]
    assert {row["itl_target_ms"] for row in lanes["verdict"]} == {20, 30, 40, 60}
    assert all(one["ttft_p50_s"] > one["itl_p50_s"] / 2 > 0 for one in lanes["measured"])
    ElementTree.fromstring((tmp_path / "gpu.svg").read_text())
    simulated = [sys.executable, "-m", "headway", "simulate", "--device", "cpu"]
    simulated += ["--model", str(tmp_path / "config.json"), "--max-requests", "5"]
    done = subprocess.run(
        [*simulated, "--calibrate", str(tmp_path / "steps.json")],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert "calibrated cpu on 12 steps" in done.stderr


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("bench_gpu", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_gpu", module)
    spec.loader.exec_module(module)
    return module


def test_what_one_process_did_not_measure_the_next_does(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is wrong, one dies in the middle, one hangs, one is good."""
    stand_in = tmp_path / "part.py"
    stand_in.write_text(STAND_IN)
    monkeypatch.setattr(gpu, "PART", stand_in)
    monkeypatch.setattr(gpu, "MEASURED", 0.01)
    run = gpu.Run(tmp_path, "cuda", 3000.0, 1e12)
    right = gpu.check(run, list(gpu.ARRANGEMENTS))
    assert [one.name for one in right] == [one.name for one in gpu.ARRANGEMENTS[1:]]
    gpu.measure(run, right)
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["correct"]["paged, graphs on"]["failed"] == ["wrong"]
    assert list(document["steps"]) == [one.name for one in gpu.ARRANGEMENTS[1:]]
    assert list(document["swap"]) == ["gathered, graphs off"]
    assert list(document["lanes"]) == ["gathered, graphs on"]
    assert "illegal memory access" in document["failed"]["paged, graphs off"]
    assert "not done" in document["failed"]["gathered, graphs off"]


def test_only_what_can_be_had_is_tried(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda _: True)
    names = [one.name for one in gpu.arrangements("cuda", "auto", "auto")]
    assert names == ["paged, graphs on", "paged, graphs off", "gathered, graphs off"]
    named = gpu.arrangements("cuda", "gathered", "on")
    assert [one.name for one in named] == ["gathered, graphs on"]
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    names = [one.name for one in gpu.arrangements("cuda", "auto", "auto")]
    assert names == ["gathered, graphs off"]
    names = [one.name for one in gpu.arrangements("cpu", "auto", "auto")]
    assert names == ["gathered, graphs off", "gathered, graphs on"]
