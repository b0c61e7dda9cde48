"""What a chat template's rendering may cost, and what each operation on data does cost."""

import re
from collections.abc import Iterable, Sized

import jinja2
from jinja2.runtime import Undefined

OPERATION = 256
"""What one operation costs, in characters."""

_MAX_INT_BITS = 4096
_SCALARS = (str, int, float, bool, type(None), Undefined)
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\*|\d{4})")
_ITEM_CHARS = 4
_PIECE_CHARS = 16
"""What each character costs where a string may become as many strings."""


class BudgetExceededError(Exception):
    """A rendering did more work than allowed."""


class Budget:
    """Work a rendering may still do, in characters. Each `charge` method takes the cost of an
    operation off before it runs, and raises BudgetExceededError when nothing is left."""

    def __init__(self, work: int) -> None:
        self._left = work

    def charge(self, work: int) -> None:
        """Take `work` off."""
        self._left -= work
        if self._left < 0:
            raise BudgetExceededError

    def charge_value(self, value: object) -> None:
        """For a value's size, shared parts as often as they appear."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, list | tuple | set | frozenset):
            self.charge(OPERATION * len(value))
            for item in value:
                self.charge_value(item)
        elif isinstance(value, dict):
            self.charge(OPERATION * len(value))
            for key, item in value.items():
                self.charge_value(key)
                self.charge_value(item)
        elif isinstance(value, range):
            self.charge(OPERATION * len(value))
        elif isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
            raise BudgetExceededError

    def charge_items(self, value: object) -> None:
        """For a pass over a value's items, or making a list of them."""
        if isinstance(value, str):
            self.charge(_PIECE_CHARS * len(value))
        elif isinstance(value, Sized):
            self.charge(OPERATION * len(value))

    def charge_text(self, value: object) -> None:
        """For a value that becomes text; only plain data may, or TemplateRuntimeError."""
        if not is_scalar(value) and not isinstance(value, list | tuple | dict):
            raise jinja2.TemplateRuntimeError(f"a {type(value).__name__} can't be written as text")
        self.charge_value(value)

    def charge_join(self, separator: str, parts: Iterable[object]) -> None:
        """For a text of all parts, of any plain kind, with the separator between them."""
        for part in parts:
            self.charge(OPERATION + len(separator))
            self.charge_text(part)

    def charge_method(self, owner: str, name: str, args: tuple[object, ...]) -> None:
        """For `owner.name(*args)` of a string."""
        texts = [arg for arg in args if isinstance(arg, str)]
        self.charge(len(owner))
        if name == "replace" and len(texts) == 2:
            self.charge(owner.count(texts[0]) * len(texts[1]))
        elif name == "join" and args and isinstance(args[0], list | tuple | str | dict):
            self.charge_join(owner, args[0])
        elif name in ("split", "rsplit", "splitlines"):
            pieces = owner.count(texts[0]) * OPERATION if texts else len(owner) * _PIECE_CHARS
            self.charge(pieces)
        if texts and name in _QUADRATIC:
            self.charge(len(owner) * len(texts[0]))

    def charge_binary(self, operator: str, left: object, right: object) -> None:
        """For `left operator right`. Numbers of more than 4096 bits are too much at once."""
        self.charge(OPERATION)
        bits = max(_bits(left), _bits(right))
        if operator == "%" and isinstance(left, str):
            self._charge_format(left, right)
        elif operator == "+":
            self.charge(shallow_size(left) + shallow_size(right))
        elif operator == "*":
            bits = max(bits, self._charge_product(left, right))
        elif operator == "**":
            exponent = abs(right) if isinstance(right, int | float) else 0
            bits = max(bits, int(min(exponent, _MAX_INT_BITS + 1)) * _bits(left))
        if bits > _MAX_INT_BITS:
            raise BudgetExceededError

    def _charge_product(self, left: object, right: object) -> int:
        """For left * right; returns the bits of a product of numbers."""
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list | tuple) and isinstance(other, int):
                self.charge(shallow_size(one) * max(other, 0))
                return 0
        return _bits(left) + _bits(right)

    def _charge_format(self, pattern: str, values: object) -> None:
        if _WIDE_FORMAT.search(pattern):
            raise BudgetExceededError
        self.charge(len(pattern) + 999 * pattern.count("%"))
        for value in values if isinstance(values, tuple) else (values,):
            self.charge_text(value)


_QUADRATIC = frozenset(
    ("strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition", "translate")
)
"""Methods that may look at every character of the argument for each of the string's own."""


def is_scalar(value: object) -> bool:
    """Whether a value holds no others."""
    return isinstance(value, _SCALARS)


def shallow_size(value: object) -> int:
    """What a copy of a string or container costs, its items not copied."""
    if isinstance(value, str):
        return len(value)
    return _ITEM_CHARS * len(value) if isinstance(value, list | tuple | dict) else 0


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 1
