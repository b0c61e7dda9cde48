"""What a simulation says: a table for people, JSON for programs. Both say that it is simulated."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from headway.simulate.cells import Cell
from headway.simulate.figures import ClassFigures, Figures, Quartile, Spread
from headway.simulate.traces import Trace

_COLUMNS = (
    ("class", 9),
    ("requests", 9),
    ("TTFT ms p50/p90/p99", 22),
    ("ITL ms p50/p90/p99", 20),
    ("TPOT ms p50/p90/p99", 21),
    ("req/s", 7),
    ("good/s", 7),
    ("tok/s", 8),
    ("preempted", 10),
    ("swapped", 8),
    ("paused", 8),
)


def table(cell: Cell, result: Figures) -> Iterator[str]:
    """Lines for one cell: its settings, a row a class, where the time went."""
    yield f"simulated: {title(cell)}"
    yield "  " + "".join(name.rjust(width) for name, width in _COLUMNS)
    for service_class, seen in result.classes.items():
        cells = (service_class.label, *_row(seen))
        widths = (width for _, width in _COLUMNS)
        yield "  " + "".join(text.rjust(w) for text, w in zip(cells, widths, strict=True))
    if any(seen.cut for seen in result.classes.values()):
        yield "  -N: so many more ended without their whole answer, or could never fit"
    for service_class, seen in result.classes.items():
        if seen.quartiles:
            yield f"  {service_class.label} TTFT by prompt tokens: {_by_prompt(seen.quartiles)}"
    yield (
        f"  {result.span_s:.0f} s, busy {result.busy:.1%} (copies {result.copying:.1%}), "
        f"{result.steps} steps of {result.mean_rows:.1f} decode rows, "
        f"longest {result.longest_step_s * 1e3:.0f} ms"
    )
    if result.bound_tokens_per_s:
        reached = result.achieved_tokens_per_s / result.bound_tokens_per_s
        yield (
            f"  decode {result.achieved_tokens_per_s:.0f} tokens/s of at most "
            f"{result.bound_tokens_per_s:.0f} with this pool and these seats ({reached:.1%})"
        )


def title(cell: Cell) -> str:
    """A cell's settings in a line."""
    mix = cell.mix
    parts = [
        f"{cell.model.name} on {cell.device.name}",
        cell.policy,
        cell.lanes,
        f"rate x {mix.rate_scale:.3g}",
        f"at most {cell.sizes.max_step_tokens} tokens a step",
        f"{cell.sizes.max_seqs} seats",
    ]
    if cell.targets.itl_s:
        parts.append(f"ITL target {cell.targets.itl_s * 1e3:g} ms")
    if cell.targets.ttft_s:
        parts.append(f"TTFT target {cell.targets.ttft_s * 1e3:g} ms")
    if mix.backlog:
        parts.append(f"batch backlog {mix.backlog}")
    return " · ".join(parts)


def _row(seen: ClassFigures) -> tuple[str, ...]:
    requests = f"{seen.requests}" + (f" -{seen.cut}" if seen.cut else "")
    enough = seen.tail == "p99"
    return (
        requests,
        _milliseconds(seen.ttft, enough),
        _milliseconds(seen.itl, enough),
        _milliseconds(seen.tpot, enough),
        f"{seen.requests_per_s:.2f}",
        f"{seen.good_per_s:.2f}",
        f"{seen.tokens_per_s:.0f}",
        f"{seen.preemptions}",
        f"{seen.swaps}",
        f"{seen.pauses}",
    )


def _by_prompt(quartiles: Sequence[Quartile]) -> str:
    return " · ".join(
        f"<= {q.longest}: {_milliseconds(q.ttft, q.tail == 'p99')} ms" for q in quartiles
    )


def _milliseconds(spread: Spread, enough: bool) -> str:
    """Percentiles; no p99 where too few requests carry it."""
    if not spread.count:
        return "-"
    values = (spread.p50, spread.p90, spread.p99) if enough else (spread.p50, spread.p90)
    text = "/".join(f"{v * 1e3:.1f}" if v < 10 else f"{v * 1e3:.0f}" for v in values)
    return text if enough else f"{text}/-"


def document(
    cells: Sequence[Cell], results: Sequence[Figures], trace: Trace, source: str
) -> dict[str, object]:
    """All that was simulated, as JSON values. The same settings and seed give the same document."""
    path = Path(source)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return {
        "simulated": True,
        "trace": {"name": trace.name, "requests": len(trace.records), "sha256": sha256},
        "cells": [
            {"settings": settings(cell), "figures": values(result)}
            for cell, result in zip(cells, results, strict=True)
        ],
    }


def settings(cell: Cell) -> dict[str, object]:
    """What a cell was run with, device constants included."""
    capacity = cell.sizes.capacity(cell.device, cell.model)
    return {
        "device": asdict(cell.device),
        "model": cell.model.name,
        "policy": cell.policy,
        "lanes": cell.lanes,
        "kv_blocks": capacity.kv_blocks,
        "host_blocks": capacity.host_blocks,
        "block_size": capacity.block_size,
        "max_seqs": capacity.max_seqs,
        "max_step_tokens": capacity.max_step_tokens,
        "classes": {c.label: share for c, share in cell.mix.shares},
        "rate_scale": cell.mix.rate_scale,
        "backlog": cell.mix.backlog,
        "itl_target_s": cell.targets.itl_s,
        "ttft_target_s": cell.targets.ttft_s,
        "seed": cell.mix.seed,
    }


def values(result: Figures) -> dict[str, object]:
    """A result's figures. Seconds throughout; `tail` names the percentile to quote."""
    whole = {k: v for k, v in asdict(result).items() if k != "classes"}
    whole["classes"] = {
        c.label: {
            **asdict(seen),
            "quartiles": [{**asdict(q), "tail": q.tail} for q in seen.quartiles],
            "preemptions": seen.preemptions,
            "tail": seen.tail,
        }
        for c, seen in result.classes.items()
    }
    return whole
