"""One job, from wherever it stands to its end.

Every step either is durable or is done again: whoever runs a job anew after a crash, a full disk
or a stop finds in the database and the result files where to go on.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from functools import partial

from headway.batches.desk import BatchDesk
from headway.batches.lines import Line, answer_line, read_lines, refusal, unanswered_line
from headway.batches.results import ResultLog
from headway.batches.types import (
    OUTPUT_PURPOSE,
    Answerer,
    Counts,
    Job,
    Problem,
    Status,
    StoredFile,
)
from headway.batches.window import Window
from headway.errors import StorageFullError

_LOG = logging.getLogger(__name__)
_BREATH_LINES = 64
_LOOK_S = 30.0
_MOST_PROBLEMS = 100
_MOST_FAILURES = 1
"""A failed step takes lines with it that are not to blame; one that fails twice may be."""

_GIVEN_UP = {
    Status.EXPIRED: (
        "batch_expired",
        "The completion window ended before this request was answered.",
    ),
    Status.CANCELLED: (
        "batch_cancelled",
        "The batch was cancelled before this request was answered.",
    ),
}


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How jobs are worked on.

    max_lines: a file with more fails.
    line_bytes: a longer line gets an error.
    retry_s: pause before another try where disk or engine refuse for now.
    breath_s: pause after each 64 lines read, in which other threads have the interpreter.
    note_s: how often progress is noted.
    """

    max_lines: int = 50_000
    line_bytes: int = 16 * 1024 * 1024
    retry_s: float = 2.0
    breath_s: float = 0.001
    note_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Shop:
    """What jobs share. turns: holds a place for each job that may answer lines at a time;
    reading: held while a file is validated."""

    desk: BatchDesk
    answerer: Answerer
    window: Window
    turns: asyncio.Semaphore
    reading: asyncio.Lock
    options: WorkOptions


class JobWork:
    """Works on one job. cancelled: set by whoever sees that the job is to be cancelled."""

    def __init__(self, job: Job, shop: Shop, cancelled: asyncio.Event) -> None:
        self._job = job
        self._shop = shop
        self._desk = shop.desk
        self._store = shop.desk.store
        self._options = shop.options
        self._cancelled = cancelled
        self._noted_s = 0.0
        self._paused = False

    async def run(self) -> None:
        """Bring the job to its end. Raises whatever keeps it from that; run it anew then."""
        if self._job.status is Status.VALIDATING:
            await self._validate()
        if not self._job.status.live:
            return
        log = ResultLog(self._desk.files, self._job.results)
        try:
            await self._finish(log, await self._answer_until(log))
        finally:
            log.close()

    async def _validate(self) -> None:
        """Read the file through. A job cancelled meanwhile stays that."""
        async with self._shop.reading:
            survey = await self._survey()
        now_s = self._desk.clock()
        if survey.problem is not None:
            problems = [survey.problem]
        elif not survey.good:
            problems = survey.problems
        else:
            counts = Counts(survey.total)
            self._store.move(self._job.id, Status.IN_PROGRESS, now_s, counts)
            self._look_up()
            return
        self._store.move(self._job.id, Status.FAILED, now_s, problems=problems)
        self._look_up()

    async def _survey(self) -> "_Survey":
        survey, most = _Survey(), self._options.max_lines
        try:
            async with aclosing(self._lines()) as lines:
                async for line in lines:
                    survey.count(line)
                    if survey.total > most or self._cancelled.is_set():
                        break
        except FileNotFoundError:
            survey.problem = Problem("input_file_missing", "The input file's contents are gone.")
        if survey.total > most:
            survey.problem = Problem(
                "too_many_requests", f"The file has more than {most:,} requests."
            )
        elif not survey.total and survey.problem is None:
            survey.problem = Problem("empty_file", "The file has no requests.")
        return survey

    def _look_up(self) -> None:
        self._job = self._store.job(self._job.id) or self._job

    async def _answer_until(self, log: ResultLog) -> Status:
        """Answer lines until all are done, the window ends or the job is cancelled; the status
        that the job ends in."""
        if self._job.status is Status.CANCELLING:
            return Status.CANCELLED
        work = asyncio.ensure_future(self._answer_lines(log))
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            while (left_s := self._job.expires_s - self._desk.clock()) > 0:
                await asyncio.wait(
                    {work, cancelled},
                    timeout=min(left_s, _LOOK_S),  # the clock may be set meanwhile
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if work.done():
                    work.result()
                    return Status.COMPLETED
                if cancelled.done():
                    return Status.CANCELLED
            return Status.EXPIRED
        finally:
            work.cancel()
            cancelled.cancel()
            await asyncio.gather(work, cancelled, return_exceptions=True)

    async def _answer_lines(self, log: ResultLog) -> None:
        async with self._shop.turns, asyncio.TaskGroup() as group, aclosing(self._lines()) as lines:
            async for line in lines:
                if line.number in log.done:
                    continue
                if line.problem is not None:
                    piece = answer_line(self._job.id, line, refusal(line.problem))
                    await self._keep(log, partial(log.add_error, line.number, piece))
                    continue
                size = len(line.body)
                await self._shop.window.enter(size)
                task = group.create_task(self._answer(log, line))
                # Not in the task itself: one cancelled before it has begun runs nothing.
                task.add_done_callback(partial(self._leave, size))

    def _leave(self, size: int, _: object) -> None:
        self._shop.window.leave(size)

    async def _answer(self, log: ResultLog, line: Line) -> None:
        order, answerer = self._job.order, self._shop.answerer
        answer, failures = await answerer.answer(order.endpoint, line.body, order.tenant), 0
        while answer.passing or (answer.failed and failures < _MOST_FAILURES):
            failures += answer.failed
            await asyncio.sleep(self._options.retry_s)
            answer = await answerer.answer(order.endpoint, line.body, order.tenant)
        add = log.add_output if answer.status == 200 else log.add_error
        await self._keep(log, partial(add, line.number, answer_line(self._job.id, line, answer)))

    async def _keep(self, log: ResultLog, add: Callable[[], None]) -> None:
        """Add a result; while the disk is full the job waits here, as do the lines behind it."""
        while True:
            try:
                add()
                break
            except StorageFullError as error:
                if not self._paused:
                    _LOG.warning("%s is paused: %s", self._job.id, error)
                self._paused = True
                await asyncio.sleep(self._options.retry_s)
        if self._paused:
            _LOG.warning("%s goes on", self._job.id)
            self._paused = False
        now_s = self._desk.clock()
        if not 0 <= now_s - self._noted_s < self._options.note_s:
            self._noted_s = now_s
            with suppress(StorageFullError):  # the result files know better anyway
                self._store.set_counts(self._job.id, log.counts(self._job.counts.total))

    async def _finish(self, log: ResultLog, ending: Status) -> None:
        """Give up what is not answered, and end the job with its result files entered."""
        validated = Status.IN_PROGRESS in self._job.times
        if ending is not Status.COMPLETED and validated:
            await self._give_up(log, *_GIVEN_UP[ending])
            if ending is Status.EXPIRED and not log.gave_up:
                ending = Status.COMPLETED
        log.sync()
        self._desk.files.sync()
        if ending is Status.COMPLETED:
            self._store.move(self._job.id, Status.FINALIZING, self._desk.clock())
        files, counts = self._result_files(log), log.counts(self._job.counts.total)
        for status in (ending, Status.CANCELLED):  # which a request may have come for just now
            if self._store.publish(self._job.id, status, self._desk.clock(), counts, files):
                _LOG.info("%s is %s: %s", self._job.id, status.value, counts)
                break
        else:
            raise RuntimeError(f"{self._job.id} can't end as {ending.value}")
        for id, size in self._sizes(log):
            if not size:
                self._desk.files.remove(id)

    async def _give_up(self, log: ResultLog, code: str, message: str) -> None:
        with suppress(FileNotFoundError):  # somebody took the input away by hand
            async for line in self._lines():
                if line.number not in log.done:
                    piece = unanswered_line(self._job.id, line, code, message)
                    await self._keep(log, partial(log.add_error, line.number, piece, True))

    async def _lines(self) -> AsyncGenerator[Line, None]:
        order, options = self._job.order, self._options
        path = self._desk.files.path(order.input_file_id)
        with closing(read_lines(path, order.endpoint, options.line_bytes)) as lines:
            for count, line in enumerate(lines, 1):
                yield line
                if count % _BREATH_LINES == 0:
                    await asyncio.sleep(options.breath_s)

    def _sizes(self, log: ResultLog) -> tuple[tuple[str, int], tuple[str, int]]:
        results = self._job.results
        return (
            (results.output_file_id, log.output_bytes),
            (results.error_file_id, log.error_bytes),
        )

    def _result_files(self, log: ResultLog) -> list[StoredFile]:
        """Entries of the files that something was written to."""
        order, now_s = self._job.order, int(self._desk.clock())
        return [
            StoredFile(
                id,
                order.tenant,
                OUTPUT_PURPOSE,
                f"{self._job.id}_{word}.jsonl",
                size,
                now_s,
                now_s + order.output_life_s,
            )
            for (id, size), word in zip(self._sizes(log), ("output", "error"), strict=True)
            if size
        ]


@dataclass(slots=True)
class _Survey:
    """What reading a file through has found. problem: one of the file as a whole."""

    total: int = 0
    good: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem: Problem | None = None

    def count(self, line: Line) -> None:
        """Take in a line."""
        self.total += 1
        if line.problem is None:
            self.good += 1
        elif len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(line.problem)
