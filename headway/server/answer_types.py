"""What answers look like, for the OpenAPI document. The answers themselves are written by hand,
since a token has no time for models; tests hold the two together."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answered(BaseModel):
    """An object of an answer: fields of these types, and no others."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answered):
    """What went wrong. `param` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answered):
    """The body of every answer that is none of success."""

    error: ErrorDetail


class CachedTokens(Answered):
    """Prompt tokens that came from the prefix cache."""

    cached_tokens: int


class ReasoningTokens(Answered):
    """Tokens of the answer that were reasoning."""

    reasoning_tokens: int


class UsageAnswer(Answered):
    """Tokens by kind."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class CalledAnswer(Answered):
    """A function and its arguments, which are JSON."""

    name: str
    arguments: str


class CallAnswer(Answered):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: CalledAnswer


class MessageAnswer(Answered):
    """The answer to a conversation."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[CallAnswer] = Field(default_factory=list)


class TokenAnswer(Answered):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class RankedTokenAnswer(TokenAnswer):
    """A sampled token, with the most likely ones in its place."""

    top_logprobs: list[TokenAnswer]


class ChatLogprobsAnswer(Answered):
    """Log probabilities of a message."""

    content: list[RankedTokenAnswer]
    refusal: None


class TextLogprobsAnswer(Answered):
    """Log probabilities of a text: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatChoice(Answered):
    """One of the answers to a conversation."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobsAnswer | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class TextChoice(Answered):
    """One of the continuations of a prompt."""

    index: int
    text: str
    logprobs: TextLogprobsAnswer | None
    finish_reason: Literal["stop", "length"]


class GenerationAnswer(Answered):
    """What both endpoints answer. `service_tier` is the class that was really used."""

    id: str
    created: int
    model: str
    service_tier: str
    usage: UsageAnswer


class ChatAnswer(GenerationAnswer):
    """POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CompletionAnswer(GenerationAnswer):
    """POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ModelAnswer(Answered):
    """A name that a model is served under, and the length that is enforced."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelsAnswer(Answered):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class StatusAnswer(Answered):
    """GET /health and /ready."""

    status: Literal["ok"]


class TokenizeAnswer(Answered):
    """POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(Answered):
    """POST /detokenize."""

    prompt: str
