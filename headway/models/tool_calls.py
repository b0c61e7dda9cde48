"""How models write calls of functions: the formats, and the readers of their answers.

    Hermes, Qwen   <tool_call>
                   {"name": "f", "arguments": {…}}
                   </tool_call>                                one pair of tags a call
    Llama 3        {"name": "f", "parameters": {…}}            perhaps after <|python_tag|>; `;`
                                                               between several
    Mistral        [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]
                   [TOOL_CALLS]f{…}                            since 2025, [ARGS] after the name

What isn't a call of a function that was offered stays content, whatever it looks like.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from headway.models.answers import Part, PartKind, possible_start
from headway.models.json_scan import CallScanner, ScanState

MAX_NAME_CHARS = 64
_SPACE = " \t\r\n"


class ToolStyle(Enum):
    """The families of formats."""

    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format.

    opens, closes: what stands before calls, and after each.
    arguments_key: where the arguments are.
    bare: whether calls may stand without `opens` when they are all of the answer.
    id_chars: length that the template wants of calls' ids; 0 where it doesn't say.
    """

    style: ToolStyle
    opens: str
    closes: str = ""
    arguments_key: str = "arguments"
    bare: bool = False
    id_chars: int = 0


HERMES = ToolFormat(ToolStyle.HERMES, "<tool_call>", "</tool_call>")
LLAMA3 = ToolFormat(ToolStyle.LLAMA3, "<|python_tag|>", "", "parameters", bare=True)
MISTRAL = ToolFormat(ToolStyle.MISTRAL, "[TOOL_CALLS]", id_chars=9)
ARGS = "[ARGS]"
MARKERS = (HERMES.opens, HERMES.closes, LLAMA3.opens, MISTRAL.opens, ARGS)
"""What may be control tokens, and must be seen."""


def format_of(template: str) -> ToolFormat:
    """The format that a chat template teaches its model; Hermes' where it doesn't say."""
    if MISTRAL.opens in template or "[AVAILABLE_TOOLS]" in template:
        return MISTRAL
    if HERMES.opens in template:
        return HERMES
    if LLAMA3.opens in template or '"parameters"' in template:
        return LLAMA3
    return HERMES


class _Place(Enum):
    CONTENT = "outside of calls"
    BEFORE = "a call may begin"
    NAMED = "in a name without quotes"
    CALL = "in a call"
    AFTER = "behind a call"


class ToolReader:
    """Tells calls from content; see `answers.PartReader`."""

    def __init__(self, form: ToolFormat, names: Collection[str], many: bool = True) -> None:
        """names: of the functions that were offered. many: whether calls after the first count."""
        self._form = form
        self._names = frozenset(names)
        self._many = many
        self._place = _Place.BEFORE if form.bare else _Place.CONTENT
        self._lead = ""  # what was taken in since a call seemed to begin
        self._held = ""
        self._scanner = CallScanner(self._names.__contains__)
        self._calls = 0
        self._announced = False
        self._parts: list[Part] = []

    @property
    def mid_call(self) -> bool:
        """Whether the last call that was given out is not complete."""
        shown = self._announced and (self._many or self._calls == 1)
        return shown and self._place is _Place.CALL

    def push(self, text: str) -> Sequence[Part]:
        """Parts that are certain now."""
        self._held += text
        while self._held and self._advance():
            pass
        return self._taken()

    def finish(self) -> Sequence[Part]:
        """What was held back, once no text will follow."""
        if self._place is _Place.CALL and not self._announced:
            self._give_up(self._scanner.raw)
        if self._place not in (_Place.CALL, _Place.AFTER):
            rest = self._lead + self._held
            self._content("" if self._calls and not rest.strip() else rest)
        self._lead = self._held = ""
        return self._taken()

    def _taken(self) -> Sequence[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _advance(self) -> bool:
        """Go on with the held text; False where more must come first."""
        match self._place:
            case _Place.CONTENT:
                return self._in_content()
            case _Place.BEFORE:
                return self._before_call()
            case _Place.NAMED:
                return self._in_name()
            case _Place.CALL:
                return self._in_call()
            case _Place.AFTER:
                return self._after_call()

    def _in_content(self) -> bool:
        before, opens, rest = self._held.partition(self._form.opens)
        if opens:
            self._content(before.rstrip(_SPACE))
            self._lead, self._held, self._place = opens, rest, _Place.BEFORE
            return True
        kept = possible_start(self._held, self._form.opens)
        sure = self._held[: len(self._held) - kept].rstrip(_SPACE)  # none before a call
        self._content(sure)
        self._held = self._held[len(sure) :]
        return False

    def _before_call(self) -> bool:
        text = self._held.lstrip(_SPACE)
        self._lead += self._held[: len(self._held) - len(text)]
        self._held = text
        opens, mistral = self._form.opens, self._form.style is ToolStyle.MISTRAL
        if text.startswith("{"):
            self._begin("")
        elif mistral and text.startswith("["):
            self._shift(1)
        elif mistral and text and (text[0].isalnum() or text[0] in "_-"):
            self._place = _Place.NAMED
        elif self._form.bare and text.startswith(opens):
            self._shift(len(opens))
        elif not text or (self._form.bare and possible_start(text, opens) == len(text)):
            return False
        else:
            self._give_up("")
        return True

    def _in_name(self) -> bool:
        """`f{…}` or `f[ARGS]{…}`."""
        name = self._held.partition("{")[0]
        if name == self._held and len(name) <= MAX_NAME_CHARS + len(ARGS):
            return False
        bare = name.strip(_SPACE).removesuffix(ARGS)
        if bare not in self._names:
            self._give_up("")
            return True
        self._shift(len(name))
        self._begin(bare)
        return True

    def _begin(self, name: str) -> None:
        self._scanner = CallScanner(self._names.__contains__, name)
        self._place, self._announced = _Place.CALL, False

    def _in_call(self) -> bool:
        scanner = self._scanner
        taken = scanner.push(self._held)
        self._held = self._held[taken:]
        if scanner.name and not self._announced:
            self._announced = True
            self._calls += 1
            self._call_part(PartKind.CALL, scanner.name)
        self._call_part(PartKind.ARGUMENTS, scanner.take_arguments())
        if scanner.state is ScanState.FAILED:
            self._give_up("" if self._announced else scanner.raw)
        elif scanner.state is ScanState.DONE:
            self._lead, self._place = "", _Place.AFTER
        return True

    def _after_call(self) -> bool:
        text, form = self._held.lstrip(_SPACE), self._form
        if not text or (form.closes and possible_start(text, form.closes) == len(text)):
            return False
        if text[0] == _BETWEEN.get(form.style):
            self._held, self._place = text[1:], _Place.BEFORE
        else:
            end = form.closes or "]"
            self._held, self._place = text.removeprefix(end), _Place.CONTENT
        return True

    def _shift(self, count: int) -> None:
        """Move held text to the lead."""
        self._lead += self._held[:count]
        self._held = self._held[count:]

    def _give_up(self, raw: str) -> None:
        """What looked like a call isn't one: it was content all along."""
        self._content(self._lead + raw)
        self._lead, self._place = "", _Place.CONTENT

    def _call_part(self, kind: PartKind, text: str) -> None:
        if text and (self._many or self._calls == 1):
            self._parts.append(Part(kind, text, self._calls - 1))

    def _content(self, text: str) -> None:
        if text:
            self._parts.append(Part(PartKind.CONTENT, text))


_BETWEEN = {ToolStyle.LLAMA3: ";", ToolStyle.MISTRAL: ","}
"""What stands between calls that share one marker."""
