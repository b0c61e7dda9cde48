"""What is settled about a server before it starts. Environments are read here and in the command
line's settings, nowhere else."""

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
class ByClass:
    """A figure for each service class; None where there is none."""

    realtime: float | None = None
    standard: float | None = None
    batch: float | None = None

    def of(self, service_class: ServiceClass) -> float | None:
        """The figure of one class."""
        return (self.realtime, self.standard, self.batch)[service_class]

    def given(self) -> dict[ServiceClass, float]:
        """The figures there are."""
        figures = {c: self.of(c) for c in ServiceClass}
        return {c: figure for c, figure in figures.items() if figure is not None}

    def over(self, other: "ByClass") -> "ByClass":
        """These figures, and the other's where there is none."""
        pairs = ((self.of(c), other.of(c)) for c in ServiceClass)
        return ByClass(*(other if own is None else own for own, other in pairs))


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a certificate chain and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where a server listens, and what it tells browsers and proxies.

    port: 0 takes any free one.
    admin_port: a second port, on admin_host, where operators' paths need no key; None for none.
    root_path: what a proxy puts before every path; starts with a slash, or is empty.
    cors_origins: origins whose pages may call.
    allowed_hosts: what clients may call a server without keys, besides its loopback names.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    root_path: str = ""
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        for port in (self.port, self.admin_port or 0):
            if not 0 <= port <= 65535:
                raise ConfigError(f"--port is between 0 and 65535, not {port}")
        if self.root_path and (self.root_path[0] != "/" or self.root_path[-1] == "/"):
            raise ConfigError("--root-path starts with a slash and doesn't end with one")


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Who may call. Without either everybody may, which is for loopback only.

    api_key: one key with every right.
    keys_file: keys made by `headway keys`.
    """

    api_key: str | None = field(default=None, repr=False)
    keys_file: Path | None = None

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError(f"the API key is empty; unset {API_KEY_VARIABLE} to have none")

    @property
    def open(self) -> bool:
        """Whether everybody may call."""
        return self.api_key is None and self.keys_file is None


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """How much may wait, how long, and how large it may be.

    queue_requests, queue_tokens: answers and prompt tokens that may wait to begin; a request that
        finds none waiting may bring more.
    timeouts_s: of requests that bring none; None for no limit.
    """

    queue_requests: ByClass = ByClass(10_000, 10_000, 100_000)
    queue_tokens: ByClass = ByClass(2_000_000, 4_000_000, 8_000_000)
    timeouts_s: ByClass = ByClass()
    max_body_bytes: int = 16_000_000


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """A server's manners.

    served_names: the model's names in the API, the first being the one it is introduced by; none
        takes the model's own.
    chat_template: a file to use instead of the model's own.
    default_class: service class of requests that don't say.
    drain_s: after SIGTERM, how long running answers may go on.
    """

    listen: ListenConfig = ListenConfig()
    access: AccessConfig = AccessConfig()
    limits: LimitsConfig = LimitsConfig()
    served_names: tuple[str, ...] = ()
    chat_template: Path | None = None
    default_class: ServiceClass = ServiceClass.STANDARD
    drain_s: float = 30.0
    logs: LogConfig = LogConfig()

    def __post_init__(self) -> None:
        if not self.drain_s >= 0:  # NaN too
            raise ConfigError("--drain-timeout is a number of seconds, from 0")
        if len(set(self.served_names)) < len(self.served_names):
            raise ConfigError("--served-model-name has a name twice")


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
