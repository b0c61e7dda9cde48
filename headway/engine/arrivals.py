"""Validation at the door: from a caller's request to the core's, one for each choice."""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

from headway.core.plan import Penalties, SamplingSpec, Truncation
from headway.core.request import Limits, Request
from headway.core.types import RequestId
from headway.engine.options import ModelLimits
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.errors import InvalidRequestError, NeverFitsError

MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_BIAS_ENTRIES = 1024
MIN_REPETITION = 0.01
"""Far smaller ones would take a logit beyond what 32 bits hold."""
SEED_MASK = (1 << 63) - 1
"""Seeds reach the generator as 63 bits; a negative one by its two's complement."""


def check_request(request: GenerationRequest, limits: ModelLimits, max_choices: int) -> None:
    """Raise InvalidRequestError, or NeverFitsError for length, if it can't be served as written."""
    _check_kinds(request)
    _check_prompt(request.prompt, limits)
    if not 1 <= request.n <= max_choices:
        _refuse(f"must be between 1 and {max_choices}, not {request.n}", "n")
    _check_sampling(request.sampling, limits.vocab_size)
    _check_stop(request.stop, limits.vocab_size)


def core_requests(
    request: GenerationRequest, limits: ModelLimits, first_id: int, seed: int, now_s: float
) -> tuple[Request, ...]:
    """The core's requests for a checked request: ids from `first_id` on, one for each choice.

    seed: used where the request brings none; drawn once at arrival.
    """
    prompt = tuple(request.prompt)
    end = _limits(request.stop, limits, len(prompt), now_s)
    given = request.sampling.seed
    key = (seed if given is None else given) & SEED_MASK
    return tuple(
        Request(
            id=RequestId(first_id + choice),
            service_class=request.service_class,
            prompt=prompt,
            limits=end,
            sampling=_spec(request.sampling, key, choice, limits.vocab_size),
            arrival_s=now_s,
            tenant=request.tenant,
            group=RequestId(first_id),
        )
        for choice in range(request.n)
    )


def _limits(stop: StopConditions, limits: ModelLimits, prompt_len: int, now_s: float) -> Limits:
    room = limits.max_model_len - prompt_len
    eos_ids = frozenset[int]() if stop.ignore_eos else limits.eos_ids
    return Limits(
        max_tokens=room if stop.max_tokens is None else min(stop.max_tokens, room),
        stop_ids=eos_ids | frozenset(stop.stop_ids),
        deadline_s=math.inf if stop.deadline_s is None else now_s + stop.deadline_s,
    )


def _spec(sampling: SamplingParams, seed: int, choice: int, vocab_size: int) -> SamplingSpec:
    # More tokens than there are keeps all. An executor refuses a whole plan for a number it can't
    # hold, and with it the answers of everybody else in the step.
    top_k = min(sampling.truncation.top_k, vocab_size)
    return SamplingSpec(
        seed=seed,
        choice=choice,
        temperature=sampling.temperature,
        truncation=replace(sampling.truncation, top_k=top_k),
        penalties=sampling.penalties,
        bias=tuple(sorted(sampling.bias.items())),
        logprobs=sampling.logprobs,
    )


def _check_kinds(request: GenerationRequest) -> None:
    """A fraction where a number is whole would fail the step, and everybody in it."""
    sampling, stop = request.sampling, request.stop
    for param, value in (
        ("n", request.n),
        ("top_k", sampling.truncation.top_k),
        ("seed", sampling.seed),
        ("logprobs", sampling.logprobs),
        ("max_tokens", stop.max_tokens),
    ):
        if value is not None and not hasattr(value, "__index__"):
            _refuse(f"must be a whole number, not {value!r}", param)
    if not isinstance(stop.ignore_eos, bool):
        _refuse(f"must be true or false, not {stop.ignore_eos!r}", "ignore_eos")


def _check_prompt(prompt: Sequence[int], limits: ModelLimits) -> None:
    if not prompt:
        _refuse("must hold at least one token", "prompt")
    _check_ids(prompt, limits.vocab_size, "prompt")
    if len(prompt) >= limits.max_model_len:
        raise NeverFitsError(
            f"The prompt has {len(prompt):,} tokens; with room for one more, at most "
            f"{limits.max_model_len - 1:,} fit.",
            "prompt",
        )


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    _check_range(sampling.temperature, 0.0, 2.0, "temperature")
    _check_truncation(sampling.truncation)
    _check_penalties(sampling.penalties)
    if sampling.seed is not None and not -(1 << 63) <= sampling.seed < 1 << 63:
        _refuse("must fit 64 bits with sign", "seed")
    if len(sampling.bias) > MAX_BIAS_ENTRIES:
        _refuse(f"may hold at most {MAX_BIAS_ENTRIES} tokens", "logit_bias")
    _check_ids(sampling.bias, vocab_size, "logit_bias")
    for value in sampling.bias.values():
        _check_range(value, -100.0, 100.0, "logit_bias")
    if not -1 <= sampling.logprobs <= MAX_TOP_LOGPROBS:
        _refuse(f"must be between 0 and {MAX_TOP_LOGPROBS}", "logprobs")


def _check_truncation(truncation: Truncation) -> None:
    if truncation.top_k < 0:
        _refuse("must be 0 (all tokens) or more", "top_k")
    _check_range(truncation.top_p, 0.0, 1.0, "top_p")
    if truncation.top_p == 0:
        _refuse("must be more than 0", "top_p")
    _check_range(truncation.min_p, 0.0, 1.0, "min_p")


def _check_penalties(penalties: Penalties) -> None:
    _check_range(penalties.presence, -2.0, 2.0, "presence_penalty")
    _check_range(penalties.frequency, -2.0, 2.0, "frequency_penalty")
    _check_range(penalties.repetition, MIN_REPETITION, 100.0, "repetition_penalty")


def _check_stop(stop: StopConditions, vocab_size: int) -> None:
    if stop.max_tokens is not None and stop.max_tokens < 1:
        _refuse(f"must be at least 1, not {stop.max_tokens}", "max_tokens")
    if len(stop.stop) > MAX_STOPS:
        _refuse(f"may hold at most {MAX_STOPS} strings", "stop")
    for text in stop.stop:
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            _refuse(f"strings must have 1 to {MAX_STOP_CHARS} characters", "stop")
    _check_ids(stop.stop_ids, vocab_size, "stop_token_ids")
    if stop.deadline_s is not None and not 0 < stop.deadline_s < math.inf:
        _refuse("must be a positive number of seconds", "deadline")


def _check_ids(tokens: Iterable[int], vocab_size: int, param: str) -> None:
    try:
        ids = [operator.index(token) for token in tokens]
    except TypeError:
        _refuse("must hold token ids, which are integers", param)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        _refuse(f"holds {wrong}, which is no token of this model (0 to {vocab_size - 1})", param)


def _check_range(value: float, low: float, high: float, param: str) -> None:
    # NaN fails every comparison, so it is refused too.
    if not low <= value <= high:
        _refuse(f"must be between {low:g} and {high:g}, not {value}", param)


def _refuse(problem: str, param: str) -> NoReturn:
    raise InvalidRequestError(f"'{param}' {problem}.", param)
