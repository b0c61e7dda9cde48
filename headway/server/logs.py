"""Logs: as text or as JSON lines, with the id of the HTTP request they belong to.

No text of a prompt or an answer is in them unless asked for.
"""

import json
import logging
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.server.tiers import CLASS_HEADER

REQUEST_ID_HEADER = "X-Request-Id"
UNKNOWN_ROUTE = "(none)"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_OURS = frozenset({"message", "asctime", "further"})
_UVICORNS = frozenset({"color_message"})  # the message again, with colours for a terminal
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | _OURS | _UVICORNS
_ACCESS = logging.getLogger("headway.access")
_current: ContextVar[str] = ContextVar("headway_request_id", default="")


def configure_logs(level: str, form: str) -> None:
    """Send this process's logs to standard error. level: of Python's logging, lower case; form:
    `text` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class TextFormatter(logging.Formatter):
    """`time level logger: message name=value …`, for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s%(further)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it."""
        record.further = "".join(f" {name}={value}" for name, value in _further(record).items())
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """A JSON object a line: time, level, logger, message, what the call added, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_further(record),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class RequestLog:
    """ASGI middleware: gives every request an id, says so in the response, logs a line when it
    has ended, and counts responses.

    The id is the client's `X-Request-Id` if that is up to 128 letters, digits and `._:/+=@-`, so
    that nothing in it can break a log; otherwise one of ours.

    responses: how many there were by (route, status); 499 for a client that left before one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._responses: Counter[tuple[str, int]] = Counter()

    @property
    def responses(self) -> Mapping[tuple[str, int], int]:
        """Responses so far."""
        return self._responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        status, service_class, started_s = 499, "", monotonic()

        async def answer(message: Message) -> None:
            nonlocal status, service_class
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                status = message["status"]
                service_class = headers.get(CLASS_HEADER, "")
            await send(message)

        token = _current.set(request_id)
        try:
            await self._app(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            self._responses[route, status] += 1
            if _ACCESS.isEnabledFor(logging.INFO):
                further = {"seconds": round(monotonic() - started_s, 6)}
                _log_access(scope, status, {**further, "service_class": service_class})
            _current.reset(token)


def current_request_id() -> str:
    """The id of the HTTP request that is being answered; empty outside of one."""
    return _current.get()


def _log_access(scope: Scope, status: int, further: Mapping[str, object]) -> None:
    # The path is the client's: what could begin a line of its own is written as escapes.
    path = scope["path"].encode("unicode_escape").decode()
    fields = {"method": scope["method"], "path": path, "status": status, **further}
    _ACCESS.info("request", extra={k: v for k, v in fields.items() if v != ""})


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _further(record: logging.LogRecord) -> dict[str, object]:
    """The request's id, and what the call to the logger added."""
    request_id = _current.get()
    further: dict[str, object] = {"request_id": request_id} if request_id else {}
    further.update((k, v) for k, v in vars(record).items() if k not in _USUAL)
    return further
