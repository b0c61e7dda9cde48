"""A file of prompts to a file of answers, one JSON object a line.

    in:   {"prompt": "Once upon"}  {"prompt": [12, 7]}  {"messages": [...]}  "Once upon"
          each object may have an "id" and settings of its own: max_tokens, temperature, seed,
          response_format, ...
    out:  {"line": 1, "id": ..., "text": ..., "finish_reason": "stop", "usage": {...}}
          {"line": 2, "error": "..."}

Answers come in the order of the lines. A line that can't be served gets an error of its own.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TextIO

from headway.errors import HeadwayError, InvalidRequestError
from headway.llm import LLM, Choice, Pending, in_window, track
from headway.sampling import SamplingParams

_SETTINGS = frozenset(field.name for field in fields(SamplingParams))
_FORMS = frozenset({"response_format", "structured_outputs"})
_OTHER_KEYS = frozenset({"prompt", "messages", "id", "service_tier"})


@dataclass(frozen=True, slots=True)
class Defaults:
    """What lines that don't say are answered with."""

    params: SamplingParams = SamplingParams()
    service_tier: str = "flex"


@dataclass(slots=True)
class Summary:
    """Lines by outcome, and tokens generated."""

    answered: int = 0
    failed: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    """A line under way, or with the error it met."""

    line: int
    id: object
    pending: Pending | None
    error: str = ""


def run_lines(
    llm: LLM,
    lines: Iterable[str],
    sink: TextIO,
    defaults: Defaults | None = None,
    total: int | None = None,
    progress: bool = True,
) -> Summary:
    """Answer `lines` into `sink`; blank lines are passed over.

    total: lines there will be, for the progress bar; None if unknown.
    """
    summary = Summary()
    jobs = _start(llm, lines, defaults or Defaults())
    for job in track(in_window(jobs, _give_up), total, progress):
        sink.write(json.dumps(_answer(job, summary), ensure_ascii=False) + "\n")
    return summary


def _start(llm: LLM, lines: Iterable[str], defaults: Defaults) -> Iterator[_Job]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name: object = None
        try:
            body = _parse(line)
            name = body.get("id")
            yield _Job(number, name, _submit(llm, body, defaults))
        except HeadwayError as error:
            yield _Job(number, name, None, str(error))


def _parse(line: str) -> Mapping[str, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON: {error}") from error
    if isinstance(body, str):
        return {"prompt": body}
    if not isinstance(body, dict):
        raise InvalidRequestError("a line is an object or a string")
    unknown = body.keys() - _SETTINGS - _OTHER_KEYS
    if unknown:
        raise InvalidRequestError(f"unknown field {min(unknown)!r}")
    if ("prompt" in body) == ("messages" in body):
        raise InvalidRequestError("a line has either 'prompt' or 'messages'")
    if not isinstance(body.get("prompt", ""), str | list):
        raise InvalidRequestError("'prompt' is text or a list of token ids")
    if body.get("messages") == []:
        raise InvalidRequestError("'messages' is empty")
    return body


def _submit(llm: LLM, body: Mapping[str, Any], defaults: Defaults) -> Pending:
    settings = {name: value for name, value in body.items() if name in _SETTINGS}
    try:
        base = defaults.params
        if _FORMS & settings.keys():  # the line's own takes the place of whatever there was
            base = replace(base, response_format=None, structured_outputs=None)
        params = replace(base, **_typed(settings))
        prompt = llm.render(body["messages"]) if "messages" in body else body["prompt"]
        return llm.submit(prompt, params, body.get("service_tier", defaults.service_tier))
    except (TypeError, ValueError, AttributeError) as error:
        # JSON carries any type; the engine checks values, not types.
        raise InvalidRequestError(f"a value of the wrong type: {error}") from error


def _typed(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON's object keys are strings; token ids are numbers."""
    bias = settings.get("logit_bias")
    if bias:
        settings["logit_bias"] = {int(token): value for token, value in bias.items()}
    return settings


def _answer(job: _Job, summary: Summary) -> dict[str, object]:
    answer: dict[str, object] = {"line": job.line}
    if job.id is not None:
        answer["id"] = job.id
    choices = job.pending.result().choices if job.pending is not None else ()
    errors = [choice.error or "it failed" for choice in choices if choice.finish_reason == "error"]
    if errors or not choices:
        summary.failed += 1
        return {**answer, "error": errors[0] if errors else job.error}
    summary.answered += 1
    summary.generated_tokens += sum(choice.usage.generated for choice in choices)
    if len(choices) == 1:
        return {**answer, **_fields(choices[0])}
    return {**answer, "choices": [_fields(choice) for choice in choices]}


def _fields(choice: Choice) -> dict[str, object]:
    result: dict[str, object] = {
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "usage": {
            "prompt_tokens": choice.usage.prompt,
            "completion_tokens": choice.usage.generated,
        },
    }
    if choice.reasoning:
        result["reasoning"] = choice.reasoning
    if choice.logprobs is not None:
        result["logprobs"] = [
            {"token_id": token, "logprob": entry.logprob, "top": dict(entry.top)}
            for token, entry in zip(choice.token_ids, choice.logprobs, strict=True)
        ]
    return result


def _give_up(job: _Job) -> None:
    if job.pending is not None:
        job.pending.deltas.close()
