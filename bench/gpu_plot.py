"""Draws what bench/gpu.py measured: swap against recompute, and prefill rate over ITL."""

from typing import Any


def plot(document: dict[str, Any]) -> str:
    """The SVG of a document of `bench/gpu.py`, of what it holds."""
    swapped, arranged = _measured(document, "swap"), _measured(document, "lanes")
    panels = [
        (
            "seconds: back from the host (dots), computed again (rings)",
            [(s["tokens"], s["swap_in_s"], True) for s in swapped]
            + [(s["tokens"], s["recompute_s"], False) for s in swapped],
        ),
        (
            "prefill tokens/s over ITL p90 in ms: one lane (rings), split (dots)",
            [(1e3 * o["itl_p90_s"], o["prefill_tokens_per_s"], "chunk" not in o) for o in arranged],
        ),
    ]
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="900" height="330" font-size="12">']
    parts.append('<rect width="900" height="330" fill="white"/>')
    for place, (title, points) in enumerate(panels):
        left = 60 + 440 * place
        right = max((x for x, _, _ in points), default=1) or 1
        top = max((y for _, y, _ in points), default=1) or 1
        parts.append(f'<text x="{left}" y="20">{title}</text>')
        for step in range(5):
            x, y = left + 340 * step / 4, 290 - 240 * step / 4
            parts.append(f'<text x="{x:.0f}" y="310">{right * step / 4:.4g}</text>')
            parts.append(f'<text x="{left - 50}" y="{y:.0f}">{top * step / 4:.3g}</text>')
        for x, y, full in points:
            at = (left + 340 * x / right, 290 - 240 * y / top)
            fill = "#1d6fb8" if full else "none"
            parts.append(
                f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="{fill}" stroke="#1d6fb8"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _measured(document: dict[str, Any], part: str) -> list[dict[str, float]]:
    """Of the first arrangement that got there."""
    of_all = document.get(part, {})
    return next((of_one["measured"] for of_one in of_all.values()), [])
