"""Ctrl-C that is not lost."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, main_thread
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
            # Not before this hook is left: in here it would be dropped once more.
            leaving = Event()
            Thread(target=_again, args=(leaving,), daemon=True).start()
            leaving.set()
        else:
            report(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = report


def _again(leaving: Event) -> None:
    """Interrupt the main thread, so that what it waits in ends too, a moment after the event."""
    leaving.wait()
    time.sleep(_AGAIN_S)
    main = main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


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
