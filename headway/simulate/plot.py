"""Plots as SVG, drawn by hand, readable by day and by night: distributions by class and cell."""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from headway.core.types import ServiceClass
from headway.simulate.cells import Cell
from headway.simulate.decades import LEVELS, Decades
from headway.simulate.figures import ClassFigures, Figures, Spread
from headway.simulate.report import title

_WIDTH, _HEIGHT, _MARGIN, _GAP = 340, 240, 48, 36
STYLE = (
    "<style>"
    "svg{--ink:#1c2430;--paper:#fff;--line:#d8dde4;--a:#c2410c;--b:#1d6fb8;--c:#4d7c0f;--d:#7c3aed}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6e9ee;--paper:#14181f;--line:#37404c;"
    "--a:#fb923c;--b:#60a5fa;--c:#a3e635;--d:#c4b5fd}}"
    ".paper{fill:var(--paper)}text{fill:var(--ink);font:11px system-ui,sans-serif}"
    ".grid{stroke:var(--line)}.ink{stroke:var(--ink)}polyline,circle{fill:none;stroke-width:1.6}"
    ".a{stroke:var(--a)}.b{stroke:var(--b)}.c{stroke:var(--c)}.d{stroke:var(--d)}"
    "text.a{fill:var(--a);stroke:none}text.b{fill:var(--b);stroke:none}"
    "text.c{fill:var(--c);stroke:none}text.d{fill:var(--d);stroke:none}"
    "text.ink{stroke:none}"
    "</style>"
)
"""Of an SVG. `a` to `d`: four colours of lines and of words."""

_COLOURS = {ServiceClass.REALTIME: "a", ServiceClass.STANDARD: "b", ServiceClass.BATCH: "c"}
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")

_Pick = Callable[[ClassFigures], Spread]


def _ttft(seen: ClassFigures) -> Spread:
    return seen.ttft


def _itl(seen: ClassFigures) -> Spread:
    return seen.itl


def _tpot(seen: ClassFigures) -> Spread:
    return seen.tpot


_PANELS: tuple[tuple[str, _Pick], ...] = (
    ("time to first token", _ttft),
    ("time between tokens (ITL)", _itl),
    ("mean time a token (TPOT)", _tpot),
)


def svg(cells: Sequence[Cell], results: Sequence[Figures]) -> str:
    """Three panels of cumulative distributions: a colour a class, a dash pattern a cell."""
    pairs = list(zip(cells, results, strict=True))
    width = _MARGIN + len(_PANELS) * (_WIDTH + _GAP)
    height = _HEIGHT + 2 * _MARGIN + 16 * len(cells) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">{STYLE}',
        f'<rect width="{width}" height="{height}" class="paper"/>',
    ]
    for index, (name, pick) in enumerate(_PANELS):
        left = _MARGIN + index * (_WIDTH + _GAP)
        parts += _panel(left, name, [(seen, pick) for _, seen in pairs])
    parts += _legend(cells, _HEIGHT + 2 * _MARGIN)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: int, name: str, curves: Sequence[tuple[Figures, _Pick]]) -> Iterator[str]:
    spreads = [
        (service_class, index, pick(seen))
        for index, (result, pick) in enumerate(curves)
        for service_class, seen in result.classes.items()
    ]
    axis = Decades(spread for _, _, spread in spreads)

    def x(place: float) -> float:
        return left + _WIDTH * place

    def y(share: float) -> float:
        return _MARGIN + _HEIGHT * (1 - share)

    yield (
        f'<text x="{left}" y="{_MARGIN - 12}" font-weight="bold">{escape(name)} (simulated)</text>'
    )
    for place, label in axis.marks():
        at = x(place)
        yield _line(at, y(0), at, y(1))
        yield f'<text x="{at:.1f}" y="{y(0) + 16}" text-anchor="middle">{label}</text>'
    for share in LEVELS:
        yield _line(left, y(share), left + _WIDTH, y(share))
        yield f'<text x="{left - 4}" y="{y(share) + 4:.1f}" text-anchor="end">{share:g}</text>'
    for service_class, index, spread in spreads:
        curve = axis.curve(spread)
        points = " ".join(f"{x(place):.1f},{y(share):.1f}" for place, share in curve)
        yield (
            f'<polyline points="{points}" class="{_COLOURS[service_class]}" '
            f'stroke-dasharray="{_DASHES[index % len(_DASHES)]}"/>'
        )


def _legend(cells: Sequence[Cell], top: int) -> Iterator[str]:
    for place, (service_class, colour) in enumerate(_COLOURS.items()):
        at = _MARGIN + 110 * place
        yield f'<text x="{at}" y="{top}" class="{colour}">{service_class.label}</text>'
    for index, cell in enumerate(cells):
        at = top + 16 * (index + 1)
        dash = _DASHES[index % len(_DASHES)]
        yield (
            f'<line x1="{_MARGIN}" y1="{at - 4}" x2="{_MARGIN + 40}" y2="{at - 4}" class="ink" '
            f'stroke-dasharray="{dash}"/>'
        )
        yield f'<text x="{_MARGIN + 48}" y="{at}">{escape(title(cell))}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="grid"/>'
