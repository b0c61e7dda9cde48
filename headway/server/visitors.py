"""Keeps web pages of strangers from a server that has no keys.

A browser carries any page's requests to this machine. Two headers, which no page can forge, say
that it does: `Origin`, and, where the page's own name was made to point here (DNS rebinding),
`Host`.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from headway.server.auth import path_of, refuse
from headway.server.errors import ApiError

_OPEN_PATHS = frozenset({"/health", "/ready"})
"""Probes call a server by any name, and learn nothing."""
_ALL = "*"
_DEFAULT_PORTS = (":80", ":443")


class VisitorGuard:
    """ASGI middleware: 403 for requests that a stranger's web page may have sent.

    hosts: names besides the loopback's by which the server is called, or `*`; pages that come from
        there may call too.
    origins: further origins whose pages may call, or `*`.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] == "http" and path_of(scope) not in _OPEN_PATHS:
            try:
                self._check(_values(scope, b"host"), _values(scope, b"origin"))
            except ApiError as refusal:
                await refuse(refusal, send)
                return
        await self._app(scope, receive, send)

    def _check(self, hosts: list[str], origins: list[str]) -> None:
        """Raise ApiError (403)."""
        for host in hosts:
            if not self._is_ours(host):
                raise _refusal(
                    f"This server has no keys and isn't called {host!r}: call it as localhost, or "
                    "start it with --allowed-host.",
                    "host_not_allowed",
                )
        for origin in origins:
            if not self._may_call(origin, hosts):
                raise _refusal(
                    f"This server has no keys and takes no requests from pages of {origin!r}: "
                    "start it with --cors-origin to let them call.",
                    "origin_not_allowed",
                )

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        return _is_loopback(name) or name in self._hosts or _ALL in self._hosts

    def _may_call(self, origin: str, hosts: list[str]) -> bool:
        if _ALL in self._origins or origin in self._origins:
            return True
        try:
            place = urlsplit(origin).netloc
        except ValueError:
            return False
        same = [_without_default(host) for host in hosts] == [_without_default(place)]
        return same or _name(place) in self._hosts


def _values(scope: Scope, header: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for name, value in scope["headers"] if name == header]


def _name(host: str) -> str:
    """A `Host` without its port."""
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _without_default(place: str) -> str:
    """A host and port, without the port where a browser would leave it out."""
    for port in _DEFAULT_PORTS:
        place = place.removesuffix(port)
    return place


def _refusal(message: str, code: str) -> ApiError:
    return ApiError(403, message, "permission_error", code=code)
