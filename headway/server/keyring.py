"""The keys a server knows, read anew when their file changes."""

import hmac
import logging
from pathlib import Path

from headway.errors import ConfigError
from headway.server.caller import EVERYBODY, Caller, Clock
from headway.server.keys import digest, id_in, read_keys

_LOG = logging.getLogger(__name__)
_LOOK_S = 1.0
_NOBODY = digest("")

_Signature = tuple[int, int, int]


class KeyRing:
    """Finds the caller of a request by its key. On the event loop's thread only.

    One that has changed or can't be read any more leaves the keys as they were, and is logged; a
    key that stays keeps what it has used.
    """

    def __init__(self, single: str | None, path: Path | None, clock: Clock) -> None:
        """single: a key with every right. path: of a file of keys. Raises ConfigError for a file
        that can't be read."""
        self._single = None if single is None else Caller(EVERYBODY, clock)
        self._single_digest = _NOBODY if single is None else digest(single)
        self._path = path
        self._clock = clock
        self._callers: dict[str, Caller] = {}
        self._looked_s = clock()
        self._seen: _Signature | None = None
        if path is not None:
            self._seen = _signature(path)
            self._take_in(path)

    def find(self, presented: str) -> Caller | None:
        """The caller, by the key it sent; None if it is none of ours."""
        self._look()
        # Compared in constant time, so that the time taken says nothing about a key; its id is no
        # secret.
        given = digest(presented)
        if hmac.compare_digest(given, self._single_digest):
            return self._single
        caller = self._callers.get(id_in(presented))
        known = _NOBODY if caller is None else caller.key.sha256
        return caller if hmac.compare_digest(given, known) else None

    def _look(self) -> None:
        now_s = self._clock()
        if self._path is None or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        signature = _signature(self._path)
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._take_in(self._path)
        except ConfigError as error:
            _LOG.error("keys stay as they were: %s", error)

    def _take_in(self, path: Path) -> None:
        keys = read_keys(path)
        before = self._callers
        self._callers = {
            key.id: before[key.id]
            if key.id in before and before[key.id].key == key
            else Caller(key, self._clock)
            for key in keys
        }


def _signature(path: Path) -> _Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
