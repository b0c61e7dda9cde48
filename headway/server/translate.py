"""From validated bodies to the engine's requests. The engine checks token ids and lengths."""

from collections.abc import Mapping, Sequence

from headway.core.plan import Penalties, Truncation
from headway.core.types import ServiceClass
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.server.errors import bad_request
from headway.server.model import ServedModel
from headway.server.openai_types import ChatBody, CompletionBody, GenerationBody, Message

MAX_CHOICES = 1024
"""Most choices (prompts x n) of one request."""


def chat_requests(
    body: ChatBody, service_class: ServiceClass, model: ServedModel
) -> list[GenerationRequest]:
    """The one request of a chat body. Raises ApiError (400)."""
    for index, message in enumerate(body.messages):
        _check_message(message, f"messages[{index}].")
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    limits = (body.max_tokens, body.max_completion_tokens)
    if None not in limits and limits[0] != limits[1]:
        raise bad_request(
            "'max_tokens' and 'max_completion_tokens' say different things.", "max_tokens"
        )
    max_tokens = body.max_completion_tokens or body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    prompt = model.encode_chat([_turn(message) for message in body.messages])
    return _requests(body, [prompt], service_class, max_tokens, logprobs)


def completion_requests(
    body: CompletionBody, service_class: ServiceClass, model: ServedModel
) -> list[GenerationRequest]:
    """One request for each prompt. Raises ApiError (400)."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request(
            "'best_of' other than 'n' is not supported.", "best_of", "unsupported_field"
        )
    texts = _prompts(body.prompt)
    if len(texts) * (body.n or 1) > MAX_CHOICES:
        raise bad_request(f"More than {MAX_CHOICES} choices in one request.", "prompt")
    prompts = [_encoded(prompt, model) for prompt in texts]
    logprobs = -1 if body.logprobs is None else body.logprobs
    return _requests(body, prompts, service_class, body.max_tokens or 16, logprobs)


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


def _check_message(message: Message, path: str) -> None:
    message.check_extra(path)
    if not isinstance(message.content, str):
        for index, part in enumerate(message.content):
            part.check_extra(f"{path}content[{index}].")


def _turn(message: Message) -> dict[str, str]:
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": message.text}
    return turn if message.name is None else {**turn, "name": message.name}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
