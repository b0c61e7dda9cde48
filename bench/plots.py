"""Draws the plots of docs/claims.md from what `headway simulate --json` wrote.

    python bench/plots.py ttft FLOOD.json OUT.svg
    python bench/plots.py backlog OUT.svg FILE.json…

ttft: realtime's time to first token, a curve for each policy. backlog: batch tokens per second over
realtime's busy share u, a line for each policy, beside what is due: (1 - u) of batch alone. Needs
a file of batch alone, and of realtime alone at each rate, among its files.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

from headway.simulate.plot import STYLE

WIDTH, HEIGHT, LEFT, TOP, RIGHT = 420, 230, 60, 34, 150
COLOURS = {"tiered": "a", "weighted": "d", "fcfs": "b", "static": "c"}
TICKS_MS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000)


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


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("ttft", "backlog"))
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    if args.what == "ttft":
        source, out = args.files
        out.write_text(drawing(ttft(cells_of([source]))))
    else:
        out, *sources = args.files
        out.write_text(drawing(backlog(cells_of(sources))))


def cells_of(paths: Sequence[Path]) -> list[dict]:
    """All cells of the files."""
    return [cell for path in paths for cell in json.loads(path.read_bytes())["cells"]]


def drawing(parts: Iterator[str]) -> str:
    """A document that refers to nothing outside itself."""
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + 46
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    head += f'width="{width}" height="{height}">{STYLE}'
    paper = f'<rect width="{width}" height="{height}" class="paper"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"


def ttft(cells: Sequence[dict]) -> Iterator[str]:
    """Cumulative distributions."""
    axes = Axes(TICKS_MS[0], TICKS_MS[-1], 1.0, log=True)
    yield title("Realtime's time to first token, share of requests (simulated)")
    yield from vertical(
        axes, [(ms, f"{ms} ms" if ms < 1000 else f"{ms // 1000} s") for ms in TICKS_MS]
    )
    yield from horizontal(axes, [(share, f"{share:.0%}") for share in (0, 0.5, 0.9, 0.99)])
    for place, cell in enumerate(cells):
        policy, seen = cell["settings"]["policy"], cell["figures"]["classes"]["realtime"]["ttft"]
        levels = [(v * 1e3, i / 100) for i, v in enumerate(seen["levels"])]
        yield curve(axes, levels, COLOURS[policy])
        tail = f"{policy}: p99 {seen['p99'] * 1e3:,.0f} ms"
        yield word(LEFT + WIDTH + 12, TOP + 14 + 18 * place, tail, COLOURS[policy])


def backlog(cells: Sequence[dict]) -> Iterator[str]:
    """Batch tokens per second over u."""
    alone = max(c["figures"]["classes"]["batch"]["tokens_per_s"] for c in cells if batch_only(c))
    shares = {
        c["settings"]["rate_scale"]: c["figures"]["busy"]
        for c in cells
        if not c["settings"]["backlog"] and "realtime" in c["figures"]["classes"]
    }
    axes = Axes(0.0, 0.8, 1.1 * alone)
    yield title("Batch tokens per second beside realtime (simulated)")
    yield from vertical(axes, [(u / 10, f"u = {u / 10:g}") for u in range(0, 9, 2)])
    steps = range(0, int(axes.top) + 1, 1000)
    yield from horizontal(axes, [(value, f"{value:,}") for value in steps])
    yield curve(axes, [(0.0, alone), (0.8, 0.2 * alone)], "ink", dashes="4 4")
    yield word(axes.x(0.8) + 12, axes.y(0.2 * alone) + 4, "due: 1 - u")
    for policy, colour in COLOURS.items():
        points = sorted(
            (shares[c["settings"]["rate_scale"]], c["figures"]["classes"]["batch"]["tokens_per_s"])
            for c in cells
            if c["settings"]["policy"] == policy
            and flooded(c)
            and c["settings"]["rate_scale"] in shares
        )
        if points:
            yield curve(axes, [(0.0, alone), *points] if policy == "tiered" else points, colour)
            for u, rate in points:
                at = f'cx="{axes.x(u):.1f}" cy="{axes.y(rate):.1f}"'
                yield f'<circle {at} r="3" class="{colour}"/>'
            place = list(COLOURS).index(policy)
            yield word(LEFT + WIDTH + 12, TOP + 14 + 18 * place, policy, colour)


def batch_only(cell: dict) -> bool:
    """Whether no realtime was about."""
    return "realtime" not in cell["figures"]["classes"]


def flooded(cell: dict) -> bool:
    """Whether batch requests waited without end beside realtime."""
    return cell["settings"]["backlog"] > 256 and not batch_only(cell)


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


if __name__ == "__main__":
    main()
