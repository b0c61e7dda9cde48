"""What bench/gpu.py says of lanes, on figures that are made up: no CPU has parts of its own."""

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.packaging.project import ROOT


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/gpu_part.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location("bench_gpu_part", ROOT / "bench/gpu_part.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_gpu_part", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


def measured(rate: float, ttft_s: float, itl_s: float, **what: int) -> dict[str, float]:
    """One arrangement of lanes."""
    figures = {"prefill_tokens_per_s": rate, "decode_tokens_per_s": 1000.0, "ttft_p50_s": ttft_s}
    return {**what, **figures, "itl_p90_s": itl_s}


def test_the_best_that_keeps_a_target_is_compared(part: ModuleType) -> None:
    found = [
        measured(5000.0, 1.6, 0.018, chunk=256),
        measured(9000.0, 0.9, 0.035, chunk=512),
        measured(12000.0, 0.7, 0.070, chunk=1024),
        measured(11000.0, 0.8, 0.015, prefill_units=8),
        measured(15000.0, 0.5, 0.028, prefill_units=12),
    ]
    rows = {row["itl_target_ms"]: row for row in part.verdict(found)}
    tight, wide = rows[20], rows[60]
    assert (tight["unified"]["chunk"], tight["split"]["prefill_units"]) == (256, 8)
    assert (tight["prefill_ratio"], tight["ttft_ratio"]) == (2.2, 0.5)
    assert tight["prefill_held"] and tight["ttft_held"]
    assert (tight["unified_goodput"], tight["split_goodput"]) == (6000.0, 12000.0)
    assert (wide["unified"]["chunk"], wide["split"]["prefill_units"]) == (512, 12)
    assert not wide["prefill_held"] and not wide["ttft_held"]


def test_a_target_that_nothing_keeps_has_no_ratio(part: ModuleType) -> None:
    rows = list(part.verdict([measured(5000.0, 1.6, 0.09, chunk=256)]))
    assert all(row["unified"] is None and "prefill_ratio" not in row for row in rows)
    assert all(row["unified_goodput"] == 0 for row in rows)
