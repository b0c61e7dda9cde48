"""From tokens to text: incremental decoding and stop strings, one choice at a time."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

from headway.engine.types import TokenInfo


class TextStream(Protocol):
    """Decodes one answer token by token."""

    def push(self, token: int) -> str:
        """Text that is certain now; empty in the middle of a character."""
        ...

    def flush(self) -> str:
        """What is left at the end; U+FFFD where it isn't valid text."""
        ...


class Detokenizer(Protocol):
    """Makes a stream for each answer."""

    def stream(self, shown: Set[int] = frozenset()) -> TextStream:
        """`shown`: control tokens that appear in the text, by their names."""
        ...


class StopMatcher:
    """Finds stop strings in a text that arrives in pieces.

    The stop that is complete first counts, however the text is cut; of two that end together, the
    longer. Text that may still become part of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.hit = False

    def push(self, piece: str) -> str:
        """Text that is safe to show. After a hit, which ends the text, always empty."""
        if self.hit:
            return ""
        if not self._held and self._first_chars.isdisjoint(piece):
            return piece
        text = self._held + piece
        start = self._first_match(text)
        if start is not None:
            self.hit, self._held = True, ""
            return text[:start]
        held = self._possible_start(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The held text, once no more can follow."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string starts with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


@dataclass(frozen=True, slots=True)
class Released:
    """Text to show, and the tokens that are fully part of it."""

    text: str
    tokens: tuple[TokenInfo, ...]


@dataclass(slots=True)
class _Held:
    """A token not given out yet, and where its text starts and ends in the answer.

    end: inf in the middle of a character, whose text the token that completes it brings.
    """

    info: TokenInfo
    start: int
    end: float


class ChoiceText:
    """The text of one choice. A token leaves together with the last of its text, so the tokens
    given out in all are those that the answer keeps.

        tokens:  [ given out ][ _due ][ _held .............. ]
        text:    [ shown ............ ][ held by the matcher ]

    silent: token ids that show no text (those that end the answer).
    """

    def __init__(
        self, stream: TextStream, stops: Sequence[str] = (), silent: Set[int] = frozenset()
    ) -> None:
        self._stream = stream
        self._silent = silent
        self._matcher = StopMatcher(stops)
        self._held: list[_Held] = []
        self._due: list[TokenInfo] = []
        self._ready: list[str] = []
        self._pushed_chars = 0
        self._shown_chars = 0.0
        self._given_out = 0

    @property
    def hit(self) -> bool:
        """Whether a stop string is complete."""
        return self._matcher.hit

    @property
    def keep_tokens(self) -> int:
        """After a hit: tokens of the answer, those with any text before the stop string."""
        return self._given_out + len(self._due) + self._num_due()

    def push(self, info: TokenInfo) -> None:
        """Take a sampled token in."""
        start = self._pushed_chars
        if info.token in self._silent:
            self._held.append(_Held(replace(info, shown=False), start, start))
            return
        piece = self._stream.push(info.token)
        if not piece:
            self._held.append(_Held(info, start, math.inf))
            return
        self._pushed_chars += len(piece)
        shown = self._matcher.push(piece)
        self._show(shown)
        if not self._held and len(shown) == len(piece):
            self._due.append(info)  # the common case: nothing is held back
            return
        self._held.append(_Held(info, start, math.inf))
        self._settle_ends()

    def finish(self) -> None:
        """No token will follow: release everything that was held, unless a stop string cut it."""
        if not self.hit:
            self._show(self._matcher.push(self._stream.flush()))
        if not self.hit:
            self._show(self._matcher.flush())
            self._shown_chars = math.inf

    def take(self) -> Released:
        """What became certain since the last call."""
        if self._held:
            count = self._num_due()
            self._due += [held.info for held in self._held[:count]]
            del self._held[:count]
        tokens = tuple(self._due)
        self._due.clear()
        self._given_out += len(tokens)
        text = "".join(self._ready)
        self._ready.clear()
        return Released(text, tokens)

    def _settle_ends(self) -> None:
        """The text so far is that of all tokens so far."""
        for held in reversed(self._held):
            if held.end < math.inf:
                return
            held.end = self._pushed_chars

    def _show(self, text: str) -> None:
        if text:
            self._ready.append(text)
            self._shown_chars += len(text)

    def _num_due(self) -> int:
        """Leading tokens to give out: all of whose text is shown, or, once a stop string has cut
        the answer, any of it."""
        due = 0
        for held in self._held:
            if held.end > self._shown_chars and not (self.hit and held.start < self._shown_chars):
                break
            due += 1
        return due
