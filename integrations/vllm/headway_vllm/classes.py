"""Service classes as vLLM's integer priority, which its API, queues and stats already carry."""

from headway.core.types import ServiceClass

PRIORITY = {ServiceClass.REALTIME: -1000, ServiceClass.STANDARD: 0, ServiceClass.BATCH: 1000}
"""The priority a class is sent as; lower is earlier, and 0 is what a request has that says none."""

_EDGE = 100


def class_of(priority: int) -> ServiceClass:
    """The class a priority means: at most -100 is realtime, at least 100 is batch.

    Thresholds rather than the sign: vLLM itself moves a priority by one (a continued Responses
    request goes one ahead of its first turn).
    """
    if priority <= -_EDGE:
        return ServiceClass.REALTIME
    return ServiceClass.BATCH if priority >= _EDGE else ServiceClass.STANDARD
