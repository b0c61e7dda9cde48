"""Writes a database out as SQL, for `tests/batches/stores`: one file for each released version.

Usage, once, when a version is released: python -m tests.batches.dump DATABASE > stores/vN.sql
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path


def dump(path: Path) -> str:
    """The database as a script that `load` reads."""
    with closing(sqlite3.connect(path)) as db:
        lines = list(db.iterdump())
        for pragma in ("application_id", "user_version"):
            value = db.execute(f"PRAGMA {pragma}").fetchone()[0]
            lines.append(f"PRAGMA {pragma} = {value};")
    return "\n".join(lines) + "\n"


def load(script: str, path: Path) -> None:
    """A database from a dump."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


if __name__ == "__main__":
    sys.stdout.write(dump(Path(sys.argv[1])))
