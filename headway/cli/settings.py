"""Settings from four places: the command line, the environment, a file, and what is declared."""

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headway.cli.kinds import SWITCH, Kind, file_text, parsed
from headway.errors import ConfigError

PREFIX = "HEADWAY_"
CONFIG_VARIABLE = PREFIX + "CONFIG"

_SERVICE_LINKS = re.compile(r"HEADWAY_(SERVICE_.+|PORT_.+)")
"""What Kubernetes puts into the environment of a pod beside a service called `headway`; it sets
HEADWAY_PORT to an URL besides."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting, for the command line, the environment, the file and the reference page.

    name: as in the file; `--NAME` on the command line, unless `positional`.
    help: one line. It says what no value means where `default` is None.
    default: as text.
    secret: its value is never shown.
    """

    name: str
    kind: Kind
    group: str
    help: str
    default: str | None = None
    positional: bool = False
    secret: bool = False

    @property
    def attribute(self) -> str:
        """Its name in a namespace."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> str:
        """How the command line has it."""
        return self.name.upper() if self.positional else f"--{self.name}"

    @property
    def variable(self) -> str:
        """How the environment has it."""
        return PREFIX + self.attribute.upper()


class Origin(Enum):
    """Where a value comes from; an earlier one is stronger."""

    FLAG = "command line"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting resolved. text: None where nothing is given and nothing is the default."""

    option: Option
    text: str | None
    value: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class Places:
    """Where settings are looked for. file: a TOML file, or None."""

    flags: Mapping[str, object]
    environment: Mapping[str, str]
    file: Path | None


def places(settings: argparse.Namespace, environment: Mapping[str, str]) -> Places:
    """The places that a command line and the environment name. Raises ConfigError for a file
    without a name: a script's variable that was not set, most often."""
    flags = vars(settings)
    file = flags.get("config") or environment.get(CONFIG_VARIABLE)
    if file == "":
        raise ConfigError(f"{CONFIG_VARIABLE} is empty")
    return Places(flags, environment, None if file is None else Path(str(file)))


def resolve(
    options: Sequence[Option], where: Places, known: Iterable[Option] = ()
) -> list[Setting]:
    """Each setting's value, of the strongest place that has one.

    known: further options that may stand in the environment and the file without an effect here.
    Raises ConfigError for a wrong value, and for a name that nobody knows.
    """
    every = (*options, *known)
    variables = _variables(where.environment, every)
    content = {} if where.file is None else _read(where.file, every)
    return [_setting(option, where, variables, content) for option in options]


def namespace(settings: Iterable[Setting]) -> argparse.Namespace:
    """The values by attribute."""
    return argparse.Namespace(**{s.option.attribute: s.value for s in settings})


def _setting(
    option: Option, where: Places, variables: Mapping[str, str], content: Mapping[str, object]
) -> Setting:
    flag = where.flags.get(option.attribute)
    if flag is not None:
        return _given(option, str(flag), option.flag, Origin.FLAG)
    if option.variable in variables:
        return _given(option, variables[option.variable], option.variable, Origin.ENVIRONMENT)
    if option.name in content:
        named = f"{option.name} in {where.file}"
        text = file_text(option.kind, content[option.name], named)
        return _given(option, text, named, Origin.FILE)
    if option.default is None:
        return Setting(option, None, None, Origin.DEFAULT)
    return _given(option, option.default, option.name, Origin.DEFAULT)


def _given(option: Option, text: str, where: str, origin: Origin) -> Setting:
    return Setting(option, text, parsed(option.kind, text, where), origin)


def _variables(environment: Mapping[str, str], options: Sequence[Option]) -> dict[str, str]:
    ours = {
        name: text
        for name, text in environment.items()
        if name.startswith(PREFIX) and not _is_service_link(name, text)
    }
    _check_names(ours, [CONFIG_VARIABLE, *(o.variable for o in options)], "the environment")
    return ours


def _is_service_link(name: str, text: str) -> bool:
    return _SERVICE_LINKS.fullmatch(name) is not None or (
        name == "HEADWAY_PORT" and text.startswith(("tcp://", "udp://"))
    )


def _read(path: Path, options: Sequence[Option]) -> dict[str, object]:
    try:
        with path.open("rb") as stream:
            content = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    _check_names(content, [option.name for option in options], str(path))
    return content


def _check_names(given: Iterable[str], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where} has {name}, which is no setting{hint}")


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Put options on a command line. What isn't given is not in the namespace; `resolve` does the
    rest."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        _add(groups[option.group], option)


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    help = option.help if option.default is None else f"{option.help}; default: {option.default}"
    help = help.replace("%", "%%")
    if option.positional:
        group.add_argument(
            option.attribute,
            nargs="?",
            metavar=option.flag,
            default=argparse.SUPPRESS,
            help=help,
        )
    elif option.kind is SWITCH:
        group.add_argument(
            option.flag,
            action="store_const",
            const="true",
            default=argparse.SUPPRESS,
            help=option.help.replace("%", "%%"),
        )
    else:
        group.add_argument(
            option.flag, metavar=option.kind.metavar, default=argparse.SUPPRESS, help=help
        )


def shown(settings: Iterable[Setting]) -> Iterator[str]:
    """Settings as the lines of a TOML file, each with where its value comes from."""
    for setting in settings:
        option, text = setting.option, setting.text
        if text is None:
            yield f"# {option.name} is not set"
        elif option.secret:
            yield f"# {option.name} is not shown  # {setting.origin.value}"
        else:
            yield f"{option.name} = {option.kind.toml(text)}  # {setting.origin.value}"
