"""Reads the lines of an input file one by one, and writes those of result files.

    in:   {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}
    out:  {"id": "batch_req_JOB_LINE", "custom_id": "a",
           "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

The number of a line is part of its result's id: a result file alone tells which lines are done.
"""

import json
import secrets
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from headway.batches.types import LineAnswer, Problem

MAX_CUSTOM_ID_CHARS = 512
_SKIP_BYTES = 1 << 20
_REQUEST_PREFIX = "batch_req_"


@dataclass(frozen=True, slots=True)
class Line:
    """A line with a request, or, if `problem` is set, what is wrong with it.

    number: from 1, blank lines counted.
    body: JSON of the request.
    """

    number: int
    custom_id: str | None
    body: bytes = b""
    problem: Problem | None = None


def read_lines(path: Path, endpoint: str, limit_bytes: int) -> Generator[Line, None, None]:
    """The lines of a file, blank ones passed over. Holds one line at a time, and 16 bytes for each
    custom id.

    limit_bytes: a longer line is a problem, whatever is in it.
    """
    seen: set[bytes] = set()
    with path.open("rb") as stream:
        for number, raw in enumerate(_raw_lines(stream, limit_bytes), 1):
            if raw is None:
                message = f"The line has more than {limit_bytes:,} bytes."
                yield Line(number, None, problem=Problem("line_too_long", message, number))
            elif text := raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
                yield _line(number, text, endpoint, seen)


def answer_line(job_id: str, line: Line, answer: LineAnswer) -> bytes:
    """The result of a line that was answered, newline included."""
    response = (
        f'{{"status_code":{answer.status},"request_id":{json.dumps(answer.request_id)},"body":'
    )
    return b"".join(
        (_head(job_id, line), b'"response":', response.encode(), answer.body, b'},"error":null}\n')
    )


def refusal(problem: Problem) -> LineAnswer:
    """What a line that holds no request is answered with: status 400 and OpenAI's error body."""
    error = {
        "message": problem.message,
        "type": "invalid_request_error",
        "param": problem.param,
        "code": problem.code,
    }
    body = json.dumps({"error": error}, separators=(",", ":")).encode()
    return LineAnswer(400, body, f"req_{secrets.token_hex(12)}")


def unanswered_line(job_id: str, line: Line, code: str, message: str) -> bytes:
    """The result of a line that nobody came to answer, newline included."""
    error = json.dumps({"code": code, "message": message}, separators=(",", ":"))
    return _head(job_id, line) + b'"response":null,"error":' + error.encode() + b"}\n"


@dataclass(frozen=True, slots=True)
class Result:
    """A line found in a result file.

    end: offset of the byte after it.
    unanswered: whether it was given up, not answered.
    """

    number: int
    end: int
    unanswered: bool


def read_results(path: Path) -> Iterator[Result]:
    """Results up to the first that isn't whole: what follows was cut off by a crash."""
    end = 0
    with path.open("rb") as stream:
        for raw in stream:
            end += len(raw)
            try:
                if not raw.endswith(b"\n"):
                    return
                result = json.loads(raw)
                number = int(result["id"].rpartition("_")[2])
                unanswered = result["response"] is None
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                return
            yield Result(number, end, unanswered)


def _head(job_id: str, line: Line) -> bytes:
    name = f"{_REQUEST_PREFIX}{job_id.removeprefix('batch_')}_{line.number}"
    return f'{{"id":"{name}","custom_id":{json.dumps(line.custom_id)},'.encode()


def _raw_lines(stream: BinaryIO, limit_bytes: int) -> Iterator[bytes | None]:
    """Lines as they are; None for one that is too long."""
    while raw := stream.readline(limit_bytes + 2):
        if len(raw.rstrip(b"\r\n")) <= limit_bytes:
            yield raw
            continue
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(_SKIP_BYTES)
        yield None


class _BadLineError(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def _line(number: int, raw: bytes, endpoint: str, seen: set[bytes]) -> Line:
    custom_id: str | None = None
    try:
        fields = _parse(raw)
        custom_id = _custom_id(fields)
        _refuse_second(custom_id, seen)
        return Line(number, custom_id, _body(fields, endpoint))
    except _BadLineError as error:
        problem = Problem(error.code, str(error), number, error.param)
    except RecursionError:
        problem = Problem("invalid_json_line", "The line is nested too deeply.", number)
    return Line(number, custom_id, problem=problem)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except ValueError as error:
        raise _BadLineError("invalid_json_line", f"The line is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise _BadLineError("invalid_json_line", "The line is not a JSON object.")
    return fields


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _custom_id(fields: dict[str, Any]) -> str:
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        message = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters."
        raise _BadLineError("invalid_custom_id", message, "custom_id")
    return custom_id


def _refuse_second(custom_id: str, seen: set[bytes]) -> None:
    digest = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if digest in seen:
        message = f"An earlier line has the 'custom_id' {custom_id!r} too."
        raise _BadLineError("duplicate_custom_id", message, "custom_id")
    seen.add(digest)


def _body(fields: dict[str, Any], endpoint: str) -> bytes:
    if fields.get("method") != "POST":
        raise _BadLineError("invalid_method", "'method' must be \"POST\".", "method")
    if fields.get("url") != endpoint:
        message = f"'url' must be the batch's endpoint, {endpoint}."
        raise _BadLineError("mismatched_endpoint", message, "url")
    body = fields.get("body")
    if not isinstance(body, dict):
        raise _BadLineError("invalid_body", "'body' must be a JSON object.", "body")
    return json.dumps(body, separators=(",", ":")).encode()
