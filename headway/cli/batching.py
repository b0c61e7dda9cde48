"""The Batch API's part of `headway serve`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.batches.desk import BatchDesk, DeskLimits
from headway.config import BatchConfig
from headway.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import APIRouter

    from headway.batches.runner import BatchRunner
    from headway.engine.engine import Engine
    from headway.server.dashboard.frames import JobLine
    from headway.server.gate import Gate
    from headway.server.metrics_families import JobTotals
    from headway.server.model import ServedModel


@dataclass(frozen=True, slots=True)
class BatchSide:
    """Routes that are ready, and a runner that has not been started."""

    routes: "APIRouter"
    runner: "BatchRunner"


def open_desk(config: BatchConfig) -> tuple[BatchDesk | None, str]:
    """The data folder's desk, and what there is to say about it. None without a folder, and, with
    a notice, where the folder that nobody asked for can't be used. Raises ConfigError where one
    that was given can't."""
    if config.folder is None:
        return None, ""
    try:
        return BatchDesk(config.folder, DeskLimits(quota_bytes=config.quota_bytes)), ""
    except ConfigError as error:
        if config.given:
            raise
        return None, f"no Batch API: {error}"


def describe(desk: BatchDesk) -> str:
    """The folder and what is left to do in it, a line."""
    left = len(desk.store.live_jobs())
    unfinished = f"; {left} unfinished {'job' if left == 1 else 'jobs'}" if left else ""
    return f"Batch jobs: {desk.folder}{unfinished}"


def batch_side(desk: BatchDesk, engine: "Engine", model: "ServedModel", gate: "Gate") -> BatchSide:
    """Everything between a desk and an engine."""
    from headway.batches.runner import BatchRunner
    from headway.server.batch_routes import BatchService, build_batch_router
    from headway.server.line_answer import LineAnswerer

    answerer = LineAnswerer(engine, model)
    routes = build_batch_router(BatchService(desk, gate, tuple(answerer.endpoints)))
    return BatchSide(routes, BatchRunner(desk, answerer, engine.snapshot))


def job_totals(desk: BatchDesk) -> "JobTotals":
    """The desk's jobs and lines, for metrics."""
    from headway.server.metrics_families import JobTotals

    totals = desk.store.totals()
    ended = [counts for _, counts in totals.values()]
    live = [counts for status, (_, counts) in totals.items() if status.live]
    return JobTotals(
        jobs={status.value: jobs for status, (jobs, _) in totals.items()},
        lines={
            "completed": sum(c.completed for c in ended),
            "failed": sum(c.failed for c in ended),
            "waiting": sum(c.total - c.completed - c.failed for c in live),
        },
    )


def job_lines(desk: BatchDesk) -> "list[JobLine]":
    """The desk's live jobs, for the live page."""
    from headway.server.dashboard.frames import JobLine

    return [
        JobLine(j.id, j.status.value, j.counts.total, j.counts.completed, j.counts.failed)
        for j in desk.store.live_jobs()
    ]
