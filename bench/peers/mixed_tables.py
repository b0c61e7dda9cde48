"""What one load of bench/peers/mixed.py showed, and the tables of all of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from headway.bench.rounds import estimate
from headway.simulate.figures import ENOUGH_FOR_P99

NOTHING = {"p50": 0.0, "p90": 0.0, "p99": 0.0, "levels": ()}


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement; times in milliseconds.

    u: share of the time realtime alone keeps Headway busy; 0 is no realtime. ttft_levels: at 101
    even levels.
    """

    server: str
    turn: int
    u: float
    flood: bool
    requests: int
    errors: int
    ttft_p50: float
    ttft_p90: float
    ttft_levels: tuple[float, ...]
    itl_p50: float
    itl_p99: float
    batch_tokens_per_s: float
    doubts: str

    @staticmethod
    def of(server: str, turn: int, u: float, flood: bool, said: dict[str, Any]) -> "Cell":
        """From the JSON of `headway bench serve`."""
        classes = said["classes"]
        realtime = classes.get("realtime", {"requests": 0, "ttft": NOTHING, "itl": NOTHING})
        ttft, itl = realtime["ttft"], realtime["itl"]
        return Cell(
            server,
            turn,
            u,
            flood,
            realtime["requests"],
            sum(sum(seen["errors"].values()) for seen in classes.values()),
            1e3 * ttft["p50"],
            1e3 * ttft["p90"],
            tuple(1e3 * level for level in ttft["levels"]),
            1e3 * itl["p50"],
            1e3 * itl["p99"],
            classes["batch"]["tokens_per_s"] if "batch" in classes else 0.0,
            "; ".join(said["doubts"]),
        )

    def __str__(self) -> str:
        """For a person who waits."""
        what = f"u = {self.u:g}" + (" under the flood" if self.flood else " alone")
        return (
            f"{self.server}, {what if self.u else 'batch alone'}: {self.requests} requests, "
            f"TTFT {self.ttft_p50:.0f} / {self.ttft_p90:.0f} ms, ITL p50 {self.itl_p50:.1f} ms, "
            f"batch {self.batch_tokens_per_s:.0f} tokens/s, {self.errors} errors {self.doubts}"
        )


def tables(cells: Sequence[Cell]) -> Iterator[str]:
    """Markdown: realtime, then batch; a row a server and u."""
    yield from realtime_table(cells)
    yield ""
    yield from batch_table(cells)
    doubts = dict.fromkeys(f"{c.server}, u = {c.u:g}: {c.doubts}" for c in cells if c.doubts)
    if doubts:
        yield "\nDoubtful, as the load client said:\n"
        yield from (f"- {doubt}" for doubt in doubts)


def rows(cells: Sequence[Cell]) -> Iterator[tuple[float, str, list[Cell], list[Cell]]]:
    """u, server, and its cells of realtime alone and under the flood, where there are both."""
    for u in sorted({c.u for c in cells if c.u}):
        for name in dict.fromkeys(c.server for c in cells):
            own = [c for c in cells if c.server == name and c.u == u]
            alone, under = ([c for c in own if c.flood is flood] for flood in (False, True))
            if alone and under:
                yield u, name, alone, under


def realtime_table(cells: Sequence[Cell]) -> Iterator[str]:
    """What a realtime request sees alone, and under the flood."""
    yield (
        "| u | server | TTFT p50 alone, ms | under the flood | TTFT p90 alone | under the flood "
        "| TTFT p99 alone | under the flood | ITL p50 alone | under the flood | ITL p99 alone "
        "| under the flood |"
    )
    yield "|---" * 12 + "|"
    for u, name, alone, under in rows(cells):
        errors = sum(c.errors for c in alone + under)
        parts = [f"{u:g}", name + (f" ({errors} errors)" if errors else "")]
        for figure in ("ttft_p50", "ttft_p90"):
            parts += [over_rounds(own, attrgetter(figure)) for own in (alone, under)]
        parts += [p99_of_all(own) for own in (alone, under)]
        for figure in ("itl_p50", "itl_p99"):
            parts += [over_rounds(own, attrgetter(figure)) for own in (alone, under)]
        yield "| " + " | ".join(parts) + " |"


def batch_table(cells: Sequence[Cell]) -> Iterator[str]:
    """What batch gets beside realtime."""
    yield "| u | server | batch alone, tokens/s | beside realtime | of batch alone | of (1 − u) |"  # noqa: RUF001
    yield "|---" * 6 + "|"
    for u, name, _, under in rows(cells):
        by_turn = {c.turn: c for c in cells if c.server == name and c.flood and not c.u}
        both = [(by_turn[c.turn], c) for c in under if c.turn in by_turn]
        shares = [
            beside.batch_tokens_per_s / alone.batch_tokens_per_s
            for alone, beside in both
            if alone.batch_tokens_per_s
        ]
        parts = [
            f"{u:g}",
            name,
            over_rounds([alone for alone, _ in both], lambda c: c.batch_tokens_per_s),
            over_rounds(under, lambda c: c.batch_tokens_per_s),
            interval(shares) if shares else "-",
            interval([share / (1 - u) for share in shares]) if shares and u < 1 else "-",
        ]
        yield "| " + " | ".join(parts) + " |"


def p99_of_all(cells: Sequence[Cell]) -> str:
    """p99 of TTFT over the requests of all rounds, where they are enough to carry it."""
    if sum(c.requests for c in cells) < ENOUGH_FOR_P99:
        return "-"
    levels = sorted(level for c in cells for level in c.ttft_levels)
    return short(levels[round(0.99 * (len(levels) - 1))])


def over_rounds(cells: Sequence[Cell], figure: Callable[[Cell], float]) -> str:
    """A figure's median over the rounds, and its interval."""
    return interval([figure(c) for c in cells]) if cells else "-"


def interval(values: Sequence[float]) -> str:
    """Median and 95 % interval; the median alone if there is one value."""
    seen = estimate(values)
    if len(values) == 1:
        return short(seen.median)
    return f"{short(seen.median)} ({short(seen.low)} to {short(seen.high)})"


def short(value: float) -> str:
    """Three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{1 if value >= 10 else 2}f}"
