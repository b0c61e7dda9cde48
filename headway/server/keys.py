"""Keys: who may call, as what, and how much. Kept in a file that holds their SHA-256 only.

A key is `hw_ID_SECRET`; it is shown once, when it is made. Its secret has 256 random bits, so that
one round of SHA-256 is enough.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headway.core.types import ServiceClass
from headway.errors import ConfigError

_VERSION = 1
_PREFIX = "hw"
_ID_BYTES = 6
_SECRET_BYTES = 32
_TENANT = re.compile(r"[A-Za-z0-9._@-]{1,64}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a key may ask for. What isn't given is not limited.

    requests_per_minute, tokens_per_minute: by service class; tokens are those of prompts and
        answers.
    concurrent: requests under way at once.
    """

    requests_per_minute: Mapping[ServiceClass, float] = field(default_factory=dict)
    tokens_per_minute: Mapping[ServiceClass, float] = field(default_factory=dict)
    concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Rights:
    """What a key may ask for.

    default_class: of requests that don't say; None for the server's.
    top_class: requests above it are refused, or run in it with `downgrade`.
    admin: whether it opens metrics, the dashboard and the API's description.
    """

    default_class: ServiceClass | None = None
    top_class: ServiceClass = ServiceClass.REALTIME
    downgrade: bool = False
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One key. tenant: whose files, jobs, prefix cache and share of service it has."""

    id: str
    sha256: str
    tenant: str
    created_s: int
    rights: Rights = Rights()
    allowance: Allowance = Allowance()


def check_tenant(tenant: str) -> None:
    """Raise ConfigError for a name that could break a log or a label."""
    if not _TENANT.fullmatch(tenant):
        raise ConfigError(f"{tenant!r} is no tenant: up to 64 letters, digits and ._@-")


def digest(presented: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(presented.encode("utf-8", "replace")).hexdigest()


def id_in(presented: str) -> str:
    """The id that a key carries; empty for what is no key of ours."""
    parts = presented.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == _PREFIX else ""


def new_key(tenant: str, rights: Rights, allowance: Allowance, created_s: int) -> tuple[str, Key]:
    """A random key, and what is kept of it. Raises ConfigError for a wrong tenant."""
    check_tenant(tenant)
    id = secrets.token_hex(_ID_BYTES)
    presented = f"{_PREFIX}_{id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return presented, Key(id, digest(presented), tenant, created_s, rights, allowance)


def read_keys(path: Path) -> list[Key]:
    """The keys of a file, oldest first. Raises ConfigError for one that can't be read, or isn't as
    this version writes it."""
    try:
        content = json.loads(path.read_bytes())
        if content["version"] != _VERSION:
            raise ConfigError(f"{path} is of version {content['version']}, not {_VERSION}")
        return [_key(entry) for entry in content["keys"]]
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is no file of keys: {_reason(error)}") from error


@contextmanager
def edited(path: Path) -> Iterator[list[Key]]:
    """The keys of a file, to change; written when the block ends well. A file that is not there
    begins empty. One process at a time; readers see the old file or the new one, whole.

    Raises ConfigError; the file is as it was then.
    """
    try:
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = read_keys(path) if path.exists() else []
            yield keys
            _write(path, keys)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error


def _write(path: Path, keys: list[Key]) -> None:
    content = {"version": _VERSION, "keys": [_entry(key) for key in keys]}
    part = path.with_name(path.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(content, stream, indent=2)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        if path.exists():  # a server of another user may have been let in
            part.chmod(path.stat().st_mode & 0o777)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _entry(key: Key) -> dict[str, object]:
    rights, allowance = key.rights, key.allowance
    return {
        "id": key.id,
        "sha256": key.sha256,
        "tenant": key.tenant,
        "created": key.created_s,
        "default_class": None if rights.default_class is None else rights.default_class.label,
        "top_class": rights.top_class.label,
        "downgrade": rights.downgrade,
        "admin": rights.admin,
        "requests_per_minute": {c.label: n for c, n in allowance.requests_per_minute.items()},
        "tokens_per_minute": {c.label: n for c, n in allowance.tokens_per_minute.items()},
        "concurrent": allowance.concurrent,
    }


def _key(entry: Mapping[str, object]) -> Key:
    """Raises ValueError, KeyError or TypeError for what `_entry` didn't write."""
    if entry.keys() != _entry(Key("", "", "", 0)).keys():
        raise ValueError("an entry's fields are not those of this version")
    default = entry["default_class"]
    rights = Rights(
        None if default is None else _class(default),
        _class(entry["top_class"]),
        _of(bool, entry["downgrade"]),
        _of(bool, entry["admin"]),
    )
    concurrent = entry["concurrent"]
    allowance = Allowance(
        _rates(entry["requests_per_minute"]),
        _rates(entry["tokens_per_minute"]),
        None if concurrent is None else _of(int, concurrent),
    )
    id, sha256, tenant = (_of(str, entry[name]) for name in ("id", "sha256", "tenant"))
    if not _TENANT.fullmatch(tenant):
        raise ValueError(f"{tenant!r} is no tenant")
    return Key(id, sha256, tenant, _of(int, entry["created"]), rights, allowance)


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{value!r} is of another type than expected")
    return value


def _class(value: object) -> ServiceClass:
    return ServiceClass[_of(str, value).upper()]


def _rates(value: object) -> dict[ServiceClass, float]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no table of rates")
    rates = {_class(label): float(rate) for label, rate in value.items()}
    if not all(0 < rate < float("inf") for rate in rates.values()):
        raise ValueError("a rate is not above 0")
    return rates


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
