"""Pauses: residents that a step leaves out and the one before it did not."""

from collections.abc import Iterator

from headway.core.types import Lane, RequestId, ServiceClass
from headway.engine.types import StepEnd


class Pauses:
    """Remembers whom the last step of each lane left out. For one observer."""

    def __init__(self) -> None:
        self._last: dict[Lane, frozenset[RequestId]] = {}

    def begun(self, end: StepEnd) -> Iterator[ServiceClass]:
        """The class of each pause that began with a step; of requests still under way."""
        lane = end.record.lane
        paused = frozenset(left.request for left in end.record.paused)
        new = paused - self._last.get(lane, frozenset())
        self._last[lane] = paused
        return (end.classes[request] for request in new if request in end.classes)
