"""One shared key for everything but the health checks and the live page's files."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from headway.server.dashboard.routes import page_paths
from headway.server.errors import ApiError

_OPEN_PATHS = page_paths() | {"/health", "/ready"}
"""The live page's files hold nothing of the server's; its data has a path of its own."""


class KeyGuard:
    """ASGI middleware: requests without `Authorization: Bearer KEY` get 401."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what has the key."""
        if scope["type"] != "http" or path_of(scope) in _OPEN_PATHS or self._admits(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "Missing or wrong API key; send it as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
        )
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(refusal.body())).encode()),
            (b"www-authenticate", b"Bearer"),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.body()})

    def _admits(self, scope: Scope) -> bool:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value
        scheme, _, key = given.partition(b" ")
        # Compared in constant time, so that the time taken says nothing about the key.
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def path_of(scope: Scope) -> str:
    """A request's path as routes have it, whether or not a proxy took its own part away."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(root + "/") else path
