"""Puts the HTTP application together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.errors import HeadwayError
from headway.server.auth import KeyGuard
from headway.server.batch_routes import build_closed_router
from headway.server.dashboard.feed import Feed
from headway.server.dashboard.routes import Dashboard
from headway.server.errors import ApiError, from_exception, internal_error
from headway.server.keyring import KeyRing
from headway.server.logs import RequestLog
from headway.server.metrics_families import Build
from headway.server.openapi import complete
from headway.server.operate import Insight, Operator, build_operator_router
from headway.server.reference import REFERENCE_PATH, reference
from headway.server.routes import Service, build_router
from headway.server.routing import add_get
from headway.server.tiers import CLASS_HEADER
from headway.server.tokenize import TokenService, build_token_router
from headway.server.visitors import VisitorGuard

_API_VERSION = "1"


class _App(FastAPI):
    """Describes request bodies too, which the routes validate themselves.

    prefix: the path that a proxy serves it under.
    log: what every request passes first.
    """

    prefix = ""
    log: RequestLog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self.prefix:
            scope["root_path"] = self.prefix
        await super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Every answer passes the log, those to unexpected errors too."""
        self.log = RequestLog(super().build_middleware_stack())
        return self.log

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once."""
        if self.openapi_schema is None:
            complete(super().openapi())
        return super().openapi()


@dataclass(frozen=True, slots=True)
class Front:
    """What stands before the routes.

    ring: keys; None lets everybody in.
    admin_port: where operators' paths need none.
    root_path: what a proxy puts before every path, and may or may not take away again.
    cors_origins: origins whose pages may call; `*` for all.
    allowed_hosts: what clients may call a server without keys, besides its loopback names.
    """

    ring: KeyRing | None = None
    admin_port: int | None = None
    root_path: str = ""
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


def build_app(
    service: Service,
    batches: APIRouter | None = None,
    insight: Insight | None = None,
    front: Front | None = None,
) -> FastAPI:
    """The ASGI application of a service. Every error has OpenAI's body.

    batches: routes of the Batch API; None for a server that has no data folder.
    insight: what operators are shown besides the engine.
    """
    front = front or Front()
    app = _App(title="Headway", version=_API_VERSION, docs_url=None, redoc_url=None)
    app.prefix = front.root_path
    app.include_router(build_router(service))
    tokens = TokenService(service.model, service.options.max_body_bytes)
    app.include_router(build_token_router(tokens))
    insight = insight or Insight(Build("", service.model.names.all[0]))
    operator = Operator(
        service.engine, service.metrics, insight, lambda: app.log.responses, service.names
    )
    page = insight.page
    dashboard = None if page is None else Dashboard(Feed(page), service.gate)
    app.include_router(build_operator_router(operator, dashboard))

    async def described() -> Response:
        return reference(app.openapi())

    add_get(app.router, REFERENCE_PATH, described, include_in_schema=False)
    app.include_router(batches or build_closed_router("the server has no data folder"))
    for kind in (ApiError, HeadwayError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    if front.ring is not None:
        app.add_middleware(KeyGuard, ring=front.ring, admin_port=front.admin_port)
    else:
        hosts, origins = front.allowed_hosts, front.cors_origins
        app.add_middleware(VisitorGuard, hosts=hosts, origins=origins)
    if front.cors_origins:
        # Outside of the guard: a browser asks what it may send before it sends a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=front.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[CLASS_HEADER, "X-Request-Id", "Retry-After"],
        )
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    answer = _as_api_error(request, error)
    return Response(answer.body(), answer.status, answer.headers, "application/json")


def _methods(request: Request) -> list[str]:
    """Those that a path has: the router would name those of its first route only."""
    routes: Sequence[BaseRoute] = request.app.routes

    def known(method: str) -> bool:
        scope = dict(request.scope, method=method)
        return any(route.matches(scope)[0] is Match.FULL for route in routes)

    return list(filter(known, ("DELETE", "GET", "HEAD", "POST")))


def _as_api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case HeadwayError():
            return from_exception(error)
        case HTTPException(status_code=404):
            return ApiError(404, f"No such path: {request.url.path}.", code="not_found")
        case HTTPException(status_code=405):
            methods = ", ".join(_methods(request))
            return ApiError(405, f"{error.detail}.", headers={"Allow": methods})
        case HTTPException():
            headers = dict(error.headers or {})
            return ApiError(error.status_code, f"{error.detail}.", headers=headers)
        case _:
            return internal_error()
