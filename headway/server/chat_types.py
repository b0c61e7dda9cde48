"""What chat requests are made of: turns, tools, and the choice among tools."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue

from headway.server.fields import Body, Neutral, describe

_UNSUPPORTED_MESSAGE: Mapping[str, Neutral] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
"""Of a function."""


class TextPart(Body):
    """A part of a message's content; text only."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {"prompt_cache_breakpoint": ()}

    type: Literal["text"]
    text: str


# Lists end at their first bad member: an error for each of a million would take a minute of the
# event loop's time, and gigabytes.
TextParts = Annotated[list[TextPart], Field(fail_fast=True)]


class CalledFunction(Body):
    """A function and its arguments, which are JSON."""

    name: Name
    arguments: str


class ToolCall(Body):
    """A call that the model made."""

    ignored = frozenset({"index"})

    id: str
    type: Literal["function"]
    function: CalledFunction


def _describe_turn(schema: dict[str, Any], kind: type[Body]) -> None:
    """What goes with which role."""
    describe(schema, kind)
    null: dict[str, Any] = {"type": "null"}
    text: dict[str, Any] = {"type": ["string", "array"]}
    plain: dict[str, Any] = {"role": {"enum": ["system", "developer", "user"]}, "content": text}
    plain |= {"tool_calls": null, "tool_call_id": null, "reasoning_content": null}
    answer = {"role": {"const": "assistant"}, "tool_call_id": null}
    result = {"role": {"const": "tool"}, "content": text, "tool_call_id": {"type": "string"}}
    result |= {"tool_calls": null, "reasoning_content": null}
    schema["anyOf"] = [
        {"properties": plain, "required": ["content"]},
        {"properties": {**answer, "content": text}, "required": ["content"]},
        {"properties": {**answer, "tool_calls": {"minItems": 1}}, "required": ["tool_calls"]},
        {"properties": result, "required": ["content", "tool_call_id"]},
    ]


class Message(Body):
    """One turn of a conversation. `developer` is OpenAI's newer word for `system`."""

    model_config = ConfigDict(json_schema_extra=_describe_turn)

    unsupported = _UNSUPPORTED_MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | TextParts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content's text, parts joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())


class FunctionDefinition(Body):
    """A function that the model may call. `parameters` is the JSON schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; functions only."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {"cache_control": ()}

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    """A function by its name."""

    name: Name


class NamedTool(Body):
    """A tool by its name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=128, fail_fast=True)]


class AllowedToolChoice(Body):
    """The model chooses among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolChoice
