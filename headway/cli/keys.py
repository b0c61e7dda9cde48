"""`headway keys`: make, list and revoke the keys of a server."""

import argparse
import os
import sys
import time
from pathlib import Path

from headway.cli.serve_options import KEYS_FILE, SERVE_OPTIONS
from headway.cli.settings import namespace, places, resolve
from headway.config import ByClass
from headway.core.types import ServiceClass
from headway.errors import ConfigError
from headway.server.keys import Allowance, Key, Rights, edited, new_key, read_keys


def run(settings: argparse.Namespace) -> int:
    """Carry out one of the verbs. Raises ConfigError."""
    where = places(settings, os.environ)
    path = namespace(resolve([KEYS_FILE], where, known=SERVE_OPTIONS)).keys_file
    if path is None:
        raise ConfigError(f"which keys? Name a file with --keys-file or {KEYS_FILE.variable}")
    _VERBS[settings.verb](path, settings)
    return 0


def _add(path: Path, settings: argparse.Namespace) -> None:
    default = settings.default_class
    top = ServiceClass[settings.top_class.upper()]
    own = None if default is None else ServiceClass[default.upper()]
    if own is not None and own < top:
        raise ConfigError(f"--default-class {default} is above --top-class {settings.top_class}")
    rights = Rights(own, top, settings.downgrade, settings.admin)
    requests, tokens = _rates(settings.requests_per_minute), _rates(settings.tokens_per_minute)
    for service_class in sorted({*requests, *tokens}):
        if service_class < top:
            raise ConfigError(
                f"a rate for {service_class.label} is above --top-class {settings.top_class}: "
                "nothing of this key runs there"
            )
    allowance = Allowance(requests, tokens, settings.concurrent)
    presented, key = new_key(settings.tenant, rights, allowance, int(time.time()))
    with edited(path) as keys:
        keys.append(key)
    try:
        print(presented, flush=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"key {key.id} can't be shown ({reason}); revoke it") from error
    print(f"headway: key {key.id} for {key.tenant}; it is not shown again", file=sys.stderr)


def _list(path: Path, settings: argparse.Namespace) -> None:
    for key in read_keys(path):
        print(_line(key))


def _revoke(path: Path, settings: argparse.Namespace) -> None:
    with edited(path) as keys:
        left = [key for key in keys if key.id != settings.id]
        if len(left) == len(keys):
            raise ConfigError(f"{path} has no key {settings.id!r}")
        keys[:] = left
    print(f"headway: {settings.id} is revoked", file=sys.stderr)


def _rates(given: ByClass | None) -> dict[ServiceClass, float]:
    return {} if given is None else given.given()


def _line(key: Key) -> str:
    rights, allowance = key.rights, key.allowance
    words = [key.id, key.tenant, time.strftime("%Y-%m-%d", time.gmtime(key.created_s))]
    words.append(f"top={rights.top_class.label}{' or lowered' if rights.downgrade else ''}")
    if rights.default_class is not None:
        words.append(f"default={rights.default_class.label}")
    for name, rates in (
        ("requests/min", allowance.requests_per_minute),
        ("tokens/min", allowance.tokens_per_minute),
    ):
        words += [f"{c.label} {name}={rate:g}" for c, rate in rates.items()]
    if allowance.concurrent is not None:
        words.append(f"concurrent={allowance.concurrent}")
    return "  ".join([*words, *(["admin"] if rights.admin else [])])


_VERBS = {"add": _add, "list": _list, "revoke": _revoke}
