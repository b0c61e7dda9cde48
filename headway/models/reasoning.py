"""Reasoning: what a model writes between `<think>` and `</think>` before it answers."""

from collections.abc import Callable, Sequence
from enum import Enum

from headway.models.answers import Part, PartKind, PartReader, possible_start
from headway.models.grammars import quoted

OPENS = "<think>"
CLOSES = "</think>"


class Thinking(Enum):
    """How an answer begins.

    NEVER: with content: the model knows no reasoning, or the prompt has closed it.
    MAYBE: with reasoning if its first word is `<think>`.
    BEGUN: within reasoning, which the prompt has opened.
    """

    NEVER = "never"
    MAYBE = "maybe"
    BEGUN = "begun"


def thinking_of(template: str, prompt: str) -> Thinking:
    """How the answer to a rendered prompt begins."""
    end = prompt.rstrip()
    if CLOSES not in template or end.endswith(CLOSES):
        return Thinking.NEVER
    return Thinking.BEGUN if end.endswith(OPENS) else Thinking.MAYBE


class _Place(Enum):
    START = "before the first word"
    INSIDE = "in reasoning"
    OUTSIDE = "in content"


class ReasoningReader:
    """Tells reasoning from the rest, which another reader takes apart; see `answers.PartReader`.
    Line breaks around the tags belong to neither."""

    def __init__(self, thinking: Thinking, inner: PartReader) -> None:
        """`thinking` other than NEVER."""
        self._place = _Place.INSIDE if thinking is Thinking.BEGUN else _Place.START
        self._inner = inner
        self._held = ""
        self._fresh = True

    @property
    def mid_call(self) -> bool:
        """As the other reader says."""
        return self._inner.mid_call

    def push(self, text: str) -> Sequence[Part]:
        """Parts that are certain now."""
        parts: list[Part] = []
        self._held += text
        if self._place is _Place.START:
            self._start()
        if self._place is _Place.INSIDE:
            self._inside(parts)
        if self._place is _Place.OUTSIDE:
            parts += self._outside()
        return parts

    def finish(self) -> Sequence[Part]:
        """What was held back, once no text will follow."""
        if self._place is _Place.INSIDE:
            text = self._trimmed(self._held).rstrip("\n")
            return [Part(PartKind.REASONING, text)] if text else []
        return [*self._inner.push(self._held), *self._inner.finish()]

    def _start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPENS):
            self._held, self._place = text[len(OPENS) :], _Place.INSIDE
        elif text and possible_start(text, OPENS) != len(text):
            self._fresh, self._place = False, _Place.OUTSIDE

    def _inside(self, parts: list[Part]) -> None:
        held = self._trimmed(self._held)
        text, closes, rest = held.partition(CLOSES)
        if not closes:
            text = text[: len(text) - possible_start(text, CLOSES)]
        shown = text.rstrip("\n")
        if shown:
            self._fresh = False
            parts.append(Part(PartKind.REASONING, shown))
        if closes:
            self._held, self._place, self._fresh = rest, _Place.OUTSIDE, True
        else:
            self._held = held[len(shown) :]

    def _outside(self) -> Sequence[Part]:
        text, self._held = self._trimmed(self._held), ""
        if text:
            self._fresh = False
        return self._inner.push(text)

    def _trimmed(self, text: str) -> str:
        """Without line breaks right behind a tag."""
        return text.lstrip("\n") if self._fresh else text


class ReasoningMeter:
    """Counts the tokens of an answer's reasoning, tags included."""

    def __init__(self, thinking: Thinking) -> None:
        self.tokens = 0
        self._pending = 0
        self._begun = thinking is Thinking.BEGUN
        self._over = thinking is Thinking.NEVER
        self._tail = b""

    @property
    def counting(self) -> bool:
        """Whether further tokens can be of reasoning."""
        return not self._over

    def push(self, token: bytes) -> None:
        """Count a token, by the bytes it stands for."""
        if self._over:
            return
        self._tail += token
        self._pending += 1
        if not self._begun:
            text = self._tail.lstrip()
            self._begun = text.startswith(OPENS.encode())
            self._over = not self._begun and not OPENS.encode().startswith(text)
        if self._begun:
            self.tokens += self._pending
            self._pending = 0
            self._over = CLOSES.encode() in self._tail
            self._tail = self._tail[-len(CLOSES) :]


def reasoning_frame(thinking: Thinking, term: Callable[[str], str]) -> str:
    """A Lark grammar of reasoning and then `@answer`; "" where there is no reasoning.

    term: writes a marker.
    """
    if thinking is Thinking.NEVER:
        return ""
    inner = f"{_ANY} {term(CLOSES)}"
    if term(CLOSES) == quoted(CLOSES):
        inner = f"inner\ninner[suffix={term(CLOSES)}]: {_ANY}"
    if thinking is Thinking.BEGUN:
        return f"start: reasoning BREAKS @answer\nreasoning: {inner}\n{_BREAKS}"
    opened = f"start: (reasoning BREAKS)? @answer\nreasoning: {term(OPENS)} {inner}"
    return f"{opened}\n{_BREAKS}"


_ANY = r"/(?s:.*)/"
_BREAKS = r"BREAKS: /\n{0,4}/"
