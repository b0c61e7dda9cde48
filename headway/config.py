"""What the command line and the environment settle about a server. Read here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.types import ServiceClass
from headway.errors import ConfigError

API_KEY_VARIABLE = "HEADWAY_API_KEY"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is logged, to standard error.

    level: of Python's logging, lower case; `info` has a line for each request.
    form: `text`, or `json` for an object a line.
    prompts: whether bodies of requests are logged, prompts and all, at level `info`.
    """

    level: str = "warning"
    form: str = "text"
    prompts: bool = False


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """A server's address and manners.

    host, port: where it listens; port 0 takes any free one.
    api_key: what clients must send; None lets everybody in, allowed on loopback only.
    served_name: the model's name in the API; None takes the model's own.
    default_class: service class of requests that don't say.
    drain_s: after SIGTERM, how long running answers may go on.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    served_name: str | None = None
    default_class: ServiceClass = ServiceClass.STANDARD
    drain_s: float = 30.0
    logs: LogConfig = LogConfig()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is between 0 and 65535, not {self.port}")
        if not self.drain_s >= 0:  # NaN too
            raise ConfigError("--drain-timeout is a number of seconds, from 0")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError(f"the API key is empty; unset {API_KEY_VARIABLE} to have none")
        if self.served_name is not None and not self.served_name.strip():
            raise ConfigError("--served-model-name is empty")


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Where Batch jobs are kept.

    folder: data folder; None for a server without the Batch API.
    given: whether somebody asked for this folder, so that one that can't be used is an error.
    quota_bytes: files beyond it are refused.
    """

    folder: Path | None = None
    given: bool = False
    quota_bytes: int = 20_000_000_000

    def __post_init__(self) -> None:
        if self.quota_bytes < 1:
            raise ConfigError("--data-quota is more than 0")


def data_folder(environment: Mapping[str, str]) -> Path | None:
    """$XDG_DATA_HOME/headway, or ~/.local/share/headway where that is not set or not absolute;
    None for a user without a home."""
    base = Path(environment.get("XDG_DATA_HOME", ""))
    if base.is_absolute():
        return base / "headway"
    home = Path(environment.get("HOME", ""))
    return home / ".local/share/headway" if home.is_absolute() else None


def api_key(given: str | None, environment: Mapping[str, str]) -> str | None:
    """The key given on the command line, else the environment's."""
    return environment.get(API_KEY_VARIABLE) if given is None else given
