"""Adds routes of which there are two: what takes GET takes HEAD."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response


def add_get(
    router: APIRouter, path: str, endpoint: Callable[..., Awaitable[Response]], **described: Any
) -> None:
    """Add a route for GET, and for HEAD (RFC 9110, section 9.3.2) another that the document leaves
    out. It answers with the same head; the connection drops the body.

    described: what else `add_api_route` is to know of the first.
    """
    router.add_api_route(path, endpoint, methods=["GET"], **described)
    router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
