"""Request bodies of `/v1/chat/completions` and `/v1/completions`.

Types are strict: `"5"` and `1.5` aren't integers. `null` always means "not given". A field that
Headway can't honour is refused by name unless it has its neutral value (`tools: []`), as is a field
it doesn't know; only fields that can't change the answer (`user`, `metadata`) are ignored.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.server.errors import bad_request

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

Neutral = tuple[object, ...]
"""Values of an unsupported field that ask for nothing."""

_UNSUPPORTED_CHAT: dict[str, Neutral] = {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_UNSUPPORTED_COMPLETION: dict[str, Neutral] = {"echo": (False,), "suffix": ("",)}
_UNSUPPORTED_MESSAGE: dict[str, Neutral] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}


class Body(BaseModel):
    """Strict, and finite: `NaN` and `Infinity` are refused. Unknown fields are kept for `check`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    unsupported: ClassVar[Mapping[str, Neutral]] = {}
    ignored: ClassVar[frozenset[str]] = frozenset()

    def check_extra(self, path: str = "") -> None:
        """Raise ApiError (400) for a field that is neither honoured nor without effect."""
        for name, value in (self.model_extra or {}).items():
            if value is None or name in self.ignored:
                continue
            neutral = self.unsupported.get(name)
            if neutral is None:
                raise bad_request(f"Unknown field {path + name!r}.", path + name, "unknown_field")
            if value not in neutral:
                raise bad_request(
                    f"{path + name!r} is not supported.", path + name, "unsupported_field"
                )


class StreamOptions(Body):
    """Options of a streamed answer. `include_obfuscation` may only be switched off."""

    unsupported = {"include_obfuscation": (False,)}

    include_usage: bool | None = None


class TextPart(Body):
    """A part of a message's content; text only."""

    type: Literal["text"]
    text: str


# Lists end at their first bad member: an error for each of a million would take a minute of the
# event loop's time, and gigabytes.
Strings = Annotated[list[str], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]
IdLists = Annotated[list[Ids], Field(fail_fast=True)]
TextParts = Annotated[list[TextPart], Field(fail_fast=True)]


class Message(Body):
    """One turn of a conversation. `developer` is OpenAI's newer word for `system`."""

    unsupported = _UNSUPPORTED_MESSAGE

    role: Literal["system", "developer", "user", "assistant"]
    content: str | TextParts
    name: str | None = None

    @property
    def text(self) -> str:
        """The content's text, parts joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


TopK = Annotated[int, Field(ge=-1, description="Most likely tokens kept; 0 or -1 keeps all.")]


class GenerationBody(Body):
    """What both endpoints share. Defaults are OpenAI's."""

    ignored = IGNORED

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop: str | Annotated[list[str], Field(max_length=16, fail_fast=True)] | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    unsupported = _UNSUPPORTED_CHAT

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions. Several prompts give several choices, in the order of the prompts."""

    unsupported = _UNSUPPORTED_COMPLETION

    prompt: str | Strings | Ids | IdLists
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None
