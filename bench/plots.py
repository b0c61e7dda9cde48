"""Draws the plots of docs/claims.md from what `headway simulate --json` wrote, and that of
docs/benchmarks.md from what bench/peers/mixed.py wrote.

    python bench/plots.py ttft OUT.svg FILE.json…
    python bench/plots.py trade OUT.svg FILE.json…
    python bench/plots.py mixed OUT.svg mixed.json

ttft: realtime's time to first token, a curve for each cell. trade: batch tokens per second over the
p99 of realtime's time to first token, a point for each cell. mixed: batch tokens per second over
the p99 of realtime's inter-token latency under the flood, a point for each server and share u of
realtime; Headway's targets are joined.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from statistics import median
from typing import Any

from headway.simulate.plot import STYLE

WIDTH, HEIGHT, LEFT, TOP, RIGHT = 420, 230, 60, 34, 150
COLOURS = ("a", "b", "c", "d", "ink")
TICKS_MS = (10, 30, 100, 300, 1000, 3000, 10_000)
TICKS = [(ms, f"{ms} ms" if ms < 1000 else f"{ms // 1000} s") for ms in TICKS_MS]


@dataclass(frozen=True, slots=True)
class Axes:
    """Places of values; `log` for the horizontal one."""

    low: float
    high: float
    top: float
    log: bool = False

    def x(self, value: float) -> float:
        """Pixels from the left."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = log10(low), log10(high), log10(at)
        return LEFT + WIDTH * (at - low) / (high - low)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return TOP + HEIGHT * (1 - value / self.top)


Cell = Mapping[str, Any]
"""What a cell's file holds."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=PLOTS)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    args.out.write_text(drawing(PLOTS[args.what](cells_of(args.files))))


def cells_of(paths: Sequence[Path]) -> list[Cell]:
    """All cells of the files."""
    return [cell for path in paths for cell in json.loads(path.read_bytes())["cells"]]


def drawing(parts: Iterator[str]) -> str:
    """A document that refers to nothing outside itself."""
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + 46
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    head += f'width="{width}" height="{height}">{STYLE}'
    paper = f'<rect width="{width}" height="{height}" class="paper"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"


def ttft(cells: Sequence[Cell]) -> Iterator[str]:
    """Cumulative distributions."""
    axes = Axes(TICKS_MS[0], TICKS_MS[-1], 1.0, log=True)
    yield title("Realtime's time to first token, share of requests (simulated)")
    yield from vertical(axes, TICKS)
    yield from horizontal(axes, [(share, f"{share:.0%}") for share in (0, 0.5, 0.9)])
    for place, cell in enumerate(cells):
        colour, seen = COLOURS[place % len(COLOURS)], cell["figures"]["classes"]["realtime"]["ttft"]
        yield curve(axes, [(v * 1e3, i / 100) for i, v in enumerate(seen["levels"])], colour)
        yield word(LEFT + WIDTH + 12, TOP + 14 + 18 * place, name(cell), colour)


def trade(cells: Sequence[Cell]) -> Iterator[str]:
    """What batch gets, and what realtime sees."""
    rates = [c["figures"]["classes"]["batch"]["tokens_per_s"] for c in cells]
    axes = Axes(TICKS_MS[0], TICKS_MS[-1], 1.15 * max(rates), log=True)
    yield title("Batch tokens/s over p99 of realtime's time to first token (simulated)")
    yield from vertical(axes, TICKS)
    yield from horizontal(axes, [(v, f"{v:,}") for v in range(0, int(axes.top) + 1, 1000)])
    for place, (cell, rate) in enumerate(zip(cells, rates, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        x = axes.x(cell["figures"]["classes"]["realtime"]["ttft"]["p99"] * 1e3)
        yield f'<circle cx="{x:.1f}" cy="{axes.y(rate):.1f}" r="4" class="{colour}"/>'
        yield word(x + 8, axes.y(rate) + 4, name(cell), colour)


def mixed(cells: Sequence[Cell]) -> Iterator[str]:
    """Medians over the rounds: what batch gets, and how steadily realtime's tokens come."""
    points = flooded(cells)
    most = 1.15 * max(rate for own in points.values() for _, rate in own)
    axes, step = Axes(TICKS_MS[0], TICKS_MS[-1], most, log=True), 10 ** int(log10(most)) / 2
    yield title("Batch tokens/s over p99 of realtime's inter-token latency under the flood")
    yield from vertical(axes, TICKS)
    levels = [i * step for i in range(int(most / step) + 1)]
    yield from horizontal(axes, [(level, f"{level:,.0f}") for level in levels])
    families = list(dict.fromkeys(family for family, _ in points))
    for place, family in enumerate(families):
        yield word(LEFT + WIDTH + 12, TOP + 14 + 18 * place, family, COLOURS[place % len(COLOURS)])
    for (family, u), own in points.items():
        colour = COLOURS[families.index(family) % len(COLOURS)]
        yield curve(axes, own, colour)
        places = [(axes.x(ms), axes.y(rate)) for ms, rate in own]
        yield from (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{colour}"/>' for x, y in places
        )
        x, y = places[-1]
        yield word(x + 6, y + 4, f"u {u:g}", colour)


def flooded(cells: Sequence[Cell]) -> dict[tuple[str, float], list[tuple[float, float]]]:
    """Points (ms, tokens/s) by server and u, one for each of its targets if it has any."""
    figures: dict[tuple[str, float], dict[str, list[Cell]]] = {}
    for cell in cells:
        if cell["flood"] and cell["u"]:
            family = cell["server"].partition(", ITL target")[0]
            own = figures.setdefault((family, cell["u"]), {})
            own.setdefault(cell["server"], []).append(cell)
    return {
        case: [
            (median(c["itl_p99"] for c in seen), median(c["batch_tokens_per_s"] for c in seen))
            for seen in own.values()
        ]
        for case, own in figures.items()
    }


def name(cell: Cell) -> str:
    """The policy, and how many batch requests there were."""
    settings = cell["settings"]
    batch = "realtime alone" if not settings["backlog"] else f"{settings['backlog']} batch"
    return f"{settings['policy']}, {batch}"


def title(text: str) -> str:
    """Above the plot."""
    return word(LEFT, TOP - 14, text)


def vertical(axes: Axes, ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
    """Lines up, with their words below."""
    for value, text in ticks:
        at = axes.x(value)
        yield f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{TOP + HEIGHT}" class="grid"/>'
        yield word(at, TOP + HEIGHT + 18, text, anchor="middle")


def horizontal(axes: Axes, ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
    """Lines across, with their words at the left."""
    for value, text in ticks:
        at = axes.y(value)
        yield f'<line x1="{LEFT}" y1="{at:.1f}" x2="{LEFT + WIDTH}" y2="{at:.1f}" class="grid"/>'
        yield word(LEFT - 6, at + 4, text, anchor="end")


def curve(axes: Axes, points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    """A line through points."""
    places = " ".join(f"{axes.x(a):.1f},{axes.y(b):.1f}" for a, b in points)
    return f'<polyline points="{places}" class="{colour}" stroke-dasharray="{dashes}"/>'


def word(x: float, y: float, text: str, colour: str = "", anchor: str = "start") -> str:
    """Text at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{colour}" text-anchor="{anchor}">{text}</text>'


PLOTS = {"ttft": ttft, "trade": trade, "mixed": mixed}

if __name__ == "__main__":
    main()
