"""Fitting a device to step timings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.simulate.calibrate import calibrated
from headway.simulate.devices import DEVICES, Device, Efficiency
from headway.simulate.roofline import Roofline, Work
from headway.simulate.shapes import find_model

MODEL = "smollm2-135m"
CPU = DEVICES["cpu"]
STEPS = [
    (1, 1, 64),
    (8, 1, 64),
    (32, 1, 1000),
    (64, 1, 64),
    (1, 512, 0),
    (1, 512, 1536),
    (1, 1, 4000),
]

OTHERS = [(16, 1, 500), (2, 1, 10), (1, 128, 256), (4, 64, 2000)]


def seconds(device: Device, rows: int, tokens: int, context: int) -> float:
    """What such a step takes on a device."""
    pairs = rows * (tokens * context + tokens * (tokens + 1) // 2)
    if tokens == 1:
        work = Work(rows, rows, decode_pairs=pairs)
    else:
        work = Work(rows * tokens, rows, pairs, rows * (context + tokens))
    return Roofline(device, find_model(MODEL)).seconds(work).total


def test_a_fitted_device_times_steps_it_has_not_seen(tmp_path: Path) -> None:
    truth = replace(
        CPU,
        peaks=replace(CPU.peaks, flops=900e9, bytes_per_s=80e9),
        efficiency=Efficiency(1.0, 0.2, 1.0, 0.4),
        overhead_s=0.0002,
    )
    path = tmp_path / "steps.json"
    names = ("rows", "tokens", "context")
    entries = [
        {**dict(zip(names, step, strict=True)), "seconds": seconds(truth, *step)} for step in STEPS
    ]
    path.write_text(json.dumps({"model": MODEL, "door_s": 0.002, "steps": entries}))
    fit = calibrated(CPU, path)
    assert fit.device.host == replace(CPU.host, door_s=0.002)
    assert fit.error < 0.02
    assert len(fit.errors) == len(STEPS)
    assert "7 steps" in fit.report
    for step in OTHERS:
        assert seconds(fit.device, *step) == pytest.approx(seconds(truth, *step), rel=0.05)
        assert seconds(CPU, *step) != pytest.approx(seconds(truth, *step), rel=0.3)


STEP = {"rows": 1, "tokens": 1, "context": 0, "seconds": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"model": "smollm2-135m"}',
        '{"model": "smollm2-135m", "steps": [{"rows": 1}]}',
        '{"model": "smollm2-135m", "steps": []}',
        json.dumps({"model": MODEL, "steps": [{**STEP, "rows": -1}]}),
        json.dumps({"model": MODEL, "steps": [{**STEP, "seconds": 0}]}),
        json.dumps({"model": MODEL, "steps": [STEP]}),
        json.dumps({"model": MODEL, "steps": [STEP] * 5, "door_s": -1}),
        json.dumps({"model": MODEL, "steps": [STEP] * 5, "door_s": "soon"}),
    ],
)
def test_files_that_hold_no_timings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"steps\.json") as caught:
        calibrated(CPU, path)
    assert "\n" not in str(caught.value)
