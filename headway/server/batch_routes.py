"""`/v1/files` and `/v1/batches`."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, JSONResponse, Response

from headway.batches.desk import BatchDesk, Incoming
from headway.batches.types import INPUT_PURPOSE, StoredFile
from headway.server.batch_schema import BATCHES_SCHEMA, FILES_SCHEMA, UPLOAD_SCHEMA
from headway.server.batch_types import (
    MAX_FILES_LISTED,
    MAX_JOBS_LISTED,
    BatchBody,
    batch_json,
    file_json,
    file_life_s,
    list_json,
    page_of,
)
from headway.server.errors import ApiError, bad_request
from headway.server.fields import Body
from headway.server.gate import Gate
from headway.server.parse import parse_json, read_body
from headway.server.routing import add_get
from headway.server.upload import read_form

P = ParamSpec("P")
T = TypeVar("T")

FILES_PATH = "/v1/files"
BATCHES_PATH = "/v1/batches"
BATCH_BODIES: dict[str, type[Body]] = {BATCHES_PATH: BatchBody}
"""What is posted where, as JSON."""

_MAX_ORDER_BYTES = 64 * 1024
_MAX_FORM_BYTES = 1_000_000_000
"""Beyond the limit of a file, which is told in an error, so that it is worth reading on."""

_DEFAULT_JOBS_LISTED = 20
_THREADS = 4


@dataclass(frozen=True, slots=True)
class BatchService:
    """What the endpoints share.

    endpoints: paths that lines may be meant for.
    threads: for what touches the disk. Not those that encode prompts: a slow disk would hold up
        requests that have nothing to do with it.
    """

    desk: BatchDesk
    gate: Gate
    endpoints: Sequence[str]
    threads: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(_THREADS, "headway-files"), repr=False
    )

    async def upload(self, request: Request) -> Response:
        """POST /v1/files."""
        with self.gate.enter():
            incoming = await self._aside(self.desk.receive)
            try:
                file = await self._taken_in(request, incoming)
            finally:
                await self._aside(incoming.discard)
        return JSONResponse(file_json(file))

    async def _taken_in(self, request: Request, incoming: Incoming) -> StoredFile:
        form = await read_form(request, incoming.write, _MAX_FORM_BYTES, self.threads)
        filename = form.finish()
        if form.fields.get("purpose") != INPUT_PURPOSE:
            raise bad_request(
                f"'purpose' must be {INPUT_PURPOSE!r}; files for other purposes are not kept here.",
                "purpose",
                "invalid_value",
            )
        life_s = file_life_s(form.fields)
        return await self._aside(incoming.accept, tenant_of(request), filename, life_s)

    async def files(self, request: Request) -> Response:
        """GET /v1/files."""
        page = page_of(request.query_params, MAX_FILES_LISTED, MAX_FILES_LISTED)
        purpose = request.query_params.get("purpose", "")
        one_more = replace(page, limit=page.limit + 1)
        if page.after:  # NotFoundError, rather than a page that looks like the last
            await self._aside(self.desk.file, page.after, tenant_of(request))
        files = await self._aside(self.desk.list_files, tenant_of(request), one_more, purpose)
        return JSONResponse(list_json([file_json(file) for file in files], page.limit))

    async def file(self, request: Request, file_id: str) -> Response:
        """GET /v1/files/ID."""
        return JSONResponse(
            file_json(await self._aside(self.desk.file, file_id, tenant_of(request)))
        )

    async def content(self, request: Request, file_id: str) -> Response:
        """GET /v1/files/ID/content."""
        path = await self._aside(self.desk.content, file_id, tenant_of(request))
        if not path.exists():
            raise ApiError(404, f"The contents of file {file_id!r} are gone.", code="not_found")
        return FileResponse(path, media_type="application/octet-stream")

    async def delete(self, request: Request, file_id: str) -> Response:
        """DELETE /v1/files/ID."""
        await self._aside(self.desk.delete_file, file_id, tenant_of(request))
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def create(self, request: Request) -> Response:
        """POST /v1/batches."""
        self.gate.check()
        body = parse_json(BatchBody, await read_body(request, _MAX_ORDER_BYTES))
        order = body.order(tenant_of(request), self.endpoints)
        return JSONResponse(batch_json(await self._aside(self.desk.create, order)))

    async def batches(self, request: Request) -> Response:
        """GET /v1/batches."""
        page = page_of(request.query_params, MAX_JOBS_LISTED, _DEFAULT_JOBS_LISTED)
        one_more = replace(page, limit=page.limit + 1)
        if page.after:
            await self._aside(self.desk.job, page.after, tenant_of(request))
        jobs = await self._aside(self.desk.list_jobs, tenant_of(request), one_more)
        return JSONResponse(list_json([batch_json(job) for job in jobs], page.limit))

    async def batch(self, request: Request, batch_id: str) -> Response:
        """GET /v1/batches/ID."""
        return JSONResponse(
            batch_json(await self._aside(self.desk.job, batch_id, tenant_of(request)))
        )

    async def cancel(self, request: Request, batch_id: str) -> Response:
        """POST /v1/batches/ID/cancel."""
        job = await self._aside(self.desk.cancel, batch_id, tenant_of(request))
        return JSONResponse(batch_json(job))

    async def _aside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may touch the disk in another thread, so that no stream waits for it."""
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)


def tenant_of(request: Request) -> str:
    """Whose request it is; files and jobs are their tenant's own."""
    return str(request.scope.get("state", {}).get("tenant", ""))


def build_batch_router(service: BatchService) -> APIRouter:
    """All routes of the Batch API."""
    router = APIRouter()
    router.add_api_route(FILES_PATH, service.upload, methods=["POST"], openapi_extra=UPLOAD_SCHEMA)
    add_get(router, FILES_PATH, service.files, openapi_extra=FILES_SCHEMA)
    add_get(router, FILES_PATH + "/{file_id}", service.file)
    router.add_api_route(FILES_PATH + "/{file_id}", service.delete, methods=["DELETE"])
    add_get(router, FILES_PATH + "/{file_id}/content", service.content)
    router.add_api_route(BATCHES_PATH, service.create, methods=["POST"])
    add_get(router, BATCHES_PATH, service.batches, openapi_extra=BATCHES_SCHEMA)
    add_get(router, BATCHES_PATH + "/{batch_id}", service.batch)
    router.add_api_route(BATCHES_PATH + "/{batch_id}/cancel", service.cancel, methods=["POST"])
    return router


def build_closed_router(reason: str) -> APIRouter:
    """The same paths on a server without the Batch API: 404, with the reason."""

    async def refuse(request: Request) -> Response:
        raise ApiError(404, f"The Batch API is off: {reason}.", code="batches_off")

    router = APIRouter()
    for path in (FILES_PATH, BATCHES_PATH):
        for suffix in ("", "/{rest:path}"):
            router.add_api_route(
                path + suffix,
                refuse,
                methods=["GET", "HEAD", "POST", "DELETE"],
                include_in_schema=False,
            )
    return router
