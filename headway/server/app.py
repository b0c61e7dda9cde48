"""Puts the HTTP application together."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headway.errors import HeadwayError
from headway.server.auth import KeyGuard
from headway.server.batch_routes import BATCH_BODIES, build_closed_router
from headway.server.errors import ApiError, from_exception, internal_error
from headway.server.routes import BODIES, Service, build_router

_API_VERSION = "1"
_BODIES: Mapping[str, type[BaseModel]] = {**BODIES, **BATCH_BODIES}
_SCHEMAS = "#/components/schemas/{model}"


class _App(FastAPI):
    """Describes request bodies too, which the routes validate themselves."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        document = super().openapi()
        bodies = {path: kind for path, kind in _BODIES.items() if path in document["paths"]}
        kinds: list[tuple[type[BaseModel], JsonSchemaMode]] = [
            (kind, "validation") for kind in bodies.values()
        ]
        _, schemas = models_json_schema(kinds, ref_template=_SCHEMAS)
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        for path, kind in bodies.items():
            content = {"schema": {"$ref": _SCHEMAS.format(model=kind.__name__)}}
            document["paths"][path]["post"]["requestBody"] = {
                "content": {"application/json": content},
                "required": True,
            }
        return document


def build_app(service: Service, batches: APIRouter | None = None) -> FastAPI:
    """The ASGI application of a service. Every error has OpenAI's body.

    batches: routes of the Batch API; None for a server that has no data folder.
    """
    app = _App(title="Headway", version=_API_VERSION, docs_url=None, redoc_url=None)
    app.include_router(build_router(service))
    app.include_router(batches or build_closed_router("the server has no data folder"))
    for kind in (ApiError, HeadwayError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    if service.options.api_key is not None:
        app.add_middleware(KeyGuard, key=service.options.api_key)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    answer = _as_api_error(request, error)
    return Response(answer.body(), answer.status, answer.headers, "application/json")


def _as_api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case HeadwayError():
            return from_exception(error)
        case HTTPException(status_code=404):
            return ApiError(404, f"No such path: {request.url.path}.", code="not_found")
        case HTTPException():  # the router's: a method it doesn't know
            headers = dict(error.headers or {})
            return ApiError(error.status_code, f"{error.detail}.", headers=headers)
        case _:
            return internal_error()
