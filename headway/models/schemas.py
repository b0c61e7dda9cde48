"""JSON schemas that would take too long to compile."""

from collections.abc import Mapping
from urllib.parse import unquote

from headway.errors import InvalidRequestError

_MAX_COMBINED = 10
"""Most patterns that one string has to match at once: where llguidance gives up on them, what it
says about it doubles with each."""

_NOT_INSIDE = frozenset(
    {"allOf", "anyOf", "oneOf", "$ref", "$defs", "definitions", "enum", "const", "default"}
)


class GrammarError(InvalidRequestError):
    """A grammar can't be made or followed any further, or a token broke it."""


def check_schema(schema: object) -> None:
    """Raises GrammarError for one that combines too many patterns, or is too deep to tell."""
    try:
        combined = _Combined(schema).most(schema)
    except RecursionError as error:
        raise GrammarError("the schema is nested too deeply") from error
    if combined > _MAX_COMBINED:
        raise GrammarError(
            f"the schema combines more than {_MAX_COMBINED} patterns and formats by 'allOf' and "
            "'$ref'"
        )


class _Combined:
    """How many patterns a schema may ask a string to match at once. Counts too many rather than too
    few."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._known: dict[int, int] = {}

    def most(self, node: object) -> int:
        """Of any string in a part of the schema."""
        if isinstance(node, list):
            return max(map(self.most, node), default=0)
        if not isinstance(node, dict):
            return 0
        if id(node) not in self._known:
            self._known[id(node)] = 0  # where it comes round to itself
            self._known[id(node)] = min(self._sum(node), _MAX_COMBINED + 1)
        return self._known[id(node)]

    def _sum(self, node: Mapping[str, object]) -> int:
        own = ("pattern" in node) + ("format" in node)
        inside = (value for key, value in node.items() if key not in _NOT_INSIDE)
        members = node.get("allOf")
        return (
            max(own, *map(self.most, inside), 0)
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
