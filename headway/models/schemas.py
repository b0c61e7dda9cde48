"""JSON schemas that would take too long to compile."""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from urllib.parse import unquote

from headway.errors import InvalidRequestError

_MAX_PATTERNS = 10
"""Most patterns that one string has to match at once: where llguidance gives up on them, what it
says about it doubles with each."""

_MAX_DIVISOR = 10_000
"""Largest divisor of a number: a state for each remainder, 60 ms for so many, and no limit."""

_NOT_INSIDE = frozenset(
    {"allOf", "anyOf", "oneOf", "$ref", "$defs", "definitions", "enum", "const", "default"}
)


class GrammarError(InvalidRequestError):
    """A grammar can't be made or followed any further, or a token broke it."""


def check_schema(schema: object) -> None:
    """Raises GrammarError for one that combines too many patterns, or is too deep to tell."""
    try:
        patterns = _Combined(schema, _patterns).most(schema)
        divisor = _Combined(schema, _divisor).most(schema)
    except RecursionError as error:
        raise GrammarError("the schema is nested too deeply") from error
    if patterns > _MAX_PATTERNS:
        raise GrammarError(
            f"the schema combines more than {_MAX_PATTERNS} patterns and formats by 'allOf' and "
            "'$ref'"
        )
    if divisor > math.log(_MAX_DIVISOR):
        raise GrammarError(
            f"the schema's 'multipleOf' comes to more than {_MAX_DIVISOR:,}, zeros left out"
        )


def _patterns(node: Mapping[str, object]) -> float:
    """How many texts a part itself compares a string with."""
    return ("pattern" in node) + ("format" in node)


def _divisor(node: Mapping[str, object]) -> float:
    """Logarithm of what a part itself divides a number by."""
    given = node.get("multipleOf")
    if isinstance(given, bool) or not isinstance(given, int | float):
        return 0
    exact = Decimal(given) if isinstance(given, int) else Decimal(str(given))
    digits = "".join(map(str, exact.as_tuple().digits)).rstrip("0")
    return math.log(int(digits or 1)) if len(digits) < 10 else math.inf


class _Combined:
    """The most that the parts of a schema which hold for one value come to together, too much
    rather than too little."""

    def __init__(self, root: object, own: Callable[[Mapping[str, object]], float]) -> None:
        """own: what a part without its parts comes to."""
        self._root = root
        self._own = own
        self._known: dict[int, float] = {}

    def most(self, node: object) -> float:
        """Of any value in a part of the schema."""
        if isinstance(node, list):
            return max(map(self.most, node), default=0)
        if not isinstance(node, dict):
            return 0
        if id(node) not in self._known:
            self._known[id(node)] = 0  # where it comes round to itself
            self._known[id(node)] = self._sum(node)
        return self._known[id(node)]

    def _sum(self, node: Mapping[str, object]) -> float:
        inside = (value for key, value in node.items() if key not in _NOT_INSIDE)
        members = node.get("allOf")
        return (
            max(self._own(node), *map(self.most, inside), 0)
            + sum(map(self.most, members if isinstance(members, list) else ()))
            + self.most(node.get("anyOf"))
            + self.most(node.get("oneOf"))
            + self.most(self._named(node.get("$ref")))
        )

    def _named(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node = self._root
        for name in reference[1:].split("/")[1:]:
            key = unquote(name).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict):
                node = node.get(key)
            elif isinstance(node, list) and key in map(str, range(len(node))):
                node = node[int(key)]
            else:
                return None
        return node
