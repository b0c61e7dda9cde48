"""Reads one call of a function, `{"name": …, "arguments": {…}}`, as its text comes."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class ScanState(Enum):
    """READING: more may come. DONE: the object is complete. FAILED: it is no call."""

    READING = auto()
    DONE = auto()
    FAILED = auto()


class _Place(Enum):
    OPEN = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA = auto()


@dataclass(slots=True)
class _Value:
    """A value under way: its text, how deep it is nested, and whether it is inside a string."""

    text: list[str] = field(default_factory=list)
    depth: int = 0
    in_string: bool = False
    escaped: bool = False

    def take(self, char: str) -> bool:
        """Add a character; whether the value ends with it."""
        self.text.append(char)
        if self.in_string:
            if self.escaped:
                self.escaped = False
            elif char == "\\":
                self.escaped = True
            elif char == '"':
                self.in_string = False
                return self.depth == 0
        elif char == '"':
            self.in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1
            return self.depth == 0
        return False


class CallScanner:
    """One object. Its arguments are given out while they come, once the name is known.

    raw: all of the text that was taken in, for when it turns out to be no call.
    name: of the function, "" until it is known and its arguments have begun.
    """

    def __init__(self, known: Callable[[str], bool], name: str = "") -> None:
        """known: whether a function of that name exists. name: of the function, where the object
        is its arguments alone."""
        self.state = ScanState.READING
        self.name = ""
        self._known = known
        self._alone = bool(name)
        self._raw: list[str] = []
        self._place = _Place.VALUE if name else _Place.OPEN
        self._key = ARGUMENT_KEYS[0] if name else ""
        self._value = _Value()
        self._found_name = name
        self._arguments: list[str] = []
        self._given = 0
        self._has_arguments = False

    @property
    def raw(self) -> str:
        """All of the text so far."""
        return "".join(self._raw)

    def push(self, text: str) -> int:
        """Take text in up to the end of the object; how many characters that was."""
        for count, char in enumerate(text):
            if self.state is not ScanState.READING:
                return count
            self._raw.append(char)
            self._step(char)
        return len(text)

    def take_arguments(self) -> str:
        """Arguments that have come since the last call of this; empty while the name is unknown."""
        if not self.name:
            return ""
        fresh = "".join(self._arguments[self._given :])
        self._given = len(self._arguments)
        return fresh

    def _step(self, char: str) -> None:
        if self._place is _Place.IN_VALUE:
            self._in_value(char)
        elif self._place is _Place.IN_KEY:
            if self._value.take(char):
                self._key, self._place = _text(self._value.text), _Place.COLON
        elif char in _SPACE:
            return
        elif self._place is _Place.OPEN:
            self._expect(char == "{", _Place.KEY)
        elif self._place is _Place.COLON:
            self._expect(char == ":", _Place.VALUE)
        elif self._place is _Place.VALUE:
            self._begin_value(char)
        elif char == "}":
            self._end()
        elif self._place is _Place.COMMA:
            self._expect(char == ",", _Place.KEY)
        else:
            self._value = _Value()
            self._value.take(char)
            self._expect(char == '"', _Place.IN_KEY)

    def _expect(self, good: bool, then: _Place) -> None:
        self._place = then
        if not good:
            self.state = ScanState.FAILED

    def _begin_value(self, char: str) -> None:
        is_arguments = self._key in ARGUMENT_KEYS
        wrong_name = self._key in NAME_KEYS and char != '"'
        if wrong_name or (is_arguments and (char != "{" or self._has_arguments)):
            self.state = ScanState.FAILED
            return
        self._has_arguments = self._has_arguments or is_arguments
        self._value, self._place = _Value(), _Place.IN_VALUE
        self._in_value(char)

    def _in_value(self, char: str) -> None:
        scalar = self._value.depth == 0 and not self._value.in_string
        if scalar and self._value.text and char in ",}" + _SPACE:  # a number, true, false or null
            self._place = _Place.COMMA
            self._step(char)
            return
        ended = self._value.take(char)
        if self._key in ARGUMENT_KEYS:
            self._arguments.append(char)
        if ended:
            self._place = _Place.COMMA
            if self._key in NAME_KEYS:
                self._found_name = _text(self._value.text)
                if not self._known(self._found_name):
                    self.state = ScanState.FAILED
        if self._has_arguments and not self.name:
            self.name = self._found_name
        if ended and self._alone and self.state is ScanState.READING:
            self.state = ScanState.DONE

    def _end(self) -> None:
        if not self._found_name:
            self.state = ScanState.FAILED
            return
        if not self._has_arguments:
            self._arguments.append("{}")
        self.name, self.state = self._found_name, ScanState.DONE


def _text(quoted: list[str]) -> str:
    try:
        text: str = json.loads("".join(quoted))
    except ValueError:
        return ""
    return text
