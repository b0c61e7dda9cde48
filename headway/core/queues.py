"""Waiting requests of one class: resumed work, then fresh work by tenant and size.

Fresh requests stand in queues by tenant and by log2 of the blocks they need, so that a step looks
at the heads of a few queues, however many wait. Within a queue the order is that of arrival.
"""

from collections import Counter
from collections.abc import Mapping
from heapq import heapify, heappop, heappush, nsmallest

from headway.core.sequence import Sequence
from headway.core.types import ServiceClass, State

_Heap = list[tuple[int, Sequence]]

_FEW_GONE = 64
"""Entries of requests that have left, kept behind the head of a queue beside as many as wait."""


class TenantCounters:
    """Tokens served per tenant, for fairness within a class (virtual token counters, Sheng 2024).

    A tenant that comes back after idling starts at the least counter among those waiting, so that
    nobody saves up service.
    """

    def __init__(self) -> None:
        """No tenant known yet."""
        self._served: dict[str, float] = {}

    def served(self, tenant: str) -> float:
        """Tokens served, as far as fairness counts them."""
        return self._served.get(tenant, 0.0)

    def charge(self, tenant: str, tokens: int) -> None:
        """Count tokens computed for a tenant."""
        self._served[tenant] = self._served.get(tenant, 0.0) + tokens

    def lift(self, tenant: str, active: list[str]) -> None:
        """Bring a tenant that had nothing waiting up to the least of the active ones."""
        floor = min((self.served(t) for t in active if t != tenant), default=0.0)
        self._served[tenant] = max(self.served(tenant), floor)


class ClassQueue:
    """Waiting and swapped requests of one service class."""

    def __init__(self) -> None:
        """An empty queue."""
        self.counters = TenantCounters()
        self._resumed: list[Sequence] = []
        self._fresh: dict[str, dict[int, _Heap]] = {}
        self._waiting: dict[str, int] = {}
        self._oldest: Sequence | None = None
        self._count = 0
        self._classes: Counter[ServiceClass] = Counter()

    def fresh_by_class(self) -> Mapping[ServiceClass, int]:
        """Fresh requests waiting, by service class."""
        return self._classes

    def __len__(self) -> int:
        """Requests waiting, resumed ones included."""
        return len(self._resumed) + self._count

    def add_fresh(self, sequence: Sequence, need_blocks: int) -> None:
        """Queue a request that has not run yet."""
        tenant = sequence.request.tenant
        if tenant not in self._waiting:
            self.counters.lift(tenant, list(self._waiting))
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        sizes = self._fresh.setdefault(tenant, {})
        heap = sizes.setdefault(need_blocks.bit_length(), [])
        if len(heap) > 2 * self._waiting[tenant] + _FEW_GONE:
            heap[:] = filter(_waits, heap)
            heapify(heap)
        heappush(heap, (sequence.number, sequence))
        self._count += 1
        if self._oldest is not None and sequence.number < self._oldest.number:
            self._oldest = sequence
        self._classes[sequence.service_class] += 1

    def add_resumed(self, sequence: Sequence) -> None:
        """Queue a preempted request, ahead of all fresh work of its class."""
        self._resumed.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a request that was admitted or has ended; call it before its state changes."""
        if sequence.resuming:
            self._resumed.remove(sequence)
            return
        tenant = sequence.request.tenant
        self._waiting[tenant] -= 1
        self._count -= 1
        if sequence is self._oldest:
            self._oldest = None
        self._classes[sequence.service_class] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            del self._fresh[tenant]

    def resumed(self) -> list[Sequence]:
        """Preempted requests, most senior first."""
        return sorted(self._resumed, key=lambda s: s.seniority)

    def head(self) -> Sequence | None:
        """The head of the line: the oldest request of the tenant served least."""
        if not self._count:
            return None
        tenant = min(self._waiting, key=lambda t: (self.counters.served(t), t))
        return min(self._heads_of(tenant), key=lambda s: s.number)

    def oldest(self) -> Sequence | None:
        """The fresh request that arrived first."""
        if self._oldest is None and self._count:
            heads = (s for tenant in self._waiting for s in self._heads_of(tenant))
            self._oldest = min(heads, key=lambda s: s.number)
        return self._oldest

    def candidates(self) -> list[Sequence]:
        """Heads of all queues in the order to try: tenant served least, then smallest first."""
        tenants = sorted(self._waiting, key=lambda t: (self.counters.served(t), t))
        return [s for tenant in tenants for s in self._heads_of(tenant)]

    def leading(self, count: int) -> list[Sequence]:
        """The first `count` requests of every queue, resumed ones too, for a selection over all."""
        heaps = [heap for sizes in self._fresh.values() for heap in sizes.values()]
        leaders = [nsmallest(count, filter(_waits, heap)) for heap in heaps]
        return [*self.resumed(), *(s for entries in leaders for _, s in entries)]

    def _heads_of(self, tenant: str) -> list[Sequence]:
        """Heads of a tenant's queues, one at least, smallest first."""
        sizes = self._fresh[tenant]
        return [h for size in sorted(sizes) if (h := self._live_head(sizes[size]))]

    @staticmethod
    def _live_head(heap: _Heap) -> Sequence | None:
        """First entry that still waits; entries of requests that left are dropped on the way."""
        while heap:
            if _waits(heap[0]):
                return heap[0][1]
            heappop(heap)
        return None


def _waits(entry: tuple[int, Sequence]) -> bool:
    """Whether an entry's request still waits for the first time."""
    return entry[1].state is State.WAITING and not entry[1].resuming
