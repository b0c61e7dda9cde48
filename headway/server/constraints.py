"""What an answer must look like: `response_format`, `structured_outputs`, and the tools a model
has to choose among, as grammars."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from headway.models.grammars import (
    Grammar,
    GrammarPart,
    choice_part,
    either_source,
    json_part,
    lark_part,
    regex_part,
    source_of,
)
from headway.models.reasoning import Thinking, reasoning_frame
from headway.models.tool_calls import ToolFormat, format_of
from headway.models.tool_grammar import Function, calls_part, free_part
from headway.server.chat_types import AllowedToolChoice, NamedTool, Tool
from headway.server.errors import bad_request
from headway.server.model import ServedModel
from headway.server.openai_types import AnswerForm, ChatBody, ResponseFormat, StructuredOutputs

_NOTHING = {"properties": {}, "additionalProperties": False}
"""Parameters of a function that says none."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request that count.

    tools: those offered. forced: whether the model must call.
    many: whether it may call several at once.
    """

    tools: Sequence[Tool]
    forced: bool
    many: bool
    form: ToolFormat

    @property
    def names(self) -> list[str]:
        """Of the functions."""
        return [tool.function.name for tool in self.tools]

    @property
    def functions(self) -> list[Function]:
        """With their schemas."""
        return [
            Function(f.name, _NOTHING if f.parameters is None else f.parameters)
            for f in (tool.function for tool in self.tools)
        ]

    @property
    def strict(self) -> bool:
        """Whether arguments must fit their schemas though no call is forced."""
        return any(tool.function.strict for tool in self.tools)


def toolbox_of(body: ChatBody, model: ServedModel) -> Toolbox | None:
    """The tools that a chat body offers; None for none. Raises ApiError (400)."""
    tools, choice = body.tools or [], body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("'tool_choice' needs 'tools'.", "tool_choice")
        return None
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise bad_request(f"Two tools are called {name!r}.", f"tools[{index}].function.name")
    chosen, forced = _chosen(choice, names)
    chat = model.tool_format()
    if choice == "none":
        return None
    offered = [tool for tool in tools if tool.function.name in chosen]
    many = body.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
    return Toolbox(offered, forced, many, format_of(chat.source))


def _chosen(
    choice: str | NamedTool | AllowedToolChoice | None, names: Sequence[str]
) -> tuple[Sequence[str], bool]:
    """Names of the tools that may be called, and whether one must be."""
    match choice:
        case NamedTool():
            chosen, forced, path = [choice.function.name], True, "tool_choice.function.name"
        case AllowedToolChoice():
            allowed = choice.allowed_tools
            chosen = [tool.function.name for tool in allowed.tools]
            forced, path = allowed.mode == "required", "tool_choice.allowed_tools.tools"
        case _:
            return names, choice == "required"
    for name in chosen:
        if name not in names:
            raise bad_request(f"{name!r} is not among the tools.", path)
    return chosen, forced


class GrammarMaker(Protocol):
    """A model's part in grammars; see `model.ServedModel`."""

    def term(self, marker: str) -> str: ...

    def compile(self, source: str, param: str) -> Grammar: ...


def grammar_of(
    body: AnswerForm, model: GrammarMaker, thinking: Thinking, toolbox: Toolbox | None
) -> Grammar | None:
    """What the answer must look like; None where it is free.

    Raises ApiError (400) or InvalidRequestError with the reason, for fields that exclude each other
    and for what can't be compiled. May take a second: off the event loop.
    """
    part, param = _answer_part(body)
    frame = reasoning_frame(thinking, model.term)
    if toolbox is not None:
        functions, term = toolbox.functions, model.term
        if toolbox.forced:
            part, param = calls_part(toolbox.form, functions, toolbox.many, term), "tools"
        elif part is not None:
            calls = calls_part(toolbox.form, functions, toolbox.many, term)
            either = either_source({"content": part, "calls": calls}, frame)
            return model.compile(either, param)
        elif toolbox.strict:
            part, param = free_part(toolbox.form, functions, toolbox.many, term), "tools"
    return None if part is None else model.compile(source_of(part, frame), param)


def _answer_part(body: AnswerForm) -> tuple[GrammarPart | None, str]:
    """What the content must look like, and the field that says so."""
    wanted, structured = body.response_format, body.structured_outputs
    if structured is None:
        return _formatted(wanted) if wanted is not None else (None, "")
    if wanted is not None and wanted.type != "text":
        raise bad_request(
            "'response_format' and 'structured_outputs' exclude each other.", "structured_outputs"
        )
    return _structured(structured)


def _formatted(wanted: ResponseFormat) -> tuple[GrammarPart | None, str]:
    schema = wanted.json_schema
    param = "response_format.json_schema"
    if wanted.type == "json_schema" and schema is None:
        raise bad_request(f"{param!r} is missing.", param, "missing_field")
    if wanted.type != "json_schema" and schema is not None:
        raise bad_request(f"{param!r} goes with the type 'json_schema'.", param)
    match wanted.type:
        case "text":
            return None, ""
        case "json_object":
            return json_part({"type": "object"}), "response_format"
        case "json_schema":
            definition = None if schema is None else schema.definition
            param = "response_format.json_schema.schema"
            return json_part({"type": "object"} if definition is None else definition), param


def _schema(given: dict[str, JsonValue] | str, param: str) -> dict[str, JsonValue]:
    """A schema, given as an object or as its text. Raises ApiError (400)."""
    if not isinstance(given, str):
        return given
    try:
        schema = json.loads(given)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise bad_request(f"{param!r} must be a JSON object, or the text of one.", param)
    return schema


def _structured(wanted: StructuredOutputs) -> tuple[GrammarPart, str]:
    parts: list[tuple[GrammarPart, str]] = []
    if wanted.definition is not None:
        param = "structured_outputs.json"
        parts.append((json_part(_schema(wanted.definition, param)), param))
    if wanted.regex is not None:
        parts.append((regex_part(wanted.regex), "structured_outputs.regex"))
    if wanted.choice is not None:
        parts.append((choice_part(wanted.choice), "structured_outputs.choice"))
    if wanted.grammar is not None:
        parts.append((lark_part(wanted.grammar), "structured_outputs.grammar"))
    if len(parts) != 1:
        raise bad_request(
            "'structured_outputs' needs one of 'json', 'regex', 'choice' and 'grammar'.",
            "structured_outputs",
        )
    return parts[0]
