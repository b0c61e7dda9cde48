"""The live page's colours: told apart by everybody, and text that can be read."""

import math
import re
from itertools import combinations, product

import pytest

from tests.packaging.project import ROOT

STYLE = (ROOT / "headway/server/dashboard/static/style.css").read_text()
SIGHTS = ("normal", "protanopia", "deuteranopia", "tritanopia", "none")
CLASSES = ("realtime", "standard", "batch")

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB; the last sees lightness alone.
MATRICES = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "none": ((0.2126, 0.7152, 0.0722),) * 3,
}

Colour = tuple[float, float, float]


def themes() -> dict[str, dict[str, Colour]]:
    """Linear RGB of the dark and the light theme's colours."""
    dark, light = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    pairs = {
        name: re.findall(r"--([\w-]+): #(\w{6});", text)
        for name, text in (("dark", dark), ("light", light))
    }
    return {name: {key: linear(value) for key, value in found} for name, found in pairs.items()}


def linear(value: str) -> Colour:
    """Of a hexadecimal sRGB colour."""
    parts = [int(value[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return red, green, blue


def seen(colour: Colour, sight: str) -> Colour:
    """What is left of a colour for somebody."""
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True))))
        for row in MATRICES[sight]
    )
    return red, green, blue


def luminance(colour: Colour) -> float:
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), colour, strict=True))


def contrast(one: Colour, other: Colour) -> float:
    """WCAG's ratio."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def difference(one: Colour, other: Colour) -> float:
    """CIE76 in L*a*b*."""
    return math.dist(lab(one), lab(other))


def lab(colour: Colour) -> Colour:
    """Of linear sRGB under D65."""
    rows = (
        (0.4124 / 0.9505, 0.3576 / 0.9505, 0.1805 / 0.9505),
        (0.2126, 0.7152, 0.0722),
        (0.0193 / 1.089, 0.1192 / 1.089, 0.9505 / 1.089),
    )
    x, y, z = (sum(a * b for a, b in zip(row, colour, strict=True)) for row in rows)
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize(("sight", "least"), [("normal", 25), *((s, 12) for s in SIGHTS[1:-1])])
def test_classes_are_told_apart(theme: str, sight: str, least: float) -> None:
    """A difference of 2.3 is just noticeable."""
    colours = {name: seen(colour, sight) for name, colour in themes()[theme].items()}
    for one, other in combinations(CLASSES, 2):
        assert difference(colours[one], colours[other]) >= least, (one, other)
    for one, other in product(CLASSES, ("free", "cached")):
        assert difference(colours[one], colours[other]) >= 8, (one, other)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_realtime_and_batch_differ_without_any_hue(theme: str) -> None:
    colours = themes()[theme]
    assert difference(*(seen(colours[name], "none") for name in ("realtime", "batch"))) >= 15


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_text_can_be_read(theme: str) -> None:
    colours = themes()[theme]
    for text in ("text", "muted"):
        for ground in ("back", "card"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["on-press"], colours["press"]) >= 4.5
    assert contrast(colours["focus"], colours["card"]) >= 3
    for name in ("realtime", "standard"):
        assert contrast(colours[name], colours["card"]) >= 3, name
