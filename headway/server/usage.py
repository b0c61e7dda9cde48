"""Who used how many tokens: counted as requests end, kept by the hour in a small database."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.core.request import Usage
from headway.core.types import ServiceClass
from headway.engine.types import RequestEnd, StepEnd
from headway.errors import ConfigError

_LOG = logging.getLogger(__name__)
_FILE = "usage.sqlite3"
_VERSION = 1
_HOUR_S = 3600
_BUSY_S = 5.0
_TABLE = """
CREATE TABLE IF NOT EXISTS usage (
  hour INTEGER, tenant TEXT, class TEXT,
  answers INTEGER, prompt INTEGER, cached INTEGER, generated INTEGER,
  PRIMARY KEY (hour, tenant, class)
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
  answers = answers + excluded.answers, prompt = prompt + excluded.prompt,
  cached = cached + excluded.cached, generated = generated + excluded.generated
"""
_SUM = """
SELECT tenant, class, sum(answers), sum(prompt), sum(cached), sum(generated)
FROM usage WHERE hour >= ? GROUP BY tenant, class
"""


@dataclass(frozen=True, slots=True)
class Share:
    """Whose tokens, in which class, in which hour of UTC (in hours since 1970)."""

    hour: int
    tenant: str
    service_class: ServiceClass


@dataclass(frozen=True, slots=True)
class Tally:
    """Answers that ended, aborted and failed ones too, and their tokens. `cached` ones are among
    `prompt`."""

    answers: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0

    def plus(self, usage: Usage) -> "Tally":
        """One answer more."""
        return Tally(
            self.answers + 1,
            self.prompt + usage.prompt,
            self.cached + usage.cached,
            self.generated + usage.generated,
        )


@dataclass(frozen=True, slots=True)
class UsageLine:
    """A tenant's tally in one class."""

    tenant: str
    service_class: ServiceClass
    tally: Tally


class UsageBook:
    """The database in a data folder. Several servers may write to one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE

    def add(self, tallies: Mapping[Share, Tally]) -> None:
        """Add to what is there, all of it or nothing. Raises ConfigError."""
        rows = [
            (
                share.hour,
                share.tenant,
                share.service_class.label,
                tally.answers,
                tally.prompt,
                tally.cached,
                tally.generated,
            )
            for share, tally in tallies.items()
        ]
        with self._opened() as database, database:
            database.executemany(_ADD, rows)

    def since(self, unix_s: float) -> list[UsageLine]:
        """Tallies of the hour of `unix_s` and all later ones, by tenant, then class; none where
        nothing was ever counted. Raises ConfigError."""
        if not self._path.exists():
            return []
        with self._opened() as database:
            found = database.execute(_SUM, (int(unix_s // _HOUR_S),)).fetchall()
        lines = [
            UsageLine(tenant, ServiceClass[label.upper()], Tally(*figures))
            for tenant, label, *figures in found
        ]
        return sorted(lines, key=lambda line: (line.tenant, line.service_class))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version not in (0, _VERSION):
                    raise ConfigError(f"{self._path} is of version {version}, not {_VERSION}")
                if version == 0:
                    database.execute("PRAGMA journal_mode = WAL")
                    database.execute(_TABLE)
                    database.execute(f"PRAGMA user_version = {_VERSION}")
                yield database
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{self._path} can't be used: {error}") from error


class UsageRecorder:
    """An engine Observer that keeps tallies and writes them down every few seconds, from a thread
    of its own. What can't be written is kept and tried again."""

    def __init__(self, book: UsageBook, now: Callable[[], float], every_s: float = 5.0) -> None:
        """now: gives seconds since 1970."""
        self._book = book
        self._now = now
        self._every_s = every_s
        self._lock = threading.Lock()
        self._tallies: dict[Share, Tally] = {}
        self._ended = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="headway-usage", daemon=True)

    def start(self) -> None:
        """Start writing. Once only."""
        self._thread.start()

    def stop(self) -> None:
        """Write down what is left, and end."""
        self._ended.set()
        self._thread.join()

    def on_finished(self, end: RequestEnd) -> None:
        """A request ended."""
        share = Share(int(self._now() // _HOUR_S), end.tenant, end.service_class)
        with self._lock:
            self._tallies[share] = self._tallies.get(share, Tally()).plus(end.usage)

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """Of no interest."""

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Of no interest."""

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """Of no interest."""

    def on_step(self, end: StepEnd) -> None:
        """Of no interest."""

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            tallies, self._tallies = self._tallies, {}
        if not tallies:
            return
        try:
            self._book.add(tallies)
            self._failing = False
        except ConfigError as error:
            if not self._failing:
                _LOG.error("usage is kept in memory: %s", error)
            self._failing = True
            self._take_back(tallies.items())

    def _take_back(self, tallies: Iterable[tuple[Share, Tally]]) -> None:
        with self._lock:
            for share, tally in tallies:
                later = self._tallies.get(share, Tally())
                self._tallies[share] = Tally(
                    tally.answers + later.answers,
                    tally.prompt + later.prompt,
                    tally.cached + later.cached,
                    tally.generated + later.generated,
                )
