"""Waiting requests in class order, each class in the order of its line."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from headway.core.types import ServiceClass
from headway_vllm.members import Member

R = TypeVar("R")


class Lines(Generic[R]):
    """One line for each class; `arrange` puts some ahead of all lines, for one step.

    Adding and removing cost a bisection, and nothing is ever sorted as a whole.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._lines: dict[ServiceClass, list[tuple[tuple[bool, bool, int, int], R]]] = {
            c: [] for c in ServiceClass
        }
        self._members: dict[R, tuple[Member, tuple[bool, bool, int, int]]] = {}
        self._ahead: deque[R] = deque()
        self._absent: set[R] = set()

    def __len__(self) -> int:
        """Requests waiting."""
        return len(self._members)

    def __iter__(self) -> Iterator[R]:
        """All of them, in the order they would be taken."""
        ahead = [r for r in self._ahead if r in self._members]
        yield from ahead
        seen = set(ahead)
        for line in self._lines.values():
            yield from (r for _, r in line if r not in seen)

    def count(self, service_class: ServiceClass) -> int:
        """Requests of a class that wait."""
        return len(self._lines[service_class])

    def leading(self, service_class: ServiceClass, count: int) -> list[R]:
        """The first of a line, at most `count`."""
        return [r for _, r in self._lines[service_class][:count]]

    def add(self, request: R, member: Member) -> None:
        """Let a request wait where it belongs; one that waits already takes its place anew."""
        if request in self._members:
            self.remove(request)
        place = member.place
        insort(self._lines[member.service_class], (place, request), key=lambda entry: entry[0])
        self._members[request] = (member, place)

    def remove(self, request: R) -> None:
        """It waits no longer. Raises ValueError if it did not."""
        if request not in self._members:
            raise ValueError("the request does not wait here")
        member, place = self._members.pop(request)
        line = self._lines[member.service_class]
        del line[bisect_left(line, place, key=lambda entry: entry[0])]
        self._absent.discard(request)

    def discard(self, requests: Iterable[R]) -> None:
        """Remove those of the requests that wait here."""
        for request in requests:
            if request in self._members:
                self.remove(request)

    def first(self) -> R | None:
        """Whose turn it is; None if nobody may be taken in this step."""
        while self._ahead:
            if self._ahead[0] in self._members:
                return self._ahead[0]
            self._ahead.popleft()
        for line in self._lines.values():
            for _, request in line:
                if request not in self._absent:
                    return request
        return None

    def arrange(self, ahead: Iterable[R], absent: Iterable[R] = ()) -> None:
        """For the step to come: these first, in this order, and those not at all."""
        self._ahead = deque(ahead)
        self._absent = set(absent)
