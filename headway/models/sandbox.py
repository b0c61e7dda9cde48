"""A Jinja environment for templates that strangers wrote: no way out, and no way to run on.

Jinja's own sandbox keeps a template from Python's internals but not from endless work: ten lines
of doubling make a gigabyte. Here every operation whose cost depends on data is charged, before it
runs, to the `Budget` of the rendering:

    loops              passes, and the text their bodies write
    calls, filters     one operation, and the size of what they take and return
    literals, +, ~, *  the size of the result, everything inside it counted as often as it appears
    comparisons        the size of the right side
    output             its characters

The syntax tree is rewritten so that loops, literals, ~ and comparisons go through filters that
charge; attributes of strings, filters, tests and globals are allow-lists.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.errors import InvalidRequestError

_OPERATION = 64
"""What one operation costs, in characters."""

_Plain = Callable[..., Any]

_BUDGET_KEY = "rendering budget"
"""Where a rendering's context holds its budget: no variable of a template can have a space."""

_MAX_INT_BITS = 4096
_MAX_INDENT = 64
_MAX_TEMPLATE_CHARS = 1 << 17

_STRING_METHODS = """
    capitalize casefold count endswith find index isalnum isalpha isdigit islower isnumeric isspace
    istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex
    rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
_FILTERS = """
    abs attr capitalize count d default dictsort e escape first float int items last length list
    lower map max min reject rejectattr reverse round safe select selectattr sort string sum title
    trim unique upper
"""
_SCALARS = (str, int, float, bool, type(None), Undefined)
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\*|\d{4})")


class BudgetExceededError(Exception):
    """A rendering did more work than allowed."""


class Budget:
    """Work a rendering may still do, in characters."""

    def __init__(self, work: int) -> None:
        self._left = work

    def charge(self, work: int) -> None:
        """Take `work` off; raises BudgetExceededError when nothing is left."""
        self._left -= work
        if self._left < 0:
            raise BudgetExceededError

    def charge_for(self, value: object) -> None:
        """Charge a value's size, shared parts as often as they appear."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, list | tuple | set | frozenset):
            self.charge(_OPERATION * len(value))
            for item in value:
                self.charge_for(item)
        elif isinstance(value, dict):
            self.charge(_OPERATION * len(value))
            for key, item in value.items():
                self.charge_for(key)
                self.charge_for(item)
        elif isinstance(value, range):
            self.charge(_OPERATION * len(value))


def context_for(variables: Mapping[str, object], budget: Budget) -> dict[str, object]:
    """The variables of one rendering."""
    return {**variables, _BUDGET_KEY: budget}


def _budget(context: Context) -> Budget:
    return cast(Budget, context.parent[_BUDGET_KEY])


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment. One serves any number of templates and threads."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_charge_output,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        plain = {name: _charging(self.filters[name]) for name in _FILTERS.split()}
        self.filters = plain | _OWN_FILTERS
        self.tests = {name: _charging(cast(_Plain, test)) for name, test in self.tests.items()}
        kept = ("range", "dict", "namespace")
        self.globals = {name: self.globals[name] for name in kept}

    def compiled(self, source: str) -> jinja2.Template:
        """Compile a template; raises any exception for one that is malformed."""
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise ValueError(f"longer than {_MAX_TEMPLATE_CHARS} characters")
        return self.from_string(source)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Parser(self, source, name, filename).parse()
        _rewrite(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS.split():
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """None: `str.format` has no bound on widths and is no safe attribute here."""

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Charge for a call and make it."""
        budget = _budget(context)
        budget.charge(_OPERATION)
        owner = getattr(obj, "__self__", None)
        if isinstance(obj, Macro | LoopContext):
            # Its body's text is part of the template, and may be written once more.
            budget.charge(_MAX_TEMPLATE_CHARS >> 5)
        elif isinstance(owner, str):
            _charge_method(budget, owner, obj.__name__, args)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str | list | range | dict):
            budget.charge_for(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Charge for an arithmetic operation and do it."""
        budget = _budget(context)
        budget.charge(_OPERATION)
        if operator == "%" and isinstance(left, str):
            _charge_format(budget, left, right)
        elif operator == "+":
            budget.charge(_size(left) + _size(right))
        elif operator == "*":
            budget.charge(_product(left, right))
        elif operator == "**" and abs(right) * _bits(left) > _MAX_INT_BITS:
            raise BudgetExceededError
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: marks answers for training; of no effect here."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - the type that Jinja declares

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _rewrite(tree: nodes.Template) -> None:
    """Send what isn't a call through charging filters. Children first, so that a filter put in
    isn't visited again."""
    _rewrite_children(tree)


def _rewrite_children(node: nodes.Node) -> None:
    for field, value in list(node.iter_fields()):
        if isinstance(value, list):
            changed = [_rewritten(item) if isinstance(item, nodes.Node) else item for item in value]
            setattr(node, field, changed)
        elif isinstance(value, nodes.Node):
            setattr(node, field, _rewritten(value))


def _rewritten(node: nodes.Node) -> nodes.Node:
    _rewrite_children(node)
    if isinstance(node, nodes.For):
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = _through("charged loop", cast(nodes.Expr, node.iter), nodes.Const(written))
    elif isinstance(node, nodes.Concat):
        return _through("charged concat", nodes.List(node.nodes))
    elif isinstance(node, nodes.Operand):
        node.expr = _through("charged value", node.expr)
    elif isinstance(node, nodes.Tuple) and node.ctx == "load":
        return _through("charged tuple", cast(nodes.Expr, node))
    elif isinstance(node, nodes.List | nodes.Dict):
        return _through("charged value", node)
    return node


def _through(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


@pass_context
def _charge_loop(context: Context, value: Any, written: int) -> Any:
    items = value if hasattr(value, "__len__") else list(value)
    _budget(context).charge(len(items) * (_OPERATION + written))
    return items


@pass_context
def _charge_concat(context: Context, parts: list[Any]) -> str:
    budget = _budget(context)
    budget.charge(_OPERATION)
    for part in parts:
        _charge_text(budget, part)
    return "".join(map(str, parts))


@pass_context
def _charge_value(context: Context, value: Any) -> Any:
    budget = _budget(context)
    budget.charge(_OPERATION)
    budget.charge_for(value)
    return value


@pass_context
def _charge_tuple(context: Context, value: tuple[Any, ...]) -> tuple[Any, ...]:
    # Python hashes a tuple all the way down each time: nested ones would cost unseen.
    if not all(isinstance(item, _SCALARS) for item in value):
        raise jinja2.TemplateRuntimeError("only plain values may stand in a tuple")
    _budget(context).charge(_OPERATION + len(value))
    return value


@pass_context
def _charge_output(context: Context, value: Any) -> Any:
    _charge_text(_budget(context), value)
    return value


def _charge_text(budget: Budget, value: object) -> None:
    """Charge for a value that becomes text; only plain data may."""
    if not isinstance(value, _SCALARS) and not isinstance(value, list | tuple | dict):
        raise jinja2.TemplateRuntimeError(f"a {type(value).__name__} can't be written as text")
    budget.charge_for(value)


def _charge_method(budget: Budget, owner: str, name: str, args: tuple[Any, ...]) -> None:
    budget.charge(len(owner))
    budget.charge_for(list(args))
    if name == "replace" and len(args) >= 2:
        budget.charge(owner.count(args[0]) * len(args[1]))
    elif name == "join" and args and hasattr(args[0], "__len__"):
        budget.charge(len(owner) * len(args[0]))


def _charge_format(budget: Budget, pattern: str, values: object) -> None:
    if _WIDE_FORMAT.search(pattern):
        raise BudgetExceededError
    budget.charge(len(pattern) + 999 * pattern.count("%"))
    for value in values if isinstance(values, tuple) else (values,):
        _charge_text(budget, value)


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 1


def _product(left: object, right: object) -> int:
    """Size of left * right; raises BudgetExceededError for numbers no template needs."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            return len(one) * max(other, 0) * (1 if isinstance(one, str) else _OPERATION)
    if _bits(left) + _bits(right) > _MAX_INT_BITS:
        raise BudgetExceededError
    return 0


_PASSED: dict[str, Callable[[Context], tuple[Any, ...]]] = {
    "": lambda context: (),
    "context": lambda context: (context,),
    "eval_context": lambda context: (context.eval_ctx,),
    "environment": lambda context: (context.environment,),
}
"""What Jinja's own filters and tests ask to be given first."""


def _charging(plain: _Plain) -> _Plain:
    """A filter or test that charges for its input first."""
    wants = getattr(plain, "jinja_pass_arg", None)
    passed = _PASSED[wants.name if wants else ""]

    @pass_context
    def charged(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.charge(_OPERATION)
        for item in (value, *args, *kwargs.values()):
            budget.charge_for(item)
        return plain(*passed(context), value, *args, **kwargs)

    return charged


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    """Jinja's join, charged for the result beforehand."""
    if attribute is not None:
        value = context.environment.call_filter("map", value, [], {"attribute": attribute}, context)
    parts = list(value)
    budget = _budget(context)
    budget.charge(_OPERATION + len(parts) * len(d))
    for part in parts:
        _charge_text(budget, part)
    return str(d).join(map(str, parts))


@pass_context
def _replace(context: Context, s: str, old: str, new: str, count: int | None = None) -> str:
    s, old, new = str(s), str(old), str(new)
    _budget(context).charge(_OPERATION + len(s) + s.count(old) * len(new))
    return s.replace(old, new, -1 if count is None else count)


@pass_context
def _indent(
    context: Context, s: str, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    """Jinja's indent for a width of at most 64."""
    prefix = width if isinstance(width, str) else " " * min(width, _MAX_INDENT + 1)
    if len(prefix) > _MAX_INDENT:
        raise BudgetExceededError
    s = str(s)
    _budget(context).charge(_OPERATION + len(s) + (s.count("\n") + 1) * len(prefix))
    lines = s.split("\n")
    kept = lines[0] if not first else prefix + lines[0]
    return "\n".join([kept, *(prefix + line if line or blank else line for line in lines[1:])])


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
    _charge_text(_budget(context), value)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    _budget(context).charge(len(text))
    return text


_OWN_FILTERS: dict[str, _Plain] = {
    "charged loop": _charge_loop,
    "charged concat": _charge_concat,
    "charged value": _charge_value,
    "charged tuple": _charge_tuple,
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "tojson": _tojson,
}


def raise_exception(message: object) -> NoReturn:
    """What templates call to refuse a conversation."""
    raise InvalidRequestError(f"the chat template refuses: {str(message)[:500]}", "messages")
