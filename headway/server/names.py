"""Which HTTP request a number of the scheduler's belongs to."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from headway.core.types import RequestId

_KEPT = 20_000


class RequestNames:
    """Names of the latest requests, by the numbers of their choices. On the event loop's thread
    only."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._names: OrderedDict[RequestId, str] = OrderedDict()

    def note(self, name: str, requests: Sequence[RequestId]) -> None:
        """Keep a name, and forget the oldest."""
        for request in requests:
            self._names[request] = name
        while len(self._names) > self._kept:
            self._names.popitem(last=False)

    def of(self, requests: Iterable[RequestId]) -> dict[RequestId, str]:
        """The names of those that have one: HTTP requests not long ago, no lines of Batch jobs."""
        return {request: self._names[request] for request in requests if request in self._names}
