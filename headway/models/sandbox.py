"""A Jinja environment for templates that strangers wrote: no way out, and no way to run on.

Jinja's own sandbox keeps a template from Python's internals but not from endless work: ten lines
of doubling make a gigabyte. Here every operation whose cost depends on data is charged, before it
runs, to the `Budget` of the rendering:

    loops              their passes, and the text that bodies write
    macros, blocks     the text that bodies write
    calls, filters     one operation, and the size of what they take and return
    literals           their size, everything inside counted as often as it appears
    slices             the size of the copy
    arithmetic, ~      the size of the result
    comparisons        the size of the right side
    output             its characters

The syntax tree is rewritten so that what isn't a call goes through filters that charge; attributes
of strings, filters and globals are allow-lists.
"""

from collections.abc import Mapping
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.errors import InvalidRequestError
from headway.models.template_budget import OPERATION, Budget, shallow_size
from headway.models.template_filters import (
    BUDGET_KEY,
    JINJA_FILTERS,
    JINJA_TESTS,
    OWN_FILTERS,
    Cost,
    Plain,
    budget_of,
    charge_output,
    charging,
)

_MAX_TEMPLATE_CHARS = 1 << 17

_STRING_METHODS = """
    capitalize casefold count endswith find index isalnum isalpha isdigit islower isnumeric isspace
    istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex
    rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""


def context_for(variables: Mapping[str, object], budget: Budget) -> dict[str, object]:
    """The variables of one rendering."""
    return {**variables, BUDGET_KEY: budget}


def raise_exception(message: object) -> NoReturn:
    """What templates call to refuse a conversation."""
    raise InvalidRequestError(f"the chat template refuses: {str(message)[:500]}", "messages")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment. One serves any number of templates and threads."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=charge_output,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        plain = {name: charging(self.filters[name], cost) for name, cost in JINJA_FILTERS.items()}
        self.filters = plain | OWN_FILTERS
        self.tests = {
            name: charging(cast(Plain, test), JINJA_TESTS.get(name, Cost.WHOLE))
            for name, test in self.tests.items()
        }
        kept = ("range", "dict", "namespace")
        self.globals = {name: self.globals[name] for name in kept}

    def compiled(self, source: str) -> jinja2.Template:
        """Compile a template; raises any exception for one that is malformed."""
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise ValueError(f"longer than {_MAX_TEMPLATE_CHARS} characters")
        return self.from_string(source)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Parser(self, source, name, filename).parse()
        _rewrite_children(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and of strings only methods whose cost is known."""
        if isinstance(obj, str) and attr not in _STRING_METHODS.split():
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """None: `str.format` has no bound on widths and is no safe attribute here."""

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Charge for a call and make it."""
        budget = budget_of(context)
        budget.charge(OPERATION)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            budget.charge_method(owner, obj.__name__, (*args, *kwargs.values()))
        elif isinstance(owner, LoopContext):
            # `loop.changed` compares.
            budget.charge_value(args)
        elif isinstance(obj, LoopContext):
            for value in args:
                budget.charge_items(value)
        result = super().call(context, obj, *args, **kwargs)
        budget.charge(shallow_size(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Charge for an arithmetic operation and do it."""
        budget_of(context).charge_binary(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: marks answers for training; of no effect here."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - the type that Jinja declares

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _rewrite_children(node: nodes.Node) -> None:
    for field, value in list(node.iter_fields()):
        if isinstance(value, list):
            changed = [_rewritten(item) if isinstance(item, nodes.Node) else item for item in value]
            setattr(node, field, changed)
        elif isinstance(value, nodes.Node):
            setattr(node, field, _rewritten(value))


def _rewritten(node: nodes.Node) -> nodes.Node:
    """The node with what must be charged put through a filter. Children come first, so that a
    filter put in isn't visited again."""
    _rewrite_children(node)
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
        node.body = [_charge_for_text(node), *node.body]
    if isinstance(node, nodes.For):
        node.iter = _through("charged loop", node.iter)
    elif isinstance(node, nodes.Concat):
        return _through("charged concat", nodes.List(node.nodes))
    elif isinstance(node, nodes.Operand):
        node.expr = _through("charged value", node.expr)
    elif isinstance(node, nodes.Tuple) and node.ctx == "load":
        return _through("charged tuple", node)
    elif isinstance(node, nodes.List | nodes.Dict):
        return _through("charged value", node)
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _through("charged slice", node)
    return node


def _charge_for_text(node: nodes.Node) -> nodes.Output:
    """A statement, of no output, that charges for the text written in `node`."""
    written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    charge = _through("charged body", nodes.Const("", lineno=node.lineno), nodes.Const(written))
    return nodes.Output([charge], lineno=node.lineno)


def _through(name: str, value: nodes.Node, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(
        cast(nodes.Expr, value), name, list(args), [], None, None, lineno=value.lineno
    )
