"""A report of a load as one HTML file: the table, and plots drawn as SVG, readable by day and by
night. It refers to nothing outside itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from math import ceil

from headway.bench.outcomes import Outcome, headings, row
from headway.bench.replay import Recording
from headway.core.types import ServiceClass
from headway.simulate.decades import LEVELS, Decades
from headway.simulate.figures import Spread

_WIDTH, _HEIGHT, _LEFT, _TOP = 420, 220, 56, 28
_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fff;--line:#d8dde4;--realtime:#c2410c;
--standard:#1d6fb8;--batch:#4d7c0f}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--paper:#14181f;--line:#37404c;
--realtime:#fb923c;--standard:#60a5fa;--batch:#a3e635}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;
max-width:1000px;padding:0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left}
.scroll{overflow-x:auto}.plots{display:flex;flex-wrap:wrap;gap:1.5rem;margin-top:1.5rem}
svg{max-width:100%;height:auto}svg text{fill:var(--ink);font:11px system-ui,sans-serif}
.grid{stroke:var(--line)}.realtime{stroke:var(--realtime)}.standard{stroke:var(--standard)}
.batch{stroke:var(--batch)}polyline{fill:none;stroke-width:1.8}circle{stroke-width:1.5;fill:none}
.standard{stroke-dasharray:6 3}.batch{stroke-dasharray:2 3}
.doubt{border-left:4px solid var(--realtime);padding-left:.8rem}
dt{float:left;clear:left;width:9rem}dd{margin-left:9.5rem}
"""


def page(result: Outcome, recording: Recording, settings: Mapping[str, object]) -> str:
    """The whole document."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Load report</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Load report</h1><dl>",
        *(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in settings.items()),
        "</dl>",
        *(f'<p class="doubt">Doubtful: {escape(doubt)}.</p>' for doubt in result.doubts),
        *_table(result),
        '<div class="plots">',
        *_distribution("Time to first token", {c: s.ttft for c, s in result.classes.items()}),
        *_distribution("Time between tokens", {c: s.itl for c, s in result.classes.items()}),
        *_rates(recording),
        *_first_tokens(recording),
        "</div></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _table(result: Outcome) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th>{escape(name)}</th>" for name in headings())
    yield "</tr></thead><tbody>"
    for service_class, seen in result.classes.items():
        cells = "".join(f"<td>{escape(text)}</td>" for text in row(seen))
        yield f"<tr><td>{service_class.label}</td>{cells}</tr>"
    yield "</tbody></table></div>"


def _distribution(title: str, spreads: Mapping[ServiceClass, Spread]) -> Iterator[str]:
    """Cumulative, over a logarithmic axis of seconds."""
    axis = Decades(spreads.values())
    x, y = _linear(1.0, 1.0)
    yield from _opening(title)
    for place, label in axis.marks():
        yield from _upright(x(place), label)
    for share in LEVELS:
        yield from _level(y(share), f"{share:g}")
    for service_class, spread in spreads.items():
        points = [(x(place), y(share)) for place, share in axis.curve(spread)]
        yield _polyline(points, service_class)
    yield from _legend(spreads)


def _rates(recording: Recording) -> Iterator[str]:
    """Events with tokens in each second, by class."""
    start_s = min((s.due_s for s in recording.samples), default=recording.begin_s)
    length = max(ceil(recording.end_s - start_s), 1)
    counts = {s.service_class: [0] * length for s in recording.samples}
    for sample in recording.samples:
        for at_s in sample.answer.times_s:
            if at_s < recording.end_s:
                counts[sample.service_class][int(at_s - start_s)] += 1
    most = max((max(c) for c in counts.values()), default=1) or 1
    x, y = _linear(length, most)
    yield from _opening("Tokens in each second")
    yield from _axes(x, y, length, most)
    for service_class, series in sorted(counts.items()):
        points = [(x(i + 0.5), y(value)) for i, value in enumerate(series)]
        yield _polyline(points, service_class)
    yield from _legend(counts)


def _first_tokens(recording: Recording) -> Iterator[str]:
    """Time to first token over the time it was asked for."""
    seen = [s for s in recording.samples if s.answer.times_s and s.due_s < recording.end_s]
    start_s = min((s.due_s for s in seen), default=0.0)
    length = max((s.due_s - start_s for s in seen), default=1.0) or 1.0
    most = max((s.answer.ttft_s for s in seen), default=1.0) or 1.0
    x, y = _linear(length, most)
    yield from _opening("Time to first token (s), as the load went on")
    yield from _axes(x, y, length, most)
    for sample in seen:
        at = (x(sample.due_s - start_s), y(sample.answer.ttft_s))
        yield (
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2.5" '
            f'class="{sample.service_class.label}"/>'
        )
    yield from _legend({s.service_class: None for s in seen})


_Scale = Callable[[float], float]


def _linear(right: float, top: float) -> tuple[_Scale, _Scale]:
    return (
        lambda value: _LEFT + _WIDTH * value / right,
        lambda value: _TOP + _HEIGHT * (1 - value / top),
    )


def _axes(x: _Scale, y: _Scale, right: float, top: float) -> Iterator[str]:
    for step in range(5):
        yield from _upright(x(right * step / 4), f"{right * step / 4:.3g} s")
        yield from _level(y(top * step / 4), f"{top * step / 4:.3g}")


def _opening(title: str) -> Iterator[str]:
    width, height = _LEFT + _WIDTH + 24, _TOP + _HEIGHT + 44
    yield f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    yield f"<title>{escape(title)}</title>"
    yield f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(title)}</text>'


def _upright(x: float, label: str) -> Iterator[str]:
    bottom = _TOP + _HEIGHT
    yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
    yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>'


def _level(y: float, label: str) -> Iterator[str]:
    yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _WIDTH}" y2="{y:.1f}"/>'
    yield f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'


def _polyline(points: Sequence[tuple[float, float]], service_class: ServiceClass) -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{service_class.label}" points="{text}"/>'


def _legend(classes: Mapping[ServiceClass, object]) -> Iterator[str]:
    y = _TOP + _HEIGHT + 34
    for place, service_class in enumerate(sorted(classes)):
        x = _LEFT + 110 * place
        line = [(float(x), y - 4.0), (x + 26.0, y - 4.0)]
        yield _polyline(line, service_class)
        yield f'<text x="{x + 32}" y="{y}">{service_class.label}</text>'
    yield "</svg>"
