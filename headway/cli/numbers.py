"""Numbers on the command line; what is wrong with one is an argparse error of one line."""

import argparse

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def count(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def positive(text: str, unit: str = "") -> float:
    """A finite number above 0; `unit` is for the message."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        of_what = f" of {unit}" if unit else ""
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number{of_what}")
    return value


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def milliseconds(text: str) -> float:
    """Seconds, from a positive number of milliseconds."""
    return positive(text, "milliseconds") / 1000


def assignments(text: str) -> dict[str, float]:
    """NAME=NUMBER, separated by commas."""
    values = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=NUMBER")
        values[name.strip()] = number(value)
    return values


def gigabytes(text: str) -> float:
    """Bytes, from a positive number of gigabytes."""
    return positive(text, "gigabytes") * 1e9


def duration(text: str) -> float:
    """Seconds, from a number and a unit: `90s`, `15m`, `24h`, `7d`."""
    if text[-1:] not in _UNITS_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 24h or 7d")
    return positive(text[:-1], "such time") * _UNITS_S[text[-1]]


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value
