"""Routes for those who run the server: metrics, and why steps were planned as they were.

All of them, and those of the live page, are in the one router that `build_operator_router` makes,
so that one guard in front of it is enough.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from headway.core.record import StepRecord
from headway.core.types import RequestId
from headway.engine.types import EngineClient
from headway.server.dashboard.feed import Sources
from headway.server.dashboard.routes import Dashboard, build_dashboard_router
from headway.server.errors import ApiError
from headway.server.metrics import Metrics
from headway.server.metrics_families import Build, JobTotals, Scrape, exposition
from headway.server.names import RequestNames
from headway.server.routing import add_get


@dataclass(frozen=True, slots=True)
class Insight:
    """What operators are shown besides the engine's own figures.

    jobs: counts the Batch jobs; may block for a moment. None for a server without them.
    page: where the live page has its data from; None for a server without it.
    """

    build: Build
    jobs: Callable[[], JobTotals] | None = None
    page: Sources | None = None


class Operator:
    """The operator's endpoints.

    responses: gives HTTP responses by (route, status).
    names: what HTTP requests are called.
    """

    def __init__(
        self,
        engine: EngineClient,
        metrics: Metrics,
        insight: Insight,
        responses: Callable[[], Mapping[tuple[str, int], int]],
        names: RequestNames,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._insight = insight
        self._responses = responses
        self._names = names

    async def scrape(self) -> Response:
        """GET /metrics."""
        count = self._insight.jobs
        jobs = None if count is None else await asyncio.to_thread(count)
        scrape = Scrape(
            self._metrics,
            self._engine.snapshot(),
            self._engine.healthy,
            self._insight.build,
            self._responses(),
            jobs,
        )
        content, media_type = exposition(scrape)
        return Response(content, media_type=media_type)

    async def explain(self, step: str) -> Response:
        """GET /debug/steps/STEP: what a step decided and why; `latest` for the last one. `names`
        are the X-Request-Ids of the numbers, where they are known.
        Raises ApiError (404) where the step is unknown or no longer kept."""
        known = step.isascii() and step.isdecimal() and len(step) < 20
        number = None if step == "latest" else int(step) if known else -1
        record = self._engine.explain(number)
        if record is None:
            raise ApiError(404, f"Step {step} is not among the last steps.", code="not_found")
        names = {str(k): name for k, name in self._names.of(_requests_in(record)).items()}
        return JSONResponse({**asdict(record, dict_factory=_plain), "names": names})


def build_operator_router(operator: Operator, dashboard: Dashboard | None = None) -> APIRouter:
    """All routes for operators, those of the live page too if there is one."""
    router = APIRouter()
    if dashboard is not None:
        router.include_router(build_dashboard_router(dashboard))
    add_get(router, "/metrics", operator.scrape)
    add_get(router, "/debug/steps/{step}", operator.explain)
    return router


def _requests_in(record: StepRecord) -> set[RequestId]:
    lists = (record.computed, record.evicted, record.passed_over, record.paused)
    found = {entry.request for entries in lists for entry in entries}
    return found | {victim.wanted_by for victim in record.evicted} | set(record.entered)


def _plain(fields: list[tuple[str, object]]) -> dict[str, object]:
    """Fields of a record as JSON can hold them: names of enums, null for no limit."""
    plain: dict[str, object] = {}
    for name, value in fields:
        if isinstance(value, Enum):
            value = value.name.lower()
        plain[name] = None if value == float("inf") else value
    return plain
