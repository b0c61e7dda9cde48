"""Answers under way: from a generation to one client, until either side ends.

An answer ends when the generation does, when the client goes (which aborts the generation), or
when the server stops. While a stream has nothing to say it sends comments, so that nobody in
between takes the connection for dead.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from time import monotonic

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.core.types import FinishReason, RequestId
from headway.engine.types import Delta, EngineClient, Generation, GenerationRequest
from headway.errors import HeadwayError
from headway.server.errors import ApiError, from_exception, from_finish, internal_error, unavailable
from headway.server.gate import Gate
from headway.server.render import KEEP_ALIVE, BodyWriter, EventWriter, error_event

_LOG = logging.getLogger(__name__)
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}
MAX_BEHIND_TOKENS = 4096
"""Most tokens of a choice that are held for a client that reads more slowly than they come."""

_GRACE_S = 0.1
"""How late the engine may be with a deadline before the client is told without it."""

_GOOD_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


class Choices:
    """Several generations of `n` choices each as one, choice numbers counted on.

    whole: whether nothing is wanted before a choice ends.
    """

    def __init__(self, n: int, whole: bool = False) -> None:
        self._generations: list[Generation] = []
        self._feeds: list[asyncio.Task[None]] = []
        self._n = n
        self._whole = whole

    def submit(
        self, engine: EngineClient, requests: Sequence[GenerationRequest], limited: bool = True
    ) -> Sequence[RequestId]:
        """Start the requests, each of `n` choices; the scheduler's numbers. What is started is
        aborted by `aclose`.

        Raises what `EngineClient.submit` does.
        """
        for request in requests:
            request = replace(request, whole=self._whole)
            self._generations.append(engine.submit(request, limited))
        return [number for generation in self._generations for number in generation.requests]

    async def batches(self) -> AsyncIterator[Sequence[Delta]]:
        """Deltas of all choices as they come, those that are ready together in one batch."""
        if len(self._generations) == self._n == 1:
            async for delta in self._generations[0]:
                yield (delta,)
            return
        queue = self._fed_queue()
        running = len(self._generations)
        while running:
            batch: list[Delta] = []
            for item in [await queue.get(), *_waiting(queue)]:
                if isinstance(item, Delta):
                    batch.append(item)
                elif item is None:
                    running -= 1
                else:
                    raise item
            yield batch

    async def aclose(self) -> None:
        """Abort what still runs."""
        await _cancelled(*self._feeds)
        for generation in self._generations:
            await generation.aclose()

    def _fed_queue(self) -> "_Queue":
        """A queue that a task for each generation fills; None stands for a generation's end."""
        queue: _Queue = asyncio.Queue()

        async def feed(generation: Generation, first: int) -> None:
            end = None
            try:
                async for delta in generation:
                    queue.put_nowait(replace(delta, choice=first + delta.choice))
            except Exception as error:
                end = error
            queue.put_nowait(end)

        for index, generation in enumerate(self._generations):
            self._feeds.append(asyncio.create_task(feed(generation, index * self._n)))
        return queue


_Queue = asyncio.Queue[Delta | Exception | None]


def _waiting(queue: _Queue) -> list[Delta | Exception | None]:
    """What can be had without waiting."""
    return [queue.get_nowait() for _ in range(queue.qsize())]


class _End(Enum):
    DONE = "the work is done"
    GONE = "the client has gone"
    CUT = "the server stops"


class _Wire:
    """The way to a client. Headers leave with the first bytes, so that a request which fails
    before it has said anything gets the status it deserves."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
        self._busy = 0
        self._last_s = monotonic()
        self.started = False

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send bytes; waits while the client reads more slowly than we write."""
        self._busy += 1
        try:
            if not self.started:
                self.started = True
                await self._send(
                    {"type": "http.response.start", "status": 200, "headers": self._headers}
                )
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        finally:
            self._busy -= 1
            self._last_s = monotonic()

    async def keep_alive(self, interval_s: float) -> float:
        """Send a comment if nothing was sent for `interval_s`; seconds until the next look."""
        quiet_s = monotonic() - self._last_s
        if self._busy or quiet_s < interval_s:
            return interval_s if self._busy else interval_s - quiet_s
        await self.write(KEEP_ALIVE)
        return interval_s


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What an answer is made of besides its shape.

    charge: told how many tokens there were, of prompts that were let in and of answers.
    named: told the scheduler's numbers.
    """

    engine: EngineClient
    requests: Sequence[GenerationRequest]
    gate: Gate
    headers: dict[str, str]
    keep_alive_s: float
    charge: Callable[[int], None]
    named: Callable[[Sequence[RequestId]], None]

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return sum(request.n for request in self.requests)

    @property
    def limit_s(self) -> float:
        """How long the answer may take. The engine ends it when its time is over, but not before
        the end of the step it is in, and a client shouldn't have to wait for that."""
        limits_s = [request.stop.deadline_s for request in self.requests]
        return min(math.inf if s is None else s + _GRACE_S for s in limits_s)

    @contextlib.asynccontextmanager
    async def started(self, whole: bool = False) -> AsyncIterator[Choices]:
        """The requests' choices, aborted on the way out. Raises what `EngineClient.submit` does;
        the prompts of what it refuses are not charged."""
        async with contextlib.aclosing(Choices(self.requests[0].n, whole)) as choices:
            self.named(choices.submit(self.engine, self.requests))
            self.charge(sum(len(request.prompt) for request in self.requests))
            yield choices


class StreamedAnswer(Response):
    """Server-sent events."""

    def __init__(self, writer: EventWriter, context: AnswerContext) -> None:
        super().__init__()
        self._writer = writer
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the answer. Raises ApiError if it fails before anything was sent."""
        wire = _Wire(send, {**_STREAM_HEADERS, **self._context.headers})
        with self._context.gate.enter() as cut:
            try:
                await self._run(wire, receive, cut)
            except ApiError as error:
                if not wire.started:
                    raise
                await wire.write(error_event(error.body()), last=True)

    async def _run(self, wire: _Wire, receive: Receive, cut: asyncio.Future[None]) -> None:
        async with self._context.started() as choices:

            async def look() -> float:
                return await wire.keep_alive(self._context.keep_alive_s)

            limit_s = self._context.limit_s
            await _supervise(self._pump(choices, wire), receive, cut, limit_s, look)

    async def _pump(self, choices: Choices, wire: _Wire) -> None:
        async for batch in choices.batches():
            tokens = _tokens(batch)
            self._context.charge(tokens)
            if tokens > self._context.choices * MAX_BEHIND_TOKENS:
                raise _too_slow()
            good, error = _split(batch)
            events = b"".join(map(self._writer.delta, good))
            if events:
                await wire.write(events)
            if error is not None:
                raise error
        await wire.write(self._writer.end(), last=True)


class WholeAnswer(Response):
    """One JSON body, once all choices have ended."""

    media_type = "application/json"

    def __init__(self, writer: BodyWriter, context: AnswerContext) -> None:
        super().__init__()
        self._writer = writer
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the answer. Raises ApiError if it fails; sends nothing if the client has gone."""
        with self._context.gate.enter() as cut:
            async with self._context.started(whole=True) as choices:
                limit_s = self._context.limit_s
                if await _supervise(self._gather(choices), receive, cut, limit_s) is _End.GONE:
                    return
            body = self._writer.body()
            response = Response(body, headers=self._context.headers, media_type=self.media_type)
            await response(scope, receive, send)

    async def _gather(self, choices: Choices) -> None:
        async for batch in choices.batches():
            self._context.charge(_tokens(batch))
            take_in(batch, self._writer)


def take_in(batch: Sequence[Delta], writer: BodyWriter) -> None:
    """Gather deltas. Raises ApiError for one that reports a failure."""
    good, error = _split(batch)
    if error is not None:
        raise error
    for delta in good:
        writer.add(delta)


def _too_slow() -> ApiError:
    message = "The client reads so slowly that too much of its answer had to be held."
    return ApiError(408, message, "timeout_error", "", "client_too_slow")


def _tokens(batch: Sequence[Delta]) -> int:
    return sum(len(delta.tokens) for delta in batch)


def _split(batch: Sequence[Delta]) -> tuple[Sequence[Delta], ApiError | None]:
    """Deltas before the first that reports a failure, and that failure."""
    for index, delta in enumerate(batch):
        if delta.finish is not None and delta.finish not in _GOOD_ENDS:
            return batch[:index], from_finish(delta.finish, delta.message)
    return batch, None


async def _supervise(
    work: Coroutine[None, None, None],
    receive: Receive,
    cut: asyncio.Future[None],
    limit_s: float,
    look: Callable[[], Coroutine[None, None, float]] | None = None,
) -> _End:
    """Run `work` until it ends, the client goes, `limit_s` seconds are over, or `cut` is done;
    `look` is called at once and then after the seconds it returns.

    Raises ApiError: what `work` raised, an internal error for anything unexpected, 503 when cut, or
    504.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    late = asyncio.ensure_future(asyncio.sleep(limit_s))
    try:
        while True:
            pause_s = None if look is None else await look()
            done, _ = await asyncio.wait(
                {task, gone, cut, late}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
            )
            if task in done:
                task.result()
                return _End.DONE
            if gone in done:
                return _End.GONE
            if cut in done:
                raise unavailable("The server stopped before this answer was complete.", "draining")
            if late in done:
                raise from_finish(FinishReason.DEADLINE, "the deadline has passed")
    except ApiError:
        raise
    except HeadwayError as error:
        raise from_exception(error) from error
    except Exception as error:
        _LOG.exception("an answer failed")
        raise internal_error() from error
    finally:
        await _cancelled(task, gone, late)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[None]) -> None:
    """Cancel and see the end of tasks whose outcome no longer matters."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
