"""Reads and validates request bodies."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from headway.server.errors import ApiError, bad_request
from headway.server.fields import Body
from headway.server.openai_types import GenerationBody

A = TypeVar("A", bound=Body)
B = TypeVar("B", bound=GenerationBody)

_MOST = {b",": 250_000, b"{": 32_768, b"[": 32_768}
"""Values, objects and lists of a body, as far as that can be told at once. To parse so many takes
0.2 s, during which no stream moves."""

_PLAIN = "identity"
"""The coding that is none."""

_EXPECTED: dict[int | str, str] = {
    "content": "must be a string or a list of text parts",
    "prompt": "must be a string, a list of strings, a list of token ids, or a list of such lists",
    "stop": "must be a string or a list of at most 16 strings",
}


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises ApiError (413) beyond the limit, without reading on; without reading
    at all where the head says so, or that it is compressed (415)."""
    check_head(request, limit_bytes)
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit_bytes:
                raise too_large(limit_bytes)
            parts.append(part)
    except ClientDisconnect as error:
        raise bad_request("The body ended early.") from error
    return b"".join(parts)


def check_head(request: Request, limit_bytes: int) -> None:
    """Raise ApiError if the head announces a longer body (413) or a compressed one (415)."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit_bytes:
        raise too_large(limit_bytes)
    codings = ", ".join(request.headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in ("", _PLAIN) for coding in codings.split(",")):
        raise ApiError(
            415,
            f"Compressed bodies are not taken: send this one without Content-Encoding: {codings}.",
            code="unsupported_encoding",
            headers={"Accept-Encoding": _PLAIN},  # RFC 9110, section 15.5.16
        )


def too_large(limit_bytes: int) -> ApiError:
    """The answer to a body that is too large; the rest of it is not read."""
    return ApiError(
        413,
        f"The body is larger than {limit_bytes:,} bytes.",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def parse_json(kind: type[A], raw: bytes, text_tokens: int = 0) -> A:
    """A validated body. Raises ApiError (400) that names the first field at fault, and for one
    with more values, objects or lists than is sensible.

    text_tokens: most tokens of a text in it; that many signs of each kind may be part of a text.
    """
    for sign, most in _MOST.items():
        if raw.count(sign) > max(most, text_tokens):
            raise bad_request(
                f"The body has more than {max(most, text_tokens):,} {sign.decode()!r}.",
                code="too_many_values",
            )
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_input=False)) from None
    body.check_extra()
    return body


def parse_body(kind: type[B], raw: bytes, text_tokens: int = 0) -> B:
    """The same for bodies that ask for answers, whose fields must go together."""
    body = parse_json(kind, raw, text_tokens)
    if body.stream_options is not None and not body.stream:
        raise bad_request("'stream_options' needs 'stream': true.", "stream_options")
    return body


def _explain(errors: list[ErrorDetails]) -> ApiError:
    first = errors[0]
    if first["type"] == "json_invalid" and "recursion limit" in first["msg"]:
        return bad_request("The body is nested too deeply: 200 levels are the most.")
    if first["type"] == "json_invalid":
        return bad_request(f"The body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")
    if not first["loc"]:
        return bad_request("The body must be a JSON object.")
    # A union reports one error for each member; the one that got furthest says most.
    same = [error for error in errors if error["loc"][0] == first["loc"][0]]
    deepest = max(same, key=lambda error: len(error["loc"]))
    long = [error for error in same if error["type"] == "too_long"]
    if first["loc"][0] == "prompt" and long:
        most = long[0]["ctx"]["max_length"]
        return bad_request(f"'prompt' holds more than {most:,} prompts.", "prompt")
    path = [part for part in deepest["loc"] if isinstance(part, int) or not _is_member(part)]
    if deepest["type"] == "missing":
        return bad_request(f"{_dotted(path)!r} is missing.", _dotted(path), "missing_field")
    for depth, field in enumerate(path):
        if field in _EXPECTED and len(path) - depth <= 2:
            param = _dotted(path[: depth + 1])
            return bad_request(f"{param!r} {_EXPECTED[field]}.", param)
    param = _dotted(path)
    if deepest["type"] == "too_short":
        return bad_request(f"{param!r} is empty.", param)
    if deepest["type"] == "too_long":
        most = deepest["ctx"]["max_length"]
        return bad_request(f"{param!r} holds more than {most:,}.", param)
    reason = deepest["msg"].replace("Input should be", "must be")
    return bad_request(f"{param!r} {reason[0].lower()}{reason[1:]}.", param)


def _dotted(path: Sequence[int | str]) -> str:
    """`messages[0].content`."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")


def _is_member(part: str) -> bool:
    """Whether a part of an error's location is the name of a union's member, not a field."""
    return part in ("str", "int") or "[" in part or part[:1].isupper()
