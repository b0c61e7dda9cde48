"""What people wrote into a conversation, kept from passing for what its template writes.

A template's text marks turns with control tokens, `<|im_end|>` for one. A content that spells such
a name means the characters. So before a template is rendered a mark is put into each name that
stands in a content; `Tokenizer.encode` reads a name with a mark in it as plain text, without the
mark.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from headway.models.reasoning import CLOSES, OPENS

MARK = "\udfff"
"""Half of a surrogate pair, which no text that can be encoded holds."""

_TAGS = re.compile(f"({re.escape(OPENS)}|{re.escape(CLOSES)})")

Shield = Callable[[str], str]


def name_pattern(names: Sequence[str]) -> re.Pattern[str] | None:
    """Finds the longest of the names at each place, as a group; None where there are none. One of a
    single character has no inside for a mark, and is left out."""
    ordered = sorted([n for n in names if len(n) > 1], key=lambda name: (-len(name), name))
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None


def marked(text: str, names: re.Pattern[str] | None) -> str:
    """The text with a mark inside of every name, overlapping ones too."""
    while names is not None and names.search(text):
        text = names.sub(lambda found: found[0][:1] + MARK + found[0][1:], text)
    return text


def shielded_turns(
    turns: Sequence[Mapping[str, object]], shield: Shield
) -> list[Mapping[str, object]]:
    """Turns of a conversation whose texts make no control tokens. What the assistant wrote keeps
    its tags of reasoning, which templates look for."""

    def spared(text: str) -> str:
        parts = _TAGS.split(text)
        return "".join(part if _TAGS.fullmatch(part) else shield(part) for part in parts)

    return [
        {
            name: shielded(value, spared if turn.get("role") == "assistant" else shield)
            for name, value in turn.items()
        }
        for turn in turns
    ]


def shielded(value: object, shield: Shield) -> object:
    """A value of JSON with every text in it shielded."""
    match value:
        case str():
            return shield(value)
        case list() | tuple():
            return [shielded(item, shield) for item in value]
        case dict():
            return {shielded(k, shield): shielded(v, shield) for k, v in value.items()}
        case _:
            return value
