"""Fitting a device to measured steps, so that a simulation speaks of the machine at hand.

The file holds the model's name and the steps:

    {"model": "smollm2-135m", "door_s": 0.0007,
     "steps": [{"rows": 32, "tokens": 1, "context": 1000, "seconds": 0.071}, …]}

Each step computed `rows` chunks of `tokens` tokens, each at `context` tokens already in cache, and
sampled once a row. door_s is that of `devices.Host`; without it, 0. `python bench/calibrate.py
MODEL.gguf` writes a file for the CPU executor.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from headway.errors import ConfigError
from headway.simulate.devices import Device, Efficiency
from headway.simulate.roofline import Roofline, Work
from headway.simulate.shapes import ModelShape, find_model


@dataclass(frozen=True, slots=True)
class Step:
    """One measured step."""

    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A device that fits, and how well. `errors`: modelled over measured, less 1, of each step."""

    device: Device
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """The median, whichever way."""
        return median(abs(error) for error in self.errors)

    @property
    def report(self) -> str:
        """In one line."""
        peaks, efficiency = self.device.peaks, self.device.efficiency
        return (
            f"calibrated {self.device.name} on {len(self.errors)} steps, "
            f"median error {self.error:.1%}: "
            f"{peaks.flops * efficiency.matmul / 1e9:.4g} GFLOP/s in matrices, "
            f"{peaks.flops * efficiency.attention / 1e9:.4g} in attention, "
            f"{peaks.bytes_per_s * efficiency.weights / 1e9:.4g} GB/s of weights, "
            f"{peaks.bytes_per_s * efficiency.kv / 1e9:.4g} of KV, "
            f"{self.device.overhead_s * 1e3:.3g} ms a step, "
            f"{self.device.host.door_s * 1e3:.3g} ms at the door"
        )


def calibrated(device: Device, path: Path) -> Calibration:
    """The device with rates and overhead that fit the file's steps best.

    Raises ConfigError for a file that can't be used, ModelError for its model.
    """
    model, steps, door_s = _read(path)
    fitted = _fit(replace(device, host=replace(device.host, door_s=door_s)), model, steps)
    return Calibration(fitted, tuple(_modelled(fitted, model, s) / s.seconds - 1 for s in steps))


def _read(path: Path) -> tuple[ModelShape, list[Step], float]:
    try:
        content = json.loads(path.read_bytes())
        model = find_model(str(content["model"]))
        steps = [_step(entry) for entry in content["steps"]]
        door_s = _seconds(content.get("door_s", 0.0), least_s=0.0)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: no step timings: {error}") from error
    if len(steps) < _PARAMETERS:
        raise ConfigError(f"{path}: {len(steps)} steps can't fix {_PARAMETERS} constants")
    return model, steps, door_s


def _step(entry: dict[str, object]) -> Step:
    rows, tokens, context = (_whole(entry[name]) for name in ("rows", "tokens", "context"))
    seconds = _seconds(entry["seconds"])
    work = Work(tokens=rows * tokens, sampled=rows)
    pairs = rows * (tokens * context + tokens * (tokens + 1) // 2)
    if tokens == 1:
        work.decode_pairs = pairs
    else:
        work.prefill_pairs, work.prefill_kv_tokens = pairs, rows * (context + tokens)
    return Step(work, seconds)


def _seconds(value: object, least_s: float = 1e-9) -> float:
    if not isinstance(value, int | float) or not least_s <= value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _whole(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


_PARAMETERS = 5
_FIRST_STEP = 0.7
_LAST_STEP = 0.002
_MOST_SWEEPS = 1000

_Logs = tuple[float, ...]


def _fit(device: Device, model: ModelShape, steps: Sequence[Step]) -> Device:
    """Pattern search (Hooke and Jeeves, 1961) over the logarithms of the five constants; no
    gradients, since the roofline has kinks. Minimises the squares of log(modelled / measured)."""
    peaks, efficiency = device.peaks, device.efficiency
    constants = (
        peaks.flops * efficiency.matmul,
        peaks.flops * efficiency.attention,
        peaks.bytes_per_s * efficiency.weights,
        peaks.bytes_per_s * efficiency.kv,
        device.overhead_s,
    )

    def loss(logs: _Logs) -> float:
        tried = _with(device, [math.exp(x) for x in logs])
        return sum(math.log(_modelled(tried, model, s) / s.seconds) ** 2 for s in steps)

    base, size = tuple(math.log(c) for c in constants), _FIRST_STEP
    start = base
    for _ in range(_MOST_SWEEPS):
        found = _explored(loss, start, size)
        if loss(found) < loss(base) - 1e-12:
            # On in the direction that just paid.
            start = tuple(2 * f - b for f, b in zip(found, base, strict=True))
            base = found
        elif start != base:
            start = base
        elif size > _LAST_STEP:
            size /= 2
        else:
            break
    return _with(device, [math.exp(x) for x in base])


def _explored(loss: Callable[[_Logs], float], start: _Logs, size: float) -> _Logs:
    """The best point met by moving each coordinate by one step either way."""
    best, best_loss = start, loss(start)
    for i in range(len(start)):
        for change in (size, -size):
            tried = (*best[:i], best[i] + change, *best[i + 1 :])
            found = loss(tried)
            if found < best_loss:
                best, best_loss = tried, found
                break
    return best


def _with(device: Device, constants: Sequence[float]) -> Device:
    """The device with five measured constants; peaks become the larger rate of each kind."""
    matmul, attention, weights, kv, overhead_s = constants
    flops, bytes_per_s = max(matmul, attention), max(weights, kv)
    return replace(
        device,
        peaks=replace(device.peaks, flops=flops, bytes_per_s=bytes_per_s),
        efficiency=Efficiency(
            matmul / flops, attention / flops, weights / bytes_per_s, kv / bytes_per_s
        ),
        overhead_s=overhead_s,
    )


def _modelled(device: Device, model: ModelShape, step: Step) -> float:
    return Roofline(device, model).seconds(step.work).total
