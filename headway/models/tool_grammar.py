"""Grammars of calls: answers that call offered functions, with arguments that fit their schemas."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.models.grammars import GrammarPart, bounded_space, lark_part, quoted
from headway.models.tool_calls import ToolFormat, ToolStyle

Term = Callable[[str], str]
"""Writes a marker in Lark."""

_ANY = r"/(?s:.*)/"


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is offered.

    parameters: JSON schema of its arguments, an object's.
    """

    name: str
    parameters: Mapping[str, object]


def calls_part(
    form: ToolFormat, functions: Sequence[Function], many: bool, term: Term
) -> GrammarPart:
    """One call, or several where there may be many."""
    return lark_part("start: calls\n" + _calls(form, functions, many, term))


def free_part(
    form: ToolFormat, functions: Sequence[Function], many: bool, term: Term
) -> GrammarPart:
    """Any text without calls, or text and then calls."""
    calls = _calls(form, functions, many, term)
    opens = term(form.opens)
    if form.bare:
        start = "start: free | calls\nfree: /[^{](?s:.*)/"
    elif opens == quoted(form.opens):
        start = f"start: free | upto rest\nfree: {_ANY}\nupto[suffix={opens}]: {_ANY}"
    else:
        start = f"start: free | free {opens} rest\nfree: {_ANY}"
    return lark_part(f"{start}\n{calls}")


def _calls(form: ToolFormat, functions: Sequence[Function], many: bool, term: Term) -> str:
    """Rules for `calls`, and for `rest`: the same behind the first marker."""
    objects = [_object(form, index, function) for index, function in enumerate(functions)]
    one = " | ".join(f"call{index}" for index in range(len(functions)))
    opens = term(form.opens)
    match form.style:
        case ToolStyle.HERMES:
            closes = f'"\\n" {term(form.closes)}'
            rules = [
                f"calls: {opens} rest",
                f'rest: "\\n" one {closes}' + (f' ("\\n" {opens} "\\n" one {closes})*' * many),
            ]
        case ToolStyle.LLAMA3:
            rules = ["calls: one" + ' ("; " one)*' * many]
        case ToolStyle.MISTRAL:
            rules = [
                f"calls: {opens} rest",
                'rest: "[" one' + ' (", " one)*' * many + ' "]"',
            ]
    return "\n".join([*rules, f"one: {one}", *objects])


def _object(form: ToolFormat, index: int, function: Function) -> str:
    head = quoted(f'{{"name": {json.dumps(function.name)}, "{form.arguments_key}": ')
    schema = json.dumps(bounded_space({"type": "object", **function.parameters}))
    return f'call{index}: {head} args{index} "}}"\nargs{index}: %json {schema}'
