"""Bodies of `/v1/files` and `/v1/batches`, in and out."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from headway.batches.types import (
    DAY_S,
    DEFAULT_LIFE_S,
    Job,
    Order,
    Page,
    Status,
    StoredFile,
)
from headway.server.errors import bad_request
from headway.server.fields import Body
from headway.server.jsontext import Json

MIN_LIFE_S = 3600
MAX_LIFE_S = DEFAULT_LIFE_S
MAX_WINDOW_S = 30 * DAY_S
MAX_FILES_LISTED = 10_000
MAX_JOBS_LISTED = 100

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": DAY_S}
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_STATUSES_WITH_TIMES = (status for status in Status if status is not Status.VALIDATING)
_TIMES = tuple((status, f"{status.value}_at") for status in _STATUSES_WITH_TIMES)


class ExpiresAfter(Body):
    """When files are deleted."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_LIFE_S, le=MAX_LIFE_S)]


MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class BatchBody(Body):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None

    def order(self, tenant: str, endpoints: Sequence[str]) -> Order:
        """What is asked for. Raises ApiError (400)."""
        if self.output_expires_after is not None:
            self.output_expires_after.check_extra("output_expires_after.")
        if self.endpoint not in endpoints:
            known = ", ".join(endpoints)
            raise bad_request(f"'endpoint' must be one of {known}.", "endpoint", "invalid_value")
        life = self.output_expires_after
        return Order(
            tenant=tenant,
            input_file_id=self.input_file_id,
            endpoint=self.endpoint,
            window=self.completion_window,
            window_s=window_s(self.completion_window),
            metadata=self.metadata,
            output_life_s=DEFAULT_LIFE_S if life is None else life.seconds,
        )


def window_s(window: str) -> int:
    """Seconds of a completion window: `24h`, and as our own extension `90s`, `15m`, `7d`.

    Raises ApiError (400).
    """
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 0 < seconds <= MAX_WINDOW_S:
        raise bad_request(
            '\'completion_window\' must be a time such as "24h", "90s" or "7d", up to 30 days.',
            "completion_window",
            "invalid_value",
        )
    return seconds


def file_life_s(fields: Mapping[str, str]) -> int:
    """Seconds an uploaded file is kept, by the form's fields. Raises ApiError (400)."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return DEFAULT_LIFE_S
    if anchor != "created_at":
        raise bad_request(
            "'expires_after[anchor]' must be 'created_at'.", "expires_after", "invalid_value"
        )
    digits = seconds or ""
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10) or not (
        MIN_LIFE_S <= int(digits) <= MAX_LIFE_S
    ):
        raise bad_request(
            f"'expires_after[seconds]' must be between {MIN_LIFE_S} and {MAX_LIFE_S}.",
            "expires_after",
            "invalid_value",
        )
    return int(digits)


def page_of(query: Mapping[str, str], most: int, default: int) -> Page:
    """The page a query asks for. Raises ApiError (400)."""
    limit, order = query.get("limit", str(default)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= most):
        raise bad_request(f"'limit' must be between 1 and {most:,}.", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise bad_request("'order' must be 'asc' or 'desc'.", "order", "invalid_value")
    return Page(query.get("after", ""), int(limit), order == "asc")


def file_json(file: StoredFile) -> Json:
    """OpenAI's file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.created_s,
        "expires_at": file.expires_s,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_json(job: Job) -> Json:
    """OpenAI's batch object."""
    order, results, counts = job.order, job.results, job.counts
    problems = [
        {"code": p.code, "message": p.message, "line": p.line, "param": p.param}
        for p in job.problems
    ]
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": order.endpoint,
        "errors": {"object": "list", "data": problems} if problems else None,
        "input_file_id": order.input_file_id,
        "completion_window": order.window,
        "status": job.status.value,
        "output_file_id": results.output_file_id if results.has_output else None,
        "error_file_id": results.error_file_id if results.has_errors else None,
        "created_at": job.created_s,
        "expires_at": job.expires_s,
        **{name: job.times.get(status) for status, name in _TIMES},
        "request_counts": {
            "total": counts.total,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "metadata": None if order.metadata is None else dict(order.metadata),
    }


def list_json(items: Sequence[Json], limit: int) -> Json:
    """OpenAI's list object of a page, from one item more than the page has, if there is one."""
    data = list(items[:limit])
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(items) > limit,
    }
