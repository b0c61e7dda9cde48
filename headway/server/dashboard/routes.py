"""The page's files, which hold no data and are open to all, and its data."""

from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from headway.server.dashboard.feed import Feed
from headway.server.errors import ApiError
from headway.server.gate import Gate
from headway.server.routing import add_get

FRONT_DOOR = "/"
PAGE_PATH = "/dashboard"
DATA_PATH = "/dashboard/data"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def page_paths() -> frozenset[str]:
    """Paths of the page's files."""
    names = (entry.name for entry in resources.files(__package__).joinpath("static").iterdir())
    return frozenset({PAGE_PATH, *(f"{PAGE_PATH}/{name}" for name in names)})


class Dashboard:
    """The page's endpoints."""

    def __init__(self, feed: Feed, gate: Gate) -> None:
        self._feed = feed
        self._gate = gate

    async def front_door(self) -> Response:
        """GET /: leads to the page, by a path that holds behind a proxy's prefix too."""
        return RedirectResponse(PAGE_PATH.removeprefix("/"), 307)

    async def page(self) -> Response:
        """GET /dashboard."""
        return _file("index.html")

    async def file(self, name: str) -> Response:
        """GET /dashboard/NAME. Raises ApiError (404)."""
        return _file(name)

    async def data(self, request: Request) -> Response:
        """GET /dashboard/data: server-sent events, see `frames`. Raises ApiError (503)."""
        self._feed.require_room()
        gate = self._gate

        def going() -> bool:
            return gate.open or gate.inside > 0

        events = self._feed.events(going) if request.method == "GET" else iter(())
        return StreamingResponse(events, headers=_STREAM_HEADERS, media_type="text/event-stream")


def build_dashboard_router(dashboard: Dashboard) -> APIRouter:
    """The page and its data; none of it is part of the documented API."""
    router = APIRouter(include_in_schema=False)
    add_get(router, FRONT_DOOR, dashboard.front_door)
    add_get(router, PAGE_PATH, dashboard.page)
    add_get(router, DATA_PATH, dashboard.data)
    add_get(router, f"{PAGE_PATH}/{{name}}", dashboard.file)
    return router


def _file(name: str) -> Response:
    if f"{PAGE_PATH}/{name}" not in page_paths():
        raise ApiError(404, f"The live page has no file {name!r}.", code="not_found")
    content = resources.files(__package__).joinpath("static", name).read_bytes()
    kind = _TYPES[name.rpartition(".")[2]]
    return Response(content, headers=_HEADERS, media_type=kind)
