"""Who is let in where."""

from time import monotonic

from starlette.types import ASGIApp, Receive, Scope, Send

from headway.server.caller import EVERYBODY, Caller
from headway.server.dashboard.routes import FRONT_DOOR, page_paths
from headway.server.errors import ApiError
from headway.server.keyring import KeyRing

_OPEN_PATHS = page_paths() | {FRONT_DOOR, "/health", "/ready"}
"""The live page's files hold nothing of the server's; its data has a path of its own."""
_API = ("/v1/", "/tokenize", "/detokenize")
"""What every key opens; anything else is for operators, so that no new path is open by mistake."""


class KeyGuard:
    """ASGI middleware: finds out who calls, and refuses those who may not.

    Requests without a known `Authorization: Bearer KEY` get 401, those for operators' paths with a
    key that has no such right 403, and one more than a key may have under way 429. Operators' paths
    need no key on the admin port.
    """

    def __init__(self, app: ASGIApp, ring: KeyRing, admin_port: int | None) -> None:
        self._app = app
        self._ring = ring
        self._admin_port = admin_port
        self._operator = Caller(EVERYBODY, monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] != "http" or path_of(scope) in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            caller = self._caller(scope)
            with caller.inside():
                state = scope.setdefault("state", {})
                state["caller"], state["tenant"] = caller, caller.tenant
                await self._app(scope, receive, send)
        except ApiError as refusal:  # of our own: the application answers its errors itself
            await refuse(refusal, send)

    def _caller(self, scope: Scope) -> Caller:
        """Raises ApiError."""
        for_operators = not path_of(scope).startswith(_API)
        if for_operators and self._admin_port is not None and _port(scope) == self._admin_port:
            return self._operator
        caller = self._ring.find(_presented(scope))
        if caller is None:
            raise ApiError(
                401,
                "Missing or wrong API key; send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if for_operators and not caller.key.rights.admin:
            raise ApiError(
                403, "This key is not one for operators.", "permission_error", code="not_allowed"
            )
        return caller


def caller_of(scope: Scope) -> Caller:
    """Who calls, as the guard found out; where there is none, everybody is one caller."""
    caller = scope.get("state", {}).get("caller")
    return caller if isinstance(caller, Caller) else Caller(EVERYBODY, monotonic)


def path_of(scope: Scope) -> str:
    """A request's path as routes have it, whether or not a proxy took its own part away."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(root + "/") else path


def _presented(scope: Scope) -> str:
    given = b""
    for name, value in scope["headers"]:
        if name == b"authorization":
            given = value
    scheme, _, key = given.partition(b" ")
    return key.strip().decode("utf-8", "replace") if scheme.lower() == b"bearer" else ""


def _port(scope: Scope) -> int | None:
    server = scope.get("server")
    return None if server is None else server[1]


async def refuse(refusal: ApiError, send: Send) -> None:
    """Answer with an error from outside of the application."""
    body = refusal.body()
    headers = {"Content-Type": "application/json", **refusal.headers}
    fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    fields.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
