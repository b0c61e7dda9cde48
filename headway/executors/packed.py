"""Packed weights in files, so that a model is packed once and mapped by every later process."""

import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

MOST_BYTES = 50_000_000_000
"""Bytes of packed weights that are kept; those not used for longest go first."""

_STALE_S = 86_400
_SUFFIX = ".packed"


@dataclass(frozen=True, slots=True)
class WeightCache:
    """Where packed weights are kept. Safe for several processes at once: a file appears whole, and
    is checked before it is used. The native executor reads and writes the files."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def file_for(self, fingerprint: str) -> str:
        """The path for a model's weights, in a folder that exists; "" (and a line in the log)
        where there can be none."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.complain(error.strerror or str(error))
            return ""
        return str(self.folder / f"{fingerprint[:40]}{_SUFFIX}")

    def complain(self, problem: str) -> None:
        """Say why packed weights are not kept."""
        logger.warning("packed weights are not kept in %s: %s", self.folder, problem)

    def used(self, path: str) -> None:
        """Note that a file was used just now, and remove those that there is no room for."""
        with suppress(OSError):
            os.utime(path)
            self._prune(Path(path))

    def _prune(self, kept: Path) -> None:
        found = [(file.stat(), file) for file in self.folder.iterdir() if _SUFFIX in file.name]
        left = self.most_bytes - sum(s.st_size for s, file in found if file == kept)
        for status, file in sorted(found, key=lambda each: -each[0].st_mtime):
            if file == kept:
                continue
            left -= status.st_size
            unfinished = file.suffix != _SUFFIX and time.time() - status.st_mtime > _STALE_S
            if left < 0 or unfinished:
                file.unlink(missing_ok=True)
