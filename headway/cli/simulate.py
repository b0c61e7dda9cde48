"""`headway simulate`."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from headway.core.budget import Targets
from headway.errors import ConfigError
from headway.simulate.calibrate import calibrated
from headway.simulate.capacity import Plan, Probe, largest_rate
from headway.simulate.cells import Cell, Sizes, run_cells
from headway.simulate.devices import find_device
from headway.simulate.figures import Figures, parse_objectives
from headway.simulate.plot import svg
from headway.simulate.report import document, table, title
from headway.simulate.shapes import find_model
from headway.simulate.synthetic import load_trace
from headway.simulate.traces import Trace
from headway.simulate.workload import Mix, parse_shares


def run(settings: argparse.Namespace) -> int:
    """Simulate; 1 if no rate meets `--slo`. Raises ConfigError, ModelError for wrong settings."""
    cells = _cells(settings)
    _check_outputs(settings)
    trace = load_trace(settings.trace, settings.seed, settings.max_requests)
    jobs = settings.jobs or len(os.sched_getaffinity(0))
    if settings.slo is not None:
        if len(cells) > 1:
            raise ConfigError("--slo searches rates for one setting: give one value each")
        return _plan_capacity(cells[0], trace, jobs, settings)
    results = _simulate(cells, trace, jobs)
    for cell, result in zip(cells, results, strict=True):
        for line in table(cell, result):
            print(line)
    _write(settings, cells, results, trace)
    return 0


def _check_outputs(settings: argparse.Namespace) -> None:
    """Raise ConfigError for a file that can't be written, before anything is simulated."""
    for path in filter(None, (settings.json, settings.plot)):
        try:
            Path(path).touch()
        except OSError as error:
            raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error


def _cells(settings: argparse.Namespace) -> list[Cell]:
    """Every combination of what was given several values."""
    device, model = find_device(settings.device), find_model(settings.model)
    if settings.calibrate is not None:
        fit = calibrated(device, Path(settings.calibrate))
        device = fit.device
        print(fit.report, file=sys.stderr)
    if settings.layer_group is not None:
        device = replace(device, layer_group=settings.layer_group)
    shares, objectives = parse_shares(settings.classes), parse_objectives(settings.objectives)
    targets = Targets((settings.itl_target or 0) / 1000, (settings.ttft_target or 0) / 1000)
    host_blocks = -1 if settings.host_blocks == 0 else settings.host_blocks or 0
    return [
        Cell(
            device=device,
            model=model,
            policy=policy,
            sizes=Sizes(settings.kv_blocks or 0, host_blocks, max_seqs, max_step_tokens),
            mix=Mix(shares, rate_scale, backlog, settings.seed),
            lanes=lanes,
            targets=targets,
            objectives=objectives,
        )
        for policy, lanes, max_seqs, max_step_tokens, rate_scale, backlog in product(
            settings.policy,
            settings.lanes,
            settings.max_seqs,
            settings.max_step_tokens,
            settings.rate_scale,
            settings.backlog,
        )
    ]


def _simulate(cells: Sequence[Cell], trace: Trace, jobs: int) -> list[Figures]:
    """Run the cells, with progress on standard error."""
    if len(cells) == 1:
        started_s = time.process_time()
        result = cells[0].run(trace, _Bar())
        used_s = max(time.process_time() - started_s, 1e-9)
        _note(f"{result.span_s / used_s:.0f} x real time on one core")
        return [result]
    ended = 0

    def done(index: int) -> None:
        nonlocal ended
        ended += 1
        _note(f"{ended} of {len(cells)} done: {title(cells[index])}")

    return run_cells(cells, trace, jobs, done)


def _plan_capacity(cell: Cell, trace: Trace, jobs: int, settings: argparse.Namespace) -> int:
    def tried(probe: Probe) -> None:
        _note(f"rate x {probe.rate_scale:.3g}: {'; '.join(probe.broken) or 'met'}")

    objectives = parse_objectives(settings.slo)
    plan: Plan = largest_rate(replace(cell, objectives=objectives), trace, objectives, jobs, tried)
    if plan.best is None:
        print(f"simulated: no rate meets {settings.slo}; {'; '.join(plan.probes[0].broken)}")
        return 1
    best = plan.best
    rate = len(trace.records) / max(trace.records[-1].at_s, 1e-9) * best.rate_scale
    found = replace(cell, mix=replace(cell.mix, rate_scale=best.rate_scale), objectives=objectives)
    for line in table(found, best.figures):
        print(line)
    print(
        f"simulated: {settings.slo} is met up to {best.rate_scale:.3g} x the trace's rate, "
        f"{rate:.2f} requests/s"
    )
    _write(settings, [found], [best.figures], trace)
    return 0


def _write(
    settings: argparse.Namespace, cells: Sequence[Cell], results: Sequence[Figures], trace: Trace
) -> None:
    """The files that were asked for. Raises ConfigError if one can't be written."""
    try:
        if settings.json:
            text = json.dumps(document(cells, results, trace, settings.trace), indent=1)
            Path(settings.json).write_text(text + "\n", encoding="utf-8")
        if settings.plot:
            Path(settings.plot).write_text(svg(cells, results), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't write: {error}") from error


def _note(text: str) -> None:
    print(f"headway simulate: {text}", file=sys.stderr, flush=True)


class _Bar:
    """Notes each tenth of the trace."""

    def __init__(self) -> None:
        self._tenths = 0

    def __call__(self, share: float) -> None:
        if int(share * 10) > self._tenths:
            self._tenths = int(share * 10)
            _note(f"{self._tenths * 10} %")
