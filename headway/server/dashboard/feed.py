"""Takes moments of the engine for those who watch: one for all of them, so many a second at most,
none while nobody watches."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from headway.core.request import Snapshot
from headway.engine.types import PictureSource
from headway.errors import HeadwayError
from headway.server.dashboard.frames import JobLine, Moment, Reader, event, hello
from headway.server.dashboard.recent import Recent
from headway.server.errors import ApiError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """interval_s: between two moments. jobs_interval_s: between two looks at the jobs.
    most_watchers: pages beyond it are refused. patience_s: how long a step may keep a picture
    waiting before pages are told that they wait."""

    interval_s: float = 0.125
    jobs_interval_s: float = 2.0
    most_watchers: int = 16
    patience_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Sources:
    """Where moments come from.

    jobs: the live Batch jobs; may block for a moment. None for a server without them.
    clock: that of `recent`.
    """

    pictures: PictureSource
    snapshot: Callable[[], Snapshot]
    recent: Recent
    jobs: Callable[[], Sequence[JobLine]] | None
    clock: Callable[[], float]
    model: str


class Feed:
    """For the event loop's thread alone."""

    def __init__(self, sources: Sources, options: FeedOptions | None = None) -> None:
        self._sources = sources
        self._options = options or FeedOptions()
        self._watchers = 0
        self._latest: Moment | None = None
        self._ended = False
        self._tick = asyncio.Event()
        self._camera: asyncio.Task[None] | None = None

    @property
    def watchers(self) -> int:
        """Pages that are open."""
        return self._watchers

    def require_room(self) -> None:
        """Raise ApiError (503) if as many watch as may."""
        if self._watchers >= self._options.most_watchers:
            raise ApiError(503, "Too many pages watch this server already.", code="overloaded")

    async def events(self, going: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one page, while `going` and the engine lives."""
        self._watchers += 1
        if self._camera is None:
            self._latest, self._ended = None, False
            self._camera = asyncio.create_task(self._film())
        try:
            async with aclosing(self._moments(going)) as moments:
                reader, greeted = Reader(self._sources.recent), False
                async for moment in moments:
                    if moment is None:
                        yield b": waiting\n\n"
                        continue
                    if not greeted:
                        greeted = True
                        yield event("hello", hello(moment.picture, self._sources.model))
                    yield event("frame", reader.frame(moment))
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._camera.cancel()
                self._camera = None

    async def _moments(self, going: Callable[[], bool]) -> AsyncGenerator[Moment | None, None]:
        """Moments as they come, the newest only; None where there is none for a while."""
        number = -1
        while going():
            latest = self._latest
            if latest is not None and latest.number > number:
                number = latest.number
                yield latest
            elif self._ended:
                return
            else:
                try:
                    await asyncio.wait_for(self._tick.wait(), self._options.patience_s)
                except TimeoutError:
                    yield None

    async def _film(self) -> None:
        """Take moments until nobody watches, or the engine ends."""
        loop, sources, options = asyncio.get_running_loop(), self._sources, self._options
        jobs: tuple[JobLine, ...] = ()
        number, jobs_s = 0, float("-inf")
        try:
            while True:
                began_s = loop.time()
                picture = await sources.pictures.picture()
                if sources.jobs is not None and began_s - jobs_s >= options.jobs_interval_s:
                    jobs_s, jobs = began_s, tuple(await asyncio.to_thread(sources.jobs))
                now_s = sources.clock()
                self._latest = Moment(number, now_s, picture, sources.snapshot(), jobs)
                self._wake()
                number += 1
                await asyncio.sleep(max(options.interval_s - (loop.time() - began_s), 0.02))
        except HeadwayError as error:
            _LOG.info("the live page ends: %s", error)
        except Exception:
            _LOG.exception("the live page has failed")
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        """Have everybody look again."""
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()
