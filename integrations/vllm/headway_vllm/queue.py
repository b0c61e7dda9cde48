"""vLLM's waiting queue, in class order."""

import time
from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from headway_vllm.classes import class_of
from headway_vllm.lines import Lines
from headway_vllm.members import Member


class Ledger:
    """The policy's memory of every live request, by vLLM's request id."""

    def __init__(self) -> None:
        """Nobody yet."""
        self._members: dict[str, Member] = {}
        self._arrivals = 0

    def of(self, request: Request) -> Member:
        """A request's history; it begins with the first call, which is its arrival."""
        member = self._members.get(request.request_id)
        if member is None:
            now_s = time.monotonic()
            member = Member(class_of(request.priority), self._arrivals, now_s, now_s)
            self._arrivals += 1
            self._members[request.request_id] = member
        return member

    def known(self, request_id: str) -> Member | None:
        """The history of a live request, None for others."""
        return self._members.get(request_id)

    def forget(self, request_id: str) -> None:
        """It has ended."""
        self._members.pop(request_id, None)

    def promoted(self) -> list[Member]:
        """Who is in the reserve."""
        return [m for m in self._members.values() if m.promoted]


class ClassQueue(RequestQueue):
    """`lines` behind vLLM's interface. A request put back goes where its class and history say, so
    adding and putting back are the same."""

    def __init__(self, ledger: Ledger) -> None:
        """An empty queue; histories come from `ledger`."""
        self.lines: Lines[Request] = Lines()
        self._ledger = ledger

    def add_request(self, request: Request) -> None:
        """Let it wait."""
        self.lines.add(request, self._ledger.of(request))

    def pop_request(self) -> Request:
        """Take whose turn it is. Raises IndexError if nobody may be taken."""
        request = self.peek_request()
        self.lines.remove(request)
        return request

    def peek_request(self) -> Request:
        """Whose turn it is. Raises IndexError if nobody may be taken."""
        request = self.lines.first()
        if request is None:
            raise IndexError("nobody may be taken from the queue")
        return request

    def prepend_request(self, request: Request) -> None:
        """Let it wait again."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Let them wait again."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Take it out, wherever it stands."""
        self.lines.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those that wait here."""
        self.lines.discard(requests)

    def __bool__(self) -> bool:
        """Whether somebody may be taken in this step."""
        return self.lines.first() is not None

    def __len__(self) -> int:
        """Who waits, those included that may not be taken in this step."""
        return len(self.lines)

    def __iter__(self) -> Iterator[Request]:
        """All, in the order they would be taken."""
        return iter(self.lines)
