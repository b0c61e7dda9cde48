"""Traces of requests: two public file formats.

Azure's CSV (time stamp, context tokens, generated tokens) and Mooncake's JSON lines (milliseconds,
input and output length, ids of the prompt's 512-token blocks: equal leading ids are equal text).
"""

import csv
import json
import math
import random
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from headway.errors import ConfigError

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens that one id of a Mooncake trace stands for."""

MOONCAKE_TICK_S = 3.0
"""Mooncake's time stamps are multiples of this."""

_AZURE_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class Record:
    """One request of a trace.

    at_s: arrival, in seconds from the trace's first.
    blocks: ids of the prompt's blocks of MOONCAKE_BLOCK_TOKENS, or empty where the trace says
        nothing about what prompts share.
    """

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: "array[int] | tuple[()]" = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival."""

    name: str
    records: tuple[Record, ...]

    @property
    def longest_answer(self) -> int:
        """Most tokens any request generates."""
        return max(r.answer_tokens for r in self.records)

    @property
    def longest_request(self) -> int:
        """Most tokens of prompt and answer together."""
        return max(r.prompt_tokens + r.answer_tokens for r in self.records)


def read_trace(source: str | Path, seed: int, max_requests: int | None = None) -> Trace:
    """A trace from a file, in order of arrival.

    seed: of the jitter. max_requests: how many of the first to keep.
    Raises ConfigError, naming the line, for a file that can't be used.
    """
    path = Path(source)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = _numbered(file)
            first = next(lines, (1, ""))
            reader = _read_mooncake if first[1].startswith("{") else _read_azure
            records = list(_first(reader(path, first, lines), max_requests))
    except OSError as error:
        raise ConfigError(f"{source} can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"trace {source}: {error}") from error
    if not records:
        raise ConfigError(f"trace {source}: holds no requests")
    if records[0].blocks:
        records = _jittered(records, seed)
    return Trace(path.stem, tuple(_from_zero(records)))


def _numbered(file: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, line.strip()


def _first(records: Iterator[Record], count: int | None) -> Iterator[Record]:
    for index, record in enumerate(records):
        if count is not None and index >= count:
            return
        yield record


def _read_azure(
    path: Path, header: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> Iterator[Record]:
    columns = next(csv.reader([header[1]]), [])
    missing = [field for field in _AZURE_FIELDS if field not in columns]
    if missing:
        raise ConfigError(
            f"{path}:{header[0]}: neither JSON lines nor a CSV with the columns "
            f"{', '.join(_AZURE_FIELDS)}"
        )
    when, prompt, answer = (columns.index(field) for field in _AZURE_FIELDS)
    start: datetime | None = None
    for number, line in lines:
        cells = next(csv.reader([line]))
        try:
            # Seven digits of a second, one more than datetime reads.
            stamp = datetime.fromisoformat(cells[when][:26])
            start = start or stamp
            yield Record(
                (stamp - start).total_seconds(), _tokens(cells[prompt]), _tokens(cells[answer])
            )
        except (ValueError, IndexError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from error


def _read_mooncake(
    path: Path, first: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> Iterator[Record]:
    for number, line in (first, *lines):
        try:
            row = json.loads(line)
            at_s = float(row["timestamp"]) / 1000
            if not 0 <= at_s < math.inf:
                raise ValueError(f"time stamp {row['timestamp']} is not a time")
            prompt = _tokens(row["input_length"])
            blocks = array("I", row["hash_ids"])
            if len(blocks) * MOONCAKE_BLOCK_TOKENS < prompt or not blocks:
                raise ValueError(f"{len(blocks)} hash_ids can't cover {prompt} tokens")
            yield Record(at_s, prompt, _tokens(row["output_length"]), blocks)
        except KeyError as error:
            raise ConfigError(f"{path}:{number}: {error} is missing") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from error


def _tokens(value: object) -> int:
    """A token count of at least 1. Raises ValueError."""
    count = int(value) if isinstance(value, str | int) else 0
    if not 1 <= count <= _MOST_TOKENS:
        raise ValueError(f"{value!r} is no number of tokens")
    return count


def _jittered(records: list[Record], seed: int) -> list[Record]:
    """Arrivals spread evenly over the tick that their time stamp was rounded to."""
    random_numbers = random.Random(f"jitter {seed}")
    moved = [
        Record(
            r.at_s + random_numbers.random() * MOONCAKE_TICK_S,
            r.prompt_tokens,
            r.answer_tokens,
            r.blocks,
        )
        for r in records
    ]
    return sorted(moved, key=lambda r: r.at_s)


def _from_zero(records: list[Record]) -> Iterator[Record]:
    ordered = sorted(records, key=lambda r: r.at_s)
    start_s = ordered[0].at_s
    for r in ordered:
        yield Record(r.at_s - start_s, r.prompt_tokens, r.answer_tokens, r.blocks)
