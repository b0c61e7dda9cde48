"""`headway explain`."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from headway.cli.urls import check_url
from headway.config import api_key
from headway.errors import ConfigError

_TIMEOUT_S = 10.0


def run(settings: argparse.Namespace) -> int:
    """Print what a step of a running server decided. Raises ConfigError if it can't be had."""
    check_url(settings.url)
    record = _fetch(settings.url, settings.step, api_key(settings.api_key, os.environ))
    print("\n".join(lines(record)))
    return 0


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """A record, as `GET /debug/steps/STEP` gives it, in words."""
    names: Mapping[str, str] = record.get("names", {})

    def called(number: int) -> str:
        name = names.get(str(number))
        return f"request {number}" if name is None else f"request {number} ({name})"

    limit = record["limit_s"]
    within = "no time limit" if limit is None else f"a limit of {1000 * limit:.1f} ms"
    yield (
        f"Step {record['step']} on lane {record['lane']}: "
        f"{1000 * record['predicted_s']:.1f} ms expected, {within}"
    )
    for chunk in record["computed"]:
        what = "decodes" if chunk["decoding"] else f"prefills {chunk['tokens']} tokens"
        yield f"  {called(chunk['request'])} {what}"
    for request in record["entered"]:
        yield f"  {called(request)} was admitted"
    for victim in record["evicted"]:
        yield (
            f"  {called(victim['request'])} gave up {victim['blocks']} blocks to "
            f"{called(victim['wanted_by'])} ({victim['kind']}, {1000 * victim['cost_s']:.1f} ms)"
        )
    for left in record["paused"]:
        yield f"  {called(left['request'])} is paused: {left['reason']}"
    for left in record["passed_over"]:
        yield f"  {called(left['request'])} was passed over: {left['reason']}"


def _fetch(url: str, step: int | None, key: str | None) -> Mapping[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = f"{url.rstrip('/')}/debug/steps/{'latest' if step is None else step}"
    try:
        with urlopen(Request(address, headers=headers), timeout=_TIMEOUT_S) as response:
            record: Mapping[str, Any] = json.load(response)
            return record
    except HTTPError as error:
        raise ConfigError(_message(error)) from None
    except (URLError, ValueError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"{url} can't be reached: {getattr(reason, 'strerror', None) or reason}"
        ) from None


def _message(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code}"
