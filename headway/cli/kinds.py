"""How the values of settings are written, on the command line, in the environment and in a file."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.cli.numbers import count, gigabytes, milliseconds, natural, positive
from headway.config import ByClass
from headway.core.types import ServiceClass
from headway.errors import ConfigError

CLASSES = tuple(service_class.label for service_class in ServiceClass)


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one kind are written.

    metavar: what stands for a value in help and documents.
    parse: a value from its text; raises ArgumentTypeError or ConfigError.
    file: text from what a TOML file holds; None where that has another type.
    toml: the text as TOML.
    """

    metavar: str
    parse: Callable[[str], object]
    file: Callable[[object], str | None]
    toml: Callable[[str], str]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.translate({code: f"\\u{code:04x}" for code in (*range(32), 127)}) + '"'


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _figure(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return str(value)


def _switch(value: object) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None


def _listed(value: object) -> str | None:
    if isinstance(value, list) and all(isinstance(v, str) and "," not in v for v in value):
        return ",".join(value)
    return _text(value)


def _assigned(value: object) -> str | None:
    if not isinstance(value, dict):
        return _text(value)
    figures = {name: _figure(figure) for name, figure in value.items()}
    if None in figures.values():
        return None
    return ",".join(f"{name}={figure}" for name, figure in figures.items())


def _parsed_switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} holds an empty name")
    return names


def _list_toml(text: str) -> str:
    return "[" + ", ".join(_quoted(name) for name in _names(text)) + "]"


def _table_toml(text: str) -> str:
    figures = _class_figures(text, float)
    return "{" + ", ".join(f"{c.label} = {v:.15g}" for c, v in figures.items()) + "}"


def _figure_toml(text: str) -> str:
    return f"{float(text):.15g}"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds, from 0")
    return value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port, 0 to 65535")
    return int(text)


def _megabytes(text: str) -> int:
    return int(positive(text, "megabytes") * 1e6)


def _filled(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _class_figures(text: str, parse: Callable[[str], float]) -> dict[ServiceClass, float]:
    """`realtime=N,batch=M` as figures by class. Raises ArgumentTypeError."""
    given: dict[ServiceClass, float] = {}
    for part in text.split(","):
        name, equals, figure = part.strip().partition("=")
        if not equals or name.strip() not in CLASSES:
            known = ",".join(f"{label}=N" for label in CLASSES)
            raise argparse.ArgumentTypeError(f"{part!r} is no figure for a class; as in {known}")
        service_class = ServiceClass[name.strip().upper()]
        if service_class in given:
            raise argparse.ArgumentTypeError(f"{name.strip()} is given twice")
        given[service_class] = parse(figure.strip())
    return given


def _by_class(parse: Callable[[str], float]) -> Callable[[str], ByClass]:
    return lambda text: ByClass(**{c.label: v for c, v in _class_figures(text, parse).items()})


TEXT = Kind("TEXT", _filled, _text, _quoted)
PATH = Kind("PATH", lambda text: Path(_filled(text)), _text, _quoted)
NAMES = Kind("NAME[,NAME…]", _names, _listed, _list_toml)
COUNT = Kind("N", count, _figure, _figure_toml)
NATURAL = Kind("N", natural, _figure, _figure_toml)
PORT = Kind("PORT", _port, _figure, _figure_toml)
SECONDS = Kind("S", _seconds, _figure, _figure_toml)
MILLISECONDS = Kind("MS", milliseconds, _figure, _figure_toml)
MEGABYTES = Kind("MB", _megabytes, _figure, _figure_toml)
GIGABYTES = Kind("GB", lambda text: int(gigabytes(text)), _figure, _figure_toml)
SWITCH = Kind("", _parsed_switch, _switch, str)
COUNTS_BY_CLASS = Kind("CLASS=N[,…]", _by_class(count), _assigned, _table_toml)
SECONDS_BY_CLASS = Kind("CLASS=S[,…]", _by_class(positive), _assigned, _table_toml)


def choice(words: Sequence[str]) -> Kind:
    """One of several words."""

    def parse(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of: {', '.join(words)}")
        return text

    return Kind("|".join(words), parse, _text, _quoted)


def parsed(kind: Kind, text: str, where: str) -> object:
    """A value. Raises ConfigError that says where it was given."""
    try:
        return kind.parse(text)
    except (argparse.ArgumentTypeError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None


def file_text(kind: Kind, value: object, where: str) -> str:
    """The text of what a file holds. Raises ConfigError for a value of another type."""
    text = kind.file(value)
    if text is None:
        raise ConfigError(f"{where}: {_shortened(value)} is not of the right type")
    return text


def _shortened(value: object) -> str:
    words = f"{value!r}" if not isinstance(value, Mapping) else "a table"
    return words if len(words) <= 40 else words[:37] + "..."
