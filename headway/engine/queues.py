"""How many choices may wait to be admitted, by class."""

import threading

from headway.core.types import ServiceClass
from headway.engine.options import QueueLimits
from headway.errors import OverloadedError


class WaitingRoom:
    """Counts choices from arrival to first admission. One that was admitted never counts again,
    whatever happens to it, so an accepted request is never refused later. Thread-safe."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting = dict.fromkeys(ServiceClass, 0)

    def enter(self, service_class: ServiceClass, choices: int) -> None:
        """Count a request's choices, all or none. Raises OverloadedError beyond the limit."""
        limit = self._limits.of(service_class)
        with self._lock:
            if self._waiting[service_class] + choices > limit:
                raise OverloadedError(
                    f"{limit} {service_class.label} requests are waiting; try again later."
                )
            self._waiting[service_class] += choices

    def leave(self, service_class: ServiceClass) -> None:
        """One choice was admitted, or ended first."""
        with self._lock:
            self._waiting[service_class] -= 1
