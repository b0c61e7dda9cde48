"""Filters of chat templates: some of Jinja's, charged for, and our own of the dangerous ones."""

import json
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, cast

import jinja2
from jinja2 import pass_context
from jinja2.runtime import Context

from headway.models.template_budget import (
    OPERATION,
    Budget,
    BudgetExceededError,
    is_scalar,
    shallow_size,
)

Plain = Callable[..., Any]

BUDGET_KEY = "rendering budget"
"""Where a rendering's context holds its budget: no variable of a template can have a space."""


class Cost(Enum):
    """What a filter or test of Jinja's own takes time for."""

    CONSTANT = "nothing that grows"
    ITEMS = "each item, or character"
    WHOLE = "everything inside, however deep"


_OUTSIDE_FILTERS = "attr count d default first items last length safe"
_ITEM_FILTERS = "list map reject rejectattr reverse select selectattr"
_WHOLE_FILTERS = """
    abs capitalize dictsort e escape float int lower max min sort string title unique upper
"""
JINJA_FILTERS = {
    **dict.fromkeys(_OUTSIDE_FILTERS.split(), Cost.CONSTANT),
    **dict.fromkeys(_ITEM_FILTERS.split(), Cost.ITEMS),
    **dict.fromkeys(_WHOLE_FILTERS.split(), Cost.WHOLE),
}
"""Jinja's own filters that templates may use."""

_OUTSIDE_TESTS = """
    boolean callable defined divisibleby even false float integer iterable mapping none number odd
    sameas sequence string true undefined
"""
JINJA_TESTS = dict.fromkeys(_OUTSIDE_TESTS.split(), Cost.CONSTANT)
"""Jinja's own tests that look at the outside of a value; the others compare."""

_MAX_INDENT = 64
_MAX_DIGITS = 20


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that `context` belongs to."""
    return cast(Budget, context.parent[BUDGET_KEY])


_PASSED: dict[str, Callable[[Context], tuple[Any, ...]]] = {
    "": lambda context: (),
    "context": lambda context: (context,),
    "eval_context": lambda context: (context.eval_ctx,),
    "environment": lambda context: (context.environment,),
}
"""What Jinja's own filters and tests ask to be given first."""


def charging(plain: Plain, cost: Cost) -> Plain:
    """A filter or test that charges for its input first."""
    wants = getattr(plain, "jinja_pass_arg", None)
    passed = _PASSED[wants.name if wants else ""]

    @pass_context
    def charged(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        budget.charge(OPERATION)
        if cost is Cost.ITEMS:
            budget.charge_items(value)
        elif cost is Cost.WHOLE:
            for item in (value, *args, *kwargs.values()):
                budget.charge_value(item)
        return plain(*passed(context), value, *args, **kwargs)

    return charged


@pass_context
def charge_loop(context: Context, value: Any) -> Any:
    """What a loop runs over, as something with a length; charged for every pass."""
    items = value if hasattr(value, "__len__") else list(value)
    budget_of(context).charge_items(items)
    return items


@pass_context
def charge_body(context: Context, nothing: str, written: int) -> str:
    """Stands at the start of a body that may run again; charges for the text in it."""
    budget_of(context).charge(OPERATION + written)
    return nothing


@pass_context
def charge_concat(context: Context, parts: list[Any]) -> str:
    """The operator ~."""
    budget_of(context).charge_join("", parts)
    return "".join(map(str, parts))


@pass_context
def charge_value(context: Context, value: Any) -> Any:
    """A value as it is, charged for its size."""
    budget = budget_of(context)
    budget.charge(OPERATION)
    budget.charge_value(value)
    return value


@pass_context
def charge_slice(context: Context, value: Any) -> Any:
    """A piece of a string or list, charged for the copy."""
    budget_of(context).charge(OPERATION + shallow_size(value))
    return value


@pass_context
def charge_tuple(context: Context, value: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tuple of plain values; Python hashes nested ones all the way down, each time."""
    if not all(is_scalar(item) for item in value):
        raise jinja2.TemplateRuntimeError("only plain values may stand in a tuple")
    budget_of(context).charge(OPERATION + len(value))
    return value


@pass_context
def charge_output(context: Context, value: Any) -> Any:
    """A value about to be written."""
    budget_of(context).charge_text(value)
    return value


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    """Jinja's join."""
    if attribute is not None:
        value = context.environment.call_filter("map", value, [], {"attribute": attribute}, context)
    budget_of(context).charge_items(value)
    parts, separator = list(value), str(d)
    budget_of(context).charge_join(separator, parts)
    return separator.join(map(str, parts))


@pass_context
def _trim(context: Context, value: str, chars: str | None = None) -> str:
    """Jinja's trim."""
    text = str(value)
    budget_of(context).charge_method(text, "strip", () if chars is None else (chars,))
    return text.strip(chars)


@pass_context
def _replace(context: Context, s: str, old: str, new: str, count: int | None = None) -> str:
    """Jinja's replace."""
    s, old, new = str(s), str(old), str(new)
    budget_of(context).charge_method(s, "replace", (old, new))
    return s.replace(old, new, -1 if count is None else count)


@pass_context
def _indent(
    context: Context, s: str, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    """Jinja's indent, for a width of at most 64."""
    prefix = width if isinstance(width, str) else " " * min(width, _MAX_INDENT + 1)
    if len(prefix) > _MAX_INDENT:
        raise BudgetExceededError
    s = str(s)
    budget_of(context).charge(OPERATION + len(s) + (s.count("\n") + 1) * OPERATION)
    lines = s.split("\n")
    kept = prefix + lines[0] if first else lines[0]
    return "\n".join([kept, *(prefix + line if line or blank else line for line in lines[1:])])


@pass_context
def _round(context: Context, value: float, precision: int = 0, method: str = "common") -> float:
    """Jinja's round to at most 20 digits after the point; none before it."""
    if not 0 <= precision <= _MAX_DIGITS or method != "common":
        raise BudgetExceededError
    budget_of(context).charge(OPERATION)
    return round(value, precision)


@pass_context
def _sum(
    context: Context, iterable: Iterable[Any], attribute: Any = None, start: float = 0
) -> float:
    """Jinja's sum, of numbers only: of lists it is quadratic."""
    if attribute is not None:
        given = {"attribute": attribute}
        iterable = context.environment.call_filter("map", iterable, [], given, context)
    total = start
    for item in iterable:
        budget_of(context).charge_binary("+", total, item)
        if not isinstance(item, int | float) or not isinstance(total, int | float):
            raise jinja2.TemplateRuntimeError("only numbers can be summed")
        total += item
    return total


@pass_context
def _tojson(
    context: Context,
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as `transformers` gives it: not escaped for HTML."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise BudgetExceededError
    budget = budget_of(context)
    budget.charge_text(value)
    budget.charge_value(separators)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    budget.charge(len(text))
    return text


OWN_FILTERS: dict[str, Plain] = {
    "charged loop": charge_loop,
    "charged body": charge_body,
    "charged concat": charge_concat,
    "charged value": charge_value,
    "charged slice": charge_slice,
    "charged tuple": charge_tuple,
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "round": _round,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _trim,
}
"""Filters of our own; no template can spell those with a space."""
