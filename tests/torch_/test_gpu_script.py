"""bench/gpu.py runs from end to end, on the CPU and a tiny shape."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.packaging.project import ROOT


def test_the_script_runs_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench/gpu.py"), "--device", "cpu"]
    subprocess.run([*command, "--out", str(tmp_path), "--seconds", "0.1"], check=True, timeout=500)
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["correct"]["failed"] == []
    assert max(document["correct"]["logprob_error"].values()) < 1e-4
    assert [one["tokens"] for one in document["swap"]] == [128, 512, 1024]
    assert {row["itl_target_ms"] for row in document["verdict"]} == {20, 30, 40, 60}
    assert len(json.loads((tmp_path / "steps.json").read_text())["steps"]) >= 10
    ElementTree.fromstring((tmp_path / "gpu.svg").read_text())
