"""Errors as clients see them: one body, OpenAI's, for every status and for broken streams."""

import json
import math
from collections.abc import Mapping

from headway.core.types import FinishReason
from headway.errors import (
    ConflictError,
    EngineStoppedError,
    HeadwayError,
    InvalidRequestError,
    NeverFitsError,
    NotFoundError,
    OverloadedError,
    StorageFullError,
)

_MOST_MESSAGE = 2000
_MOST_PARAM = 200


class ApiError(Exception):
    """An answer other than success.

    type, code: OpenAI's machine-readable words; `param` names the offending field, "" for none.
    headers: further response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        param: str = "",
        code: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """JSON body: `{"error": {"message", "type", "param", "code"}}`."""
        error = {
            "message": _short(self.message, _MOST_MESSAGE),
            "type": self.type,
            "param": _short(self.param, _MOST_PARAM) or None,
            "code": self.code or None,
        }
        return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


def _short(text: str, most: int) -> str:
    """The text, or its beginning: it may repeat what the client sent."""
    return text if len(text) <= most else f"{text[:most]}…"


def bad_request(message: str, param: str = "", code: str = "invalid_value") -> ApiError:
    """A request that can't be served as written."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str) -> ApiError:
    """The server is stopping or its engine has failed; another try may find another server."""
    return ApiError(503, message, "service_unavailable_error", "", code, {"Retry-After": "1"})


def internal_error() -> ApiError:
    """A fault of ours; the log has the details, the client doesn't get them."""
    return ApiError(500, "Internal error; the server's log has the details.", "server_error")


def from_exception(error: HeadwayError) -> ApiError:
    """What a client is told about an exception of ours."""
    message = str(error)
    match error:
        case NeverFitsError():
            return bad_request(message, error.param, "context_length_exceeded")
        case InvalidRequestError():
            return bad_request(message, error.param)
        case OverloadedError():
            headers = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
            return ApiError(429, message, "rate_limit_error", "", "overloaded", headers)
        case NotFoundError():
            return ApiError(404, message, code="not_found")
        case ConflictError():
            return ApiError(409, message, code="conflict")
        case StorageFullError():
            return ApiError(507, message, "server_error", "", "insufficient_storage")
        case EngineStoppedError():
            return unavailable(message, "engine_stopped")
        case _:
            return internal_error()


def from_finish(reason: FinishReason, message: str) -> ApiError:
    """What a client is told when one of its answers ended for a reason OpenAI has no word for."""
    match reason:
        case FinishReason.DEADLINE:
            text = message or "The request's time limit has passed."
            return ApiError(504, text, "timeout_error", "", "deadline_exceeded")
        case FinishReason.ABORT:
            return unavailable(message or "The server stopped this request.", "aborted")
        case _:
            text = message or "The model failed on this request."
            return ApiError(500, text, "server_error", "", "generation_failed")
