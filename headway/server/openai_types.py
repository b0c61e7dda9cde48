"""Request bodies of `/v1/chat/completions` and `/v1/completions`.

Types are strict: `"5"` and `1.5` aren't integers. `null` always means "not given". A field that
Headway can't honour is refused by name unless it has its neutral value (`functions: []`), as is a
field it doesn't know; only fields that can't change the answer (`user`, `metadata`) are ignored.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from headway.engine.arrivals import MAX_BIAS_ENTRIES, MIN_REPETITION
from headway.server.chat_types import Message, Tool, ToolChoice
from headway.server.fields import Body, Neutral
from headway.server.tiers import TIER_WORDS

IGNORED = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "store",
        "user",
    }
)
"""Fields that say who asks or what to keep, never what to answer."""

MAX_MESSAGES = 16_384
"""Most turns of a conversation; to check one takes long for its few bytes."""

MAX_PROMPTS = 1024
"""Most prompts of one request."""

MAX_TOOLS = 128
"""Most tools of a request, as OpenAI has it."""

_UNSUPPORTED_CHAT: Mapping[str, Neutral] = {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_UNSUPPORTED_COMPLETION: Mapping[str, Neutral] = {"echo": (False,), "suffix": ("",)}


class StreamOptions(Body):
    """Options of a streamed answer. `include_obfuscation` may only be switched off."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {
        "include_obfuscation": (False,),
        "continuous_usage_stats": (False,),
    }

    include_usage: bool | None = None


class JsonSchema(Body):
    """A schema for an answer. Answers always fit it, whether `strict` or not."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    definition: Annotated[dict[str, JsonValue] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What an answer must look like. `json_schema` goes with the type of that name."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """What an answer must look like, as vLLM has it: one of a JSON schema, a regular expression,
    a list of texts, or a grammar in llguidance's dialect of Lark."""

    unsupported: ClassVar[Mapping[str, Neutral]] = {
        "disable_additional_properties": (False,),
        "disable_any_whitespace": (False,),
        "json_object": (),
        "structural_tag": (),
        "whitespace_pattern": (),
    }

    definition: Annotated[dict[str, JsonValue] | str | None, Field(alias="json")] = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=4096, fail_fast=True)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None


# What a limit in the document alone says is checked later, with an error that explains more.
Tier = Annotated[str, Field(json_schema_extra={"enum": list(TIER_WORDS)})]
Text = Annotated[str, Field(json_schema_extra={"minLength": 1})]
TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0})]
Prompts = Annotated[
    list[Text], Field(max_length=MAX_PROMPTS, fail_fast=True, json_schema_extra={"minItems": 1})
]
Ids = Annotated[list[TokenId], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
IdLists = Annotated[list[Ids], Field(max_length=MAX_PROMPTS, fail_fast=True)]
Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIAS_ENTRIES)
]
TopK = Annotated[int, Field(ge=-1, description="Most likely tokens kept; 0 or -1 keeps all.")]


class AnswerForm(Body):
    """What answers must look like."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class GenerationBody(AnswerForm):
    """What both endpoints share. Defaults are OpenAI's."""

    ignored = IGNORED

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: LogitBias | None = None
    stop: str | Annotated[list[str], Field(max_length=16, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: Tier | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None

    @property
    def constrained(self) -> bool:
        """Whether there may be a grammar to compile."""
        return self.response_format is not None or self.structured_outputs is not None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    unsupported = _UNSUPPORTED_CHAT

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none"] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @property
    def constrained(self) -> bool:
        """Whether there may be a grammar to compile."""
        return bool(self.tools) or super().constrained


class CompletionBody(GenerationBody):
    """POST /v1/completions. Several prompts give several choices, in the order of the prompts."""

    unsupported = _UNSUPPORTED_COMPLETION

    prompt: Text | Prompts | Ids | IdLists
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None
