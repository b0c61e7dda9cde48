"""From the engine thread to whoever waits: mailboxes, bells and the two kinds of generation.

The engine thread drops parcels into mailboxes and rings each bell once a step: one call per event
loop (`call_soon_threadsafe` with all its mailboxes), however many requests got a token. Text that
no verdict depends on is decoded on the reader's side, while the next step computes. A reader that
is slow finds everything that waits for a choice merged into one delta.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.request import Usage
from headway.core.types import FinishReason, RequestId
from headway.engine.text import ChoiceText
from headway.engine.types import Delta, TokenInfo


@dataclass(slots=True)
class Parcel:
    """One choice's news of one step.

    text: None where the reader decodes `tokens` itself.
    """

    choice: int
    tokens: Sequence[TokenInfo] = ()
    text: str | None = None
    finish: FinishReason | None = None
    usage: Usage | None = None
    message: str = ""


class Mailbox:
    """Parcels on their way from the engine thread to one reader. Lock-free: the deque's ends are
    atomic, and `_rung` is set after a parcel is in and cleared before they are taken out.

    wake: called by the bell to wake the reader.
    patient: whether the bell is rung for the last parcel of a choice only.
    """

    def __init__(self, bell: "Bell", wake: Callable[[], None], patient: bool = False) -> None:
        self.bell = bell
        self.wake = wake
        self.patient = patient
        self._parcels: deque[Parcel] = deque()
        self._rung = False

    def put(self, parcel: Parcel) -> bool:
        """Add a parcel; True if the bell must be rung for it."""
        self._parcels.append(parcel)
        if self._rung or (self.patient and parcel.finish is None):
            return False
        self._rung = True
        return True

    def take_all(self) -> list[Parcel]:
        """Everything that waits, oldest first."""
        self._rung = False
        parcels = []
        while self._parcels:
            parcels.append(self._parcels.popleft())
        return parcels


def wake_all(mailboxes: Iterable[Mailbox]) -> None:
    """Wake the reader of each mailbox."""
    for mailbox in mailboxes:
        mailbox.wake()


class Bell(Protocol):
    """Tells readers of one kind that their mailboxes have something. Called by the engine."""

    def ring(self, mailboxes: Sequence[Mailbox]) -> None: ...

    def settle(self, limit_s: float) -> None:
        """Wait, `limit_s` at most, until readers rung last have dealt with what they had."""


class Outbox:
    """The mailboxes filled in one step, by bell."""

    def __init__(self) -> None:
        self._filled: dict[Bell, list[Mailbox]] = {}
        self._rung: Sequence[Bell] = ()

    def put(self, mailbox: Mailbox, parcel: Parcel) -> None:
        """Drop a parcel in."""
        if mailbox.put(parcel):
            self._filled.setdefault(mailbox.bell, []).append(mailbox)

    def flush(self) -> None:
        """Ring each bell once."""
        for bell, mailboxes in self._filled.items():
            bell.ring(mailboxes)
        self._rung, self._filled = tuple(self._filled), {}

    def settle(self, limit_s: float) -> None:
        """Wait for the readers of the last flush, each bell's for `limit_s` at most."""
        for bell in self._rung:
            bell.settle(limit_s)
        self._rung = ()


class LoopBell:
    """Wakes the readers of one event loop, in one call. Equal for equal loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._settled = threading.Lock()
        """Held while readers are at it. Whoever rings and settles is one thread."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoopBell) and other._loop is self._loop

    def __hash__(self) -> int:
        return id(self._loop)

    def ring(self, mailboxes: Sequence[Mailbox]) -> None:
        """Schedule the wake-ups; where the loop has been closed, nobody reads any more."""
        self._settled = threading.Lock()
        self._settled.acquire()
        try:
            self._loop.call_soon_threadsafe(self._wake, mailboxes, self._settled.release)
        except RuntimeError:
            self._settled.release()

    def settle(self, limit_s: float) -> None:
        """What the wake-ups made the loop do next has been done too."""
        self._settled.acquire(timeout=limit_s)

    def _wake(self, mailboxes: Sequence[Mailbox], settled: Callable[[], None]) -> None:
        wake_all(mailboxes)
        self._loop.call_soon(settled)


class ThreadBell:
    """Wakes readers that are plain threads."""

    def ring(self, mailboxes: Sequence[Mailbox]) -> None:
        """Wake each at once."""
        wake_all(mailboxes)

    def settle(self, limit_s: float) -> None:
        """They may take as long as they like."""


class Assembler:
    """Turns parcels into deltas: decodes where that is left to the reader, merges by choice."""

    def __init__(self, texts: Sequence[ChoiceText]) -> None:
        self._texts = texts
        self._open = set(range(len(texts)))

    @property
    def finished(self) -> bool:
        """Whether every choice has had its last delta."""
        return not self._open

    def assemble(self, parcels: Iterable[Parcel]) -> list[Delta]:
        """One delta for each choice in `parcels` that has news."""
        by_choice: dict[int, list[Parcel]] = {}
        for parcel in parcels:
            by_choice.setdefault(parcel.choice, []).append(parcel)
        deltas = [self._merge(choice, group) for choice, group in by_choice.items()]
        return [d for d in deltas if d.text or d.tokens or d.finish is not None]

    def _merge(self, choice: int, parcels: Sequence[Parcel]) -> Delta:
        texts: list[str] = []
        tokens: list[TokenInfo] = []
        last = parcels[-1]
        for parcel in parcels:
            if parcel.text is None:
                released = self._decode(choice, parcel)
                texts.append(released[0])
                tokens += released[1]
            else:
                texts.append(parcel.text)
                tokens += parcel.tokens
        if last.finish is not None:
            self._open.discard(choice)
        return Delta(choice, "".join(texts), tuple(tokens), last.finish, last.usage, last.message)

    def _decode(self, choice: int, parcel: Parcel) -> tuple[str, tuple[TokenInfo, ...]]:
        text = self._texts[choice]
        for info in parcel.tokens:
            text.push(info)
        if parcel.finish is not None:
            text.finish()
        released = text.take()
        return released.text, released.tokens


class Reading:
    """What both kinds of generation share: deltas out of one mailbox, and the way to abort."""

    def __init__(self, mailbox: Mailbox, assembler: Assembler, abort: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._assembler = assembler
        self._abort = abort
        self._ready: deque[Delta] = deque()

    @property
    def over(self) -> bool:
        """Whether the last delta of every choice has been assembled."""
        return self._assembler.finished

    def take(self) -> Delta | None:
        """The next delta; None where none is there yet, or ever again."""
        if not self._ready and not self.over:
            self._ready += self._assembler.assemble(self._mailbox.take_all())
        return self._ready.popleft() if self._ready else None

    def abort(self) -> None:
        """Abort what still runs."""
        if not self.over:
            self._abort()

    def hold(self) -> None:
        """Be told of ends only; what comes before waits for them."""
        self._mailbox.patient = True

    def forget(self) -> None:
        """Drop what was assembled and not taken."""
        self._ready.clear()


class AsyncGeneration:
    """An answer read in an event loop; see `engine.types.Generation`. One that is dropped without
    `aclose` aborts too."""

    def __init__(
        self, reading: Reading, filled: asyncio.Event, requests: Sequence[RequestId]
    ) -> None:
        """`filled`: set when the mailbox has something."""
        self.requests = requests
        self._reading = reading
        self._filled = filled
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while (delta := None if self._closed else self._reading.take()) is None:
            if self._closed or self._reading.over:
                raise StopAsyncIteration
            await self._filled.wait()
            self._filled.clear()
        return delta

    async def aclose(self) -> None:
        """Abort what still runs, and end the iteration."""
        self._close()
        self._reading.forget()
        self._filled.set()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._reading.abort()


class SyncGeneration:
    """An answer read by a plain thread: an iterator of deltas. Dropping it aborts too."""

    def __init__(self, reading: Reading, filled: threading.Event) -> None:
        """`filled`: set when the mailbox has something."""
        self._reading = reading
        self._filled = filled

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while (delta := self._reading.take()) is None:
            if self._reading.over:
                raise StopIteration
            self._filled.wait()
            self._filled.clear()
        return delta

    def hold(self) -> None:
        """Deltas come when a choice ends, and not before: the reader is woken no more than that."""
        self._reading.hold()

    def close(self) -> None:
        """Abort what still runs; idempotent. The iteration then ends with ABORT deltas."""
        self._reading.abort()

    def __del__(self) -> None:
        self.close()
