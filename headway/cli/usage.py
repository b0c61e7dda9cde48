"""`headway usage`."""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence

from headway.cli.serve_options import DATA_DIR, SERVE_OPTIONS
from headway.cli.settings import namespace, places, resolve
from headway.config import data_folder
from headway.errors import ConfigError
from headway.server.usage import UsageBook, UsageLine

_HEADINGS = ("tenant", "class", "answers", "prompt", "cached", "generated")


def run(settings: argparse.Namespace) -> int:
    """Print tokens by tenant and class. Raises ConfigError."""
    where = places(settings, os.environ)
    given = namespace(resolve([DATA_DIR], where, known=SERVE_OPTIONS)).data_dir
    folder = given or data_folder(os.environ)
    if folder is None:
        raise ConfigError("which folder? Name it with --data-dir")
    if given is not None and not given.is_dir():
        raise ConfigError(f"there is no data folder {given}")
    found = UsageBook(folder).since(time.time() - settings.since)
    rows = [_row(line) for line in found]
    if settings.json:
        for row in rows:
            print(json.dumps(dict(zip(_HEADINGS, row, strict=True))))
    else:
        print("\n".join(_table(rows)))
    return 0


def _row(line: UsageLine) -> tuple[str | int, ...]:
    tally = line.tally
    label = line.service_class.label
    return (line.tenant, label, tally.answers, tally.prompt, tally.cached, tally.generated)


def _table(rows: Sequence[Sequence[str | int]]) -> Iterator[str]:
    cells = [_HEADINGS, *([str(cell) if cell != "" else "-" for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADINGS))]
    for row in cells:
        words = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(words).rstrip()
