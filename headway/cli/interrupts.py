"""Ctrl-C that is not lost."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Timer, main_thread
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_S = 0.01


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt anew where it was dropped, until the block ends.

    It comes up wherever the main thread is. From a finaliser or the callback of a weak reference,
    as every import has one, the interpreter would print it and go on.
    """
    report = sys.unraisablehook

    def hook(dropped: "UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            # To the main thread, so that what it waits in ends too.
            again = Timer(_AGAIN_S, signal.pthread_kill, [main_thread().ident, signal.SIGINT])
            again.daemon = True
            again.start()
        else:
            report(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = report


@contextmanager
def noted_interrupts() -> Iterator[Event]:
    """Set the event on ctrl-C, and raise nothing, until the block ends. In the main thread.

    For while other threads import or load: an exception in the middle of an import may leave a lock
    taken that they wait for then, for ever.
    """
    noted = Event()

    def note(number: int, frame: FrameType | None) -> None:
        noted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
