"""From validated bodies to the engine's requests. The engine checks token ids and lengths."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.core.plan import Penalties, Truncation
from headway.core.types import ServiceClass
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.models.contents import shielded, shielded_turns
from headway.models.reasoning import CLOSES, OPENS, Thinking, thinking_of
from headway.models.tool_calls import MARKERS
from headway.server.chat_types import Message, Tool
from headway.server.constraints import Toolbox, grammar_of, toolbox_of
from headway.server.errors import bad_request
from headway.server.jsontext import Json
from headway.server.model import ServedModel
from headway.server.openai_types import ChatBody, CompletionBody, GenerationBody
from headway.server.shapes import ChatShape, CompletionShape, Offer, Shape

MAX_CHOICES = 1024
"""Most choices (prompts x n) of one request."""

_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})
"""Of chat templates: what a request says elsewhere."""


@dataclass(frozen=True, slots=True)
class Work:
    """A body in the engine's words, and the shape its answer has."""

    requests: Sequence[GenerationRequest]
    shape: Shape


def chat_work(body: ChatBody, service_class: ServiceClass, model: ServedModel) -> Work:
    """The one request of a chat body. Raises ApiError (400) or InvalidRequestError."""
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    limits = (body.max_tokens, body.max_completion_tokens)
    if None not in limits and limits[0] != limits[1]:
        raise bad_request(
            "'max_tokens' and 'max_completion_tokens' say different things.", "max_tokens"
        )
    max_tokens = body.max_completion_tokens or body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    toolbox = toolbox_of(body, model)
    chat = model.chat_format()
    offered = None if toolbox is None else toolbox.tools
    variables = template_variables(body.chat_template_kwargs, offered, model)
    if body.reasoning_effort == "none":
        variables = {"enable_thinking": False, **variables}
    text = chat.render(turns_of(body.messages, model), True, **variables)
    thinking = thinking_of(chat.source, text)
    prompt = model.chat_tokens(text)
    grammar = grammar_of(body, model, thinking, toolbox)
    offer = None if toolbox is None else Offer(toolbox.form, toolbox.names, toolbox.many)
    shown = _shown(model, thinking, toolbox)
    return Work(
        [
            replace(request, grammar=grammar, shown=shown)
            for request in _requests(body, [prompt], service_class, max_tokens, logprobs)
        ],
        ChatShape(model.codec, bool(body.logprobs), thinking, offer),
    )


def completion_work(body: CompletionBody, service_class: ServiceClass, model: ServedModel) -> Work:
    """One request for each prompt. Raises ApiError (400) or InvalidRequestError."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request(
            "'best_of' other than 'n' is not supported.", "best_of", "unsupported_field"
        )
    texts = _prompts(body.prompt)
    if len(texts) * (body.n or 1) > MAX_CHOICES:
        raise bad_request(f"More than {MAX_CHOICES} choices in one request.", "prompt")
    prompts = [_encoded(prompt, model) for prompt in texts]
    logprobs = -1 if body.logprobs is None else body.logprobs
    grammar = grammar_of(body, model, Thinking.NEVER, None)
    requests = _requests(body, prompts, service_class, body.max_tokens or 16, logprobs)
    return Work(
        [replace(request, grammar=grammar) for request in requests],
        CompletionShape(model.codec, body.logprobs is not None),
    )


def template_variables(
    kwargs: Mapping[str, object] | None, tools: Sequence[Tool] | None, model: ServedModel
) -> Mapping[str, object]:
    """What a template is given besides the turns; tools make no control tokens. Raises ApiError
    (400)."""
    given = dict(kwargs or {})
    for name in _OWN_VARIABLES & given.keys():
        path = f"chat_template_kwargs.{name}"
        raise bad_request(f"{path!r} is said elsewhere in the request.", path)
    if tools:
        dumped = [tool.model_dump(exclude_none=True) for tool in tools]
        given["tools"] = shielded(dumped, model.codec.shield)
    return given


def _shown(model: ServedModel, thinking: Thinking, toolbox: Toolbox | None) -> frozenset[int]:
    """Control tokens that mark calls and reasoning, and must appear in the text."""
    markers = () if toolbox is None else MARKERS
    if thinking is not Thinking.NEVER:
        markers = (*markers, OPENS, CLOSES)
    ids = (model.codec.token_id(marker) for marker in markers)
    return frozenset(i for i in ids if i is not None and model.codec.is_special(i))


def _requests(
    body: GenerationBody,
    prompts: Sequence[Sequence[int]],
    service_class: ServiceClass,
    max_tokens: int | None,
    logprobs: int,
) -> list[GenerationRequest]:
    n = body.n or 1
    sampling = _sampling(body, logprobs)
    stop = _stop(body, max_tokens)
    return [GenerationRequest(prompt, service_class, sampling, stop, n) for prompt in prompts]


def _sampling(body: GenerationBody, logprobs: int) -> SamplingParams:
    return SamplingParams(
        temperature=_or(body.temperature, 1.0),
        truncation=Truncation(
            top_k=max(0, body.top_k or 0), top_p=_or(body.top_p, 1.0), min_p=_or(body.min_p, 0.0)
        ),
        penalties=Penalties(
            repetition=_or(body.repetition_penalty, 1.0),
            presence=_or(body.presence_penalty, 0.0),
            frequency=_or(body.frequency_penalty, 0.0),
        ),
        seed=body.seed,
        bias=_bias(body.logit_bias or {}),
        logprobs=logprobs,
    )


def _stop(body: GenerationBody, max_tokens: int | None) -> StopConditions:
    strings = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return StopConditions(
        max_tokens=max_tokens,
        stop=tuple(strings),
        stop_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        deadline_s=body.timeout,
    )


def _bias(bias: Mapping[str, float]) -> dict[int, float]:
    ids: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise bad_request(f"Key {key[:40]!r} of 'logit_bias' is no token id.", "logit_bias")
        ids[int(key)] = value
    return ids


def _prompts(
    prompt: str | list[str] | list[int] | list[list[int]],
) -> list[str | list[int]]:
    """One entry a prompt. Raises ApiError (400) for none at all, or an empty one."""
    prompts: list[str | list[int]] = []
    ids: list[int] = []
    for part in [prompt] if isinstance(prompt, str) else prompt:
        if isinstance(part, int):
            ids.append(part)
        else:
            prompts.append(part)
    if ids:
        prompts.append(ids)
    if not prompts or not all(prompts):
        raise bad_request("A prompt is empty.", "prompt")
    return prompts


def _encoded(prompt: str | Sequence[int], model: ServedModel) -> Sequence[int]:
    if isinstance(prompt, str):
        return model.encode(prompt)
    return prompt


def turns_of(messages: Sequence[Message], model: ServedModel) -> list[Mapping[str, object]]:
    """A conversation as templates take it, whose texts make no control tokens. Raises ApiError
    (400) or InvalidRequestError."""
    turns = [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
    return shielded_turns(turns, model.codec.shield)


def _turn(message: Message, path: str) -> Json:
    _check_turn(message, path)
    role = "system" if message.role == "developer" else message.role
    turn: Json = {"role": role, "content": message.text}
    for name in ("name", "reasoning_content", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            turn[name] = value
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments, f"{path}.tool_calls[{index}]"),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return turn


def _check_turn(message: Message, path: str) -> None:
    """Raise ApiError (400) for fields that don't go with the role."""
    calls = bool(message.tool_calls)
    if message.content is None and not (message.role == "assistant" and calls):
        raise bad_request(f"'{path}.content' is missing.", f"{path}.content", "missing_field")
    if message.role == "tool" and message.tool_call_id is None:
        param = f"{path}.tool_call_id"
        raise bad_request(f"{param!r} is missing.", param, "missing_field")
    wrong = (
        ("tool_calls", calls and message.role != "assistant"),
        ("tool_call_id", message.tool_call_id is not None and message.role != "tool"),
        (
            "reasoning_content",
            message.reasoning_content is not None and message.role != "assistant",
        ),
    )
    for name, is_wrong in wrong:
        if is_wrong:
            param = f"{path}.{name}"
            raise bad_request(f"{param!r} doesn't go with the role {message.role!r}.", param)


def _arguments(text: str, path: str) -> object:
    """A call's arguments, which templates take as an object."""
    try:
        arguments: object = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        param = f"{path}.function.arguments"
        raise bad_request(f"{param!r} must be a JSON object.", param)
    return arguments


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
