"""What is counted by service class, between two reports to vLLM's front end."""

from typing import Any

from headway.core.types import PreemptKind, ServiceClass
from headway_vllm.book import SwapBook


class Tally:
    """Counters and samples since the last report. The report is plain values, since it travels
    between processes.

    promotions: requests let into the reserve.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self._silent: dict[str, tuple[ServiceClass, float]] = {}
        self._reported = (0, 0)
        self.clear()

    def clear(self) -> None:
        """Forget what was not reported, as where nobody wants reports."""
        self.promotions = 0
        self._preempted: dict[tuple[ServiceClass, PreemptKind], int] = {}
        self._queued_s: dict[ServiceClass, list[float]] = {c: [] for c in ServiceClass}
        self._ttft_s: dict[ServiceClass, list[float]] = {c: [] for c in ServiceClass}

    def arrived(self, request_id: str, service_class: ServiceClass, arrival_s: float) -> None:
        """A request waits for its first token."""
        self._silent[request_id] = (service_class, arrival_s)

    def token(self, request_id: str, now_s: float) -> None:
        """A request got a token; its first ends the wait."""
        waited = self._silent.pop(request_id, None)
        if waited is not None:
            service_class, arrival_s = waited
            self._ttft_s[service_class].append(now_s - arrival_s)

    def ended(self, request_id: str) -> None:
        """A request is over; one without a token has no TTFT."""
        self._silent.pop(request_id, None)

    def queued(self, service_class: ServiceClass, seconds: float) -> None:
        """A request was admitted for the first time."""
        self._queued_s[service_class].append(seconds)

    def preempted(self, service_class: ServiceClass, kind: PreemptKind) -> None:
        """A request gave up its blocks."""
        key = (service_class, kind)
        self._preempted[key] = self._preempted.get(key, 0) + 1

    def report(
        self,
        waiting: dict[ServiceClass, int],
        running: dict[ServiceClass, int],
        book: SwapBook,
    ) -> dict[str, Any]:
        """Everything since the last report, and what is now."""
        saved, restored = self._reported
        self._reported = (book.saved_tokens, book.restored_tokens)
        report = {
            "waiting": {c.label: n for c, n in waiting.items()},
            "running": {c.label: n for c, n in running.items()},
            "preempted": [[c.label, kind.value, n] for (c, kind), n in self._preempted.items()],
            "queued_s": {c.label: samples for c, samples in self._queued_s.items() if samples},
            "ttft_s": {c.label: samples for c, samples in self._ttft_s.items() if samples},
            "promotions": self.promotions,
            "saved_tokens": book.saved_tokens - saved,
            "restored_tokens": book.restored_tokens - restored,
            "host_free": book.free,
            "host_total": book.total,
        }
        self.clear()
        return report
