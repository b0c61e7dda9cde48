"""Waiting for the steps of several lanes at once."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from headway.core.plan import StepResult
from headway.core.types import Lane
from headway.engine.flight import Flight

End = StepResult | Exception
"""How a step ended: its result, or what the handle raised (TimeoutError: it has not ended)."""


class LaneWatch:
    """Waits for steps on a thread for each lane, so that the engine thread can wait for whichever
    lane ends first and for commands at once. A lane's thread starts with its first step."""

    def __init__(
        self,
        limit_s: float,
        frozen_s: Callable[[], float],
        landed: Callable[[Flight, End], None],
    ) -> None:
        """`landed` is called from the lane's thread, `limit_s` after the call at the latest; what
        `frozen_s` grows by meanwhile comes on top."""
        self._limit_s = limit_s
        self._frozen_s = frozen_s
        self._landed = landed
        self._flights: dict[Lane, SimpleQueue[Flight | None]] = {}

    def watch(self, flight: Flight) -> None:
        """Report the end of a step."""
        lane = flight.plan.lane
        if lane not in self._flights:
            self._flights[lane] = SimpleQueue()
            name = f"headway-{lane.name.lower()}"
            threading.Thread(target=self._serve, args=(lane,), name=name, daemon=True).start()
        self._flights[lane].put(flight)

    def close(self) -> None:
        """End the threads, once the steps they wait for have ended."""
        for flights in self._flights.values():
            flights.put(None)

    def _serve(self, lane: Lane) -> None:
        flights = self._flights[lane]
        while (flight := flights.get()) is not None:
            self._landed(flight, flight.end(self._limit_s, self._frozen_s))
