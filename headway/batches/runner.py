"""Runs jobs in a thread of its own, so that reading and writing files delays no stream."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from headway.batches.desk import BatchDesk
from headway.batches.types import Answerer, Job, Status
from headway.batches.window import Window, WindowLimits
from headway.batches.work import JobWork, Shop, WorkOptions
from headway.core.request import Snapshot
from headway.errors import StorageFullError

_LOG = logging.getLogger(__name__)

ACTIVE_JOBS = 8
"""Jobs that answer lines at a time; the others wait in the order of their arrival."""

LOOK_S = 60.0
"""How often expired files are looked for."""


class BatchRunner:
    """Takes up every job that hasn't ended, whoever left it so.

    snapshot: the engine's; tells how many lines it has use for.
    """

    def __init__(
        self,
        desk: BatchDesk,
        answerer: Answerer,
        snapshot: Callable[[], Snapshot],
        options: WorkOptions | None = None,
        window: WindowLimits | None = None,
    ) -> None:
        self._desk = desk
        self._answerer = answerer
        self._snapshot = snapshot
        self._options = options or WorkOptions()
        self._limits = window or WindowLimits()
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="headway-batches", daemon=True)

    def start(self) -> None:
        """Start the thread. Once only."""
        self._loop = asyncio.new_event_loop()
        self._main = self._loop.create_task(self._look_after())
        self._desk.changed = lambda: self._call(self._changed.set)
        self._thread.start()

    def stop(self) -> None:
        """Abort the lines under way and end the thread; the jobs go on at the next start."""
        self._desk.changed = lambda: None
        if self._main is not None:
            self._call(self._main.cancel)
            self._thread.join()

    def _call(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        """The thread."""
        loop, main = self._loop, self._main
        if loop is None or main is None:
            raise RuntimeError("the runner has not been started")
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main)
        except asyncio.CancelledError:
            _LOG.debug("the batch runner has stopped")
        except BaseException:
            _LOG.critical("the batch runner has died", exc_info=True)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _look_after(self) -> None:
        shop = Shop(
            self._desk,
            self._answerer,
            Window(self._snapshot, self._limits),
            asyncio.Semaphore(ACTIVE_JOBS),
            asyncio.Lock(),
            self._options,
        )
        try:
            while True:
                self._changed.clear()
                pause_s = LOOK_S
                try:
                    self._delete_expired()
                    for job in self._desk.store.live_jobs():
                        self._take_up(job, shop)
                except Exception:
                    _LOG.exception("can't look for jobs; trying again")
                    pause_s = self._options.retry_s
                try:
                    await asyncio.wait_for(self._changed.wait(), pause_s)
                except TimeoutError:
                    continue
        finally:
            tasks = list(self._jobs.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _delete_expired(self) -> None:
        try:
            self._desk.delete_expired()
        except StorageFullError as error:
            _LOG.warning("expired files stay for now: %s", error)

    def _take_up(self, job: Job, shop: Shop) -> None:
        cancelled = self._cancelled.setdefault(job.id, asyncio.Event())
        if job.status is Status.CANCELLING:
            cancelled.set()
        if job.id not in self._jobs:
            task = asyncio.create_task(self._work_on(job.id, shop, cancelled))
            self._jobs[job.id] = task
            task.add_done_callback(lambda _: self._let_go(job.id))

    def _let_go(self, id: str) -> None:
        del self._jobs[id], self._cancelled[id]

    async def _work_on(self, id: str, shop: Shop, cancelled: asyncio.Event) -> None:
        """Work on a job until it has ended, anew after whatever went wrong."""
        while True:
            try:
                job = self._desk.store.job(id)
                if job is None or not job.status.live:
                    return
                await JobWork(job, shop, cancelled).run()
            except StorageFullError as error:
                _LOG.warning("%s waits: %s", id, error)
                await asyncio.sleep(self._options.retry_s)
            except Exception:
                _LOG.exception("job %s has met an obstacle; trying again", id)
                await asyncio.sleep(self._options.retry_s)
