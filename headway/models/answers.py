"""The parts of a chat answer: reasoning, content, and calls of functions."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class PartKind(Enum):
    """What a piece of an answer is.

    CALL: a call begins; the text is the function's name. ARGUMENTS: a further piece of the last
    call's arguments, which are JSON when put together.
    """

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"
    ARGUMENTS = "arguments"


class Part(NamedTuple):
    """A piece of an answer. `call`: number of the call it belongs to, from 0. A tuple, since one is
    made for each token."""

    kind: PartKind
    text: str
    call: int = 0


class PartReader(Protocol):
    """Tells the parts of one answer, however its text is cut."""

    @property
    def mid_call(self) -> bool:
        """Whether the last call that was given out is not complete."""
        ...

    def push(self, text: str) -> Sequence[Part]:
        """Parts that are certain now."""
        ...

    def finish(self) -> Sequence[Part]:
        """What was held back, once no text will follow."""
        ...


def possible_start(text: str, marker: str) -> int:
    """Length of the longest end of `text` that `marker` may start with, short of all of it."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


class PlainReader:
    """All of it is content."""

    mid_call = False

    def push(self, text: str) -> Sequence[Part]:
        """The text as it is."""
        return (Part(PartKind.CONTENT, text),) if text else ()

    def finish(self) -> Sequence[Part]:
        """Nothing is held back."""
        return ()
