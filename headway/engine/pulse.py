"""Whether this process runs at all."""

import math
import threading
import time
from collections.abc import Callable

_BEATS_A_LIMIT = 20
_LONGEST_BEAT_S = 1.0


class Pulse:
    """Counts the seconds for which the whole process was frozen: a paused container or virtual
    machine, a debugger, a closed lid. They are nobody's fault, so no limit counts them.

    A thread asks to sleep for a beat, and comes back late where the process did not run. The wait
    for a step can't tell that itself, since it computes meanwhile. A freeze of less than a beat or
    two goes unnoticed.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """limit_s: the limit that freezes are to be taken off; beats are far shorter."""
        self._beat_s = min(_LONGEST_BEAT_S, limit_s / _BEATS_A_LIMIT)
        self._clock = clock
        self._counted = (0.0, math.inf)  # seconds frozen up to the last beat, and when that was
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread. Once only."""
        self._counted = (0.0, self._clock())
        threading.Thread(target=self._run, name="headway-pulse", daemon=True).start()

    def close(self) -> None:
        """End the thread; nothing is counted any more."""
        self._closed.set()

    def frozen_s(self) -> float:
        """Seconds frozen since `start`, a freeze that has just ended included. From any thread."""
        return self._frozen_s(self._counted, self._clock())

    def _frozen_s(self, counted: tuple[float, float], now_s: float) -> float:
        frozen_s, beat_at_s = counted
        late_s = now_s - beat_at_s - self._beat_s
        return frozen_s + late_s if late_s > self._beat_s else frozen_s

    def _run(self) -> None:
        while not self._closed.wait(self._beat_s):
            now_s = self._clock()
            self._counted = (self._frozen_s(self._counted, now_s), now_s)
        self._counted = (self.frozen_s(), math.inf)
