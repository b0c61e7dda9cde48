"""`headway batch`: a server's Batch jobs from the command line."""

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from headway.cli.batch_client import BatchClient, Json
from headway.config import api_key
from headway.errors import ConfigError

_LISTED = 20
_POLL_S = 0.5
_ENDED = ("completed", "failed", "expired", "cancelled")
_FIRST_LINE_BYTES = 1 << 20


def run(settings: argparse.Namespace) -> int:
    """Carry out one of the verbs; 1 if a job that is waited for or fetched hasn't gone well.

    Raises ServerError, ConfigError.
    """
    client = BatchClient(settings.url, api_key(settings.api_key, os.environ))
    return _VERBS[settings.verb](client, settings)


def _submit(client: BatchClient, settings: argparse.Namespace) -> int:
    path = Path(settings.file)
    endpoint = settings.endpoint or _endpoint_of(path)
    file = client.upload(path)
    batch = client.create(file["id"], endpoint, settings.completion_window)
    print(batch["id"], flush=True)
    return _finished(_awaited(client, batch["id"])) if settings.wait else 0


def _status(client: BatchClient, settings: argparse.Namespace) -> int:
    if settings.id is None:
        batches = client.batches(_LISTED)
        for batch in batches:
            print(f"{batch['id']}  {batch['status']:<11}  {_progress(batch)}")
        if not batches:
            print("no batches", file=sys.stderr)
        return 0
    batch = _awaited(client, settings.id) if settings.wait else client.batch(settings.id)
    for name, value in _details(batch).items():
        print(f"{name + ':':<12} {value}")
    return 0


def _cancel(client: BatchClient, settings: argparse.Namespace) -> int:
    batch = client.cancel(settings.id)
    print(f"{batch['id']}  {batch['status']}")
    return 0


def _fetch(client: BatchClient, settings: argparse.Namespace) -> int:
    batch = _awaited(client, settings.id) if settings.wait else client.batch(settings.id)
    if batch["status"] not in _ENDED:
        raise ConfigError(f"{batch['id']} is {batch['status']}; --wait waits for its end")
    _save(client, batch["output_file_id"], settings.output)
    if settings.errors is not None:
        _save(client, batch["error_file_id"], settings.errors)
    elif batch["error_file_id"] is not None:
        failed = batch["request_counts"]["failed"]
        print(
            f"headway: {failed} lines have errors; fetch them with --errors FILE", file=sys.stderr
        )
    return _finished(batch)


_VERBS = {"submit": _submit, "status": _status, "cancel": _cancel, "fetch": _fetch}


def _endpoint_of(path: Path) -> str:
    """The endpoint that the first line names. Raises ConfigError if it names none."""
    try:
        with path.open("rb") as stream:
            line = stream.readline(_FIRST_LINE_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
    if not line:
        raise ConfigError(f"{path} is empty")
    try:
        first = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"the first line of {path} is not JSON; see --endpoint") from error
    endpoint = first.get("url") if isinstance(first, dict) else None
    if not isinstance(endpoint, str):
        raise ConfigError(f"the first line of {path} names no 'url'; give one with --endpoint")
    return endpoint


def _awaited(client: BatchClient, id: str) -> Json:
    """The job once it has ended, with a progress bar until then."""
    from tqdm import tqdm

    with ExitStack() as stack:
        bar = None
        while (batch := client.batch(id))["status"] not in _ENDED:
            counts = batch["request_counts"]
            if bar is None and counts["total"]:
                bar = stack.enter_context(
                    tqdm(total=counts["total"], unit=" lines", disable=not sys.stderr.isatty())
                )
            if bar is not None:
                bar.update(counts["completed"] + counts["failed"] - bar.n)
                bar.set_description(batch["status"], refresh=False)
            time.sleep(_POLL_S)
        if bar is not None:
            bar.update(bar.total - bar.n)
    return batch


def _finished(batch: Json) -> int:
    """What there is to say about a job's end, on standard error; the exit status."""
    for problem in (batch["errors"] or {}).get("data", []):
        where = f"line {problem['line']}: " if problem["line"] else ""
        print(f"headway: {where}{problem['message']}", file=sys.stderr)
    print(f"{batch['id']}  {batch['status']}  {_progress(batch)}", file=sys.stderr)
    return 0 if batch["status"] == "completed" and not batch["request_counts"]["failed"] else 1


def _progress(batch: Json) -> str:
    counts = batch["request_counts"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['completed']} of {counts['total']} lines{failed}"


def _details(batch: Json) -> dict[str, str]:
    """What `headway batch status ID` prints, by name."""
    details = {
        "id": batch["id"],
        "status": batch["status"],
        "lines": _progress(batch),
        "endpoint": batch["endpoint"],
        "created": _moment(batch["created_at"]),
        "ends by": _moment(batch["expires_at"]),
        "input": batch["input_file_id"],
    }
    for name in ("output", "error"):
        if batch[f"{name}_file_id"] is not None:
            details[name] = batch[f"{name}_file_id"]
    return details


def _moment(unix_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _save(client: BatchClient, file_id: str | None, target: str) -> None:
    """A result file into `target`, - for standard output; an empty one if there is none."""
    pieces = iter(()) if file_id is None else client.contents(file_id)
    if target == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
        part.rename(path)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
