"""Calls observers such that none of them can break the step loop."""

import logging
from collections.abc import Callable, Iterable, Sequence

from headway.core.types import ServiceClass
from headway.engine.types import Observer, RequestEnd, StepEnd

logger = logging.getLogger(__name__)


class Observers:
    """An observer made of several. One that raises is logged and never called again."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """See `engine.types.Observer`."""
        self._tell(lambda o: o.on_admitted(service_class, queued_s))

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """See `engine.types.Observer`."""
        self._tell(lambda o: o.on_tokens(service_class, gaps_s, first))

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """See `engine.types.Observer`."""
        self._tell(lambda o: o.on_preempted(service_class, kind))

    def on_finished(self, end: RequestEnd) -> None:
        """See `engine.types.Observer`."""
        self._tell(lambda o: o.on_finished(end))

    def on_step(self, end: StepEnd) -> None:
        """See `engine.types.Observer`."""
        self._tell(lambda o: o.on_step(end))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in tuple(self._observers):
            try:
                call(observer)
            except Exception:
                self._drop(observer)

    def _drop(self, observer: Observer) -> None:
        logger.exception("observer %r failed and is dropped", observer)
        self._observers.remove(observer)
