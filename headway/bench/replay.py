"""Sends a load to a server, keeps to its schedule, and notes what came back and when."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from headway.bench.client import BenchError, Client, Streamed
from headway.bench.dialect import Dialect
from headway.bench.traffic import Flood, Sizes, Traffic, prompt_text
from headway.core.types import ServiceClass

_TICK_S = 0.02
_PROBE_WORDS = 200


NOT_DONE = "not done in time"
"""The error of an open-loop request that the end of the run broke off."""

CUT = "cut"
"""Of a flood's request that the end of the run broke off: no failure of the server's."""


@dataclass(frozen=True, slots=True)
class Span:
    """How long a load goes on, in seconds.

    warmup_s: at the beginning, of which nothing counts. grace_s: after the end, for open-loop
        requests still under way; what isn't done by then counts as an error.
    """

    seconds: float
    warmup_s: float = 8.0
    grace_s: float = 120.0


@dataclass(slots=True)
class Sample:
    """One request. Times are the client's clock's, in seconds.

    due_s: when it was to be sent; answer: with what came, whole or not; error: its kind, if any.
    """

    service_class: ServiceClass
    due_s: float
    answer: Streamed
    end_s: float = 0.0
    error: str = ""


@dataclass(slots=True)
class Strain:
    """How hard the client itself had it.

    late_s: how late open-loop requests went out. slips_s: how late a timer of 20 ms went off.
    cpu_s: processor time of this process; elapsed_s: of the clock.
    """

    late_s: list[float] = field(default_factory=list)
    slips_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    elapsed_s: float = 0.0


@dataclass(slots=True)
class Recording:
    """All that was sent. begin_s, end_s: of the time that counts; message: the first failure's."""

    begin_s: float
    end_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    strain: Strain = field(default_factory=Strain)
    message: str = ""


Progress = Callable[[Recording, float], None]
"""Told the state of things, and the seconds gone by, about once a second."""


async def words_a_token(client: Client, dialect: Dialect) -> float:
    """Words of our prompts that make a token here, from one request; 1 where the server doesn't
    say. Raises BenchError if it doesn't answer."""
    text = prompt_text(_PROBE_WORDS, 0, "", random.Random(0))
    streamed = Streamed(time.perf_counter())
    await client.stream(dialect.ask(ServiceClass.STANDARD, text, 2), streamed)
    if streamed.usage is None or streamed.usage.prompt_tokens < 1:
        return 1.0
    return _PROBE_WORDS / streamed.usage.prompt_tokens


@dataclass(slots=True)
class Replay:
    """One run of a load against one server.

    most_in_a_row: failures of a flood's stream, after each of which it waits longer, until the
        server counts as gone.
    """

    client: Client
    dialect: Dialect
    traffic: Traffic
    span: Span
    words_a_token: float
    seed: int = 0
    most_in_a_row: int = 20

    async def run(self, progress: Progress) -> Recording:
        """The whole of it. Raises BenchError if the server is gone."""
        start_s = time.perf_counter()
        recording = Recording(start_s + self.span.warmup_s)
        cpu_s = time.process_time()
        floods = [
            asyncio.create_task(self._stream(flood, index, recording))
            for flood in self.traffic.floods
            for index in range(flood.streams)
        ]
        watch = asyncio.create_task(_watch(recording, start_s, progress))
        try:
            opened = await self._open_loop(start_s, recording, floods)
            await _pause_until(start_s + self.span.seconds, floods)
            # Floods go on until the last open-loop answer, which else would end on an idle server.
            recording.end_s = time.perf_counter()
            if opened:
                await asyncio.wait(opened, timeout=self.span.grace_s)
        finally:
            await _stop([watch, *floods])
        await _stop(opened)
        recording.strain.cpu_s = time.process_time() - cpu_s
        recording.strain.elapsed_s = time.perf_counter() - start_s
        return recording

    async def _open_loop(
        self, start_s: float, recording: Recording, floods: list[asyncio.Task[None]]
    ) -> list[asyncio.Task[None]]:
        """Send each arrival at its time; the requests under way."""
        tasks = []
        for index, arrival in enumerate(self.traffic.arrivals):
            due_s = start_s + arrival.at_s
            await _pause_until(due_s, floods)
            request = self._request(
                arrival.service_class, arrival.sizes, due_s, f"open {index}", recording
            )
            tasks.append(asyncio.create_task(_swallow(request)))
        return tasks

    async def _stream(self, flood: Flood, stream: int, recording: Recording) -> None:
        """One stream of a flood, for ever. Raises BenchError after many failures in a row."""
        failed = 0
        for index, sizes in enumerate(flood.requests(stream, self.seed)):
            now_s = time.perf_counter()
            name = f"flood {flood.service_class} {stream} {index}"
            sample = await self._request(flood.service_class, sizes, now_s, name, recording)
            failed = failed + 1 if sample.error else 0
            if failed == self.most_in_a_row:
                raise BenchError(f"{failed} failures in a row; the first: {recording.message}")
            if failed:
                await asyncio.sleep(0.05 * failed)

    async def _request(
        self,
        service_class: ServiceClass,
        sizes: Sizes,
        due_s: float,
        name: str,
        recording: Recording,
    ) -> Sample:
        draw = random.Random(f"prompt {self.seed} {name}")
        words = round(sizes.prompt_tokens * self.words_a_token)
        shared = round(sizes.shared_tokens * self.words_a_token)
        text = prompt_text(words, shared, service_class.label, draw)
        ask = self.dialect.ask(service_class, text, sizes.answer_tokens)
        sample = Sample(service_class, due_s, Streamed(time.perf_counter()))
        recording.samples.append(sample)
        if name.startswith("open"):
            recording.strain.late_s.append(sample.answer.sent_s - due_s)
        try:
            await self.client.stream(ask, sample.answer)
        except BenchError as error:
            sample.error = error.kind
            recording.message = recording.message or str(error)
        except asyncio.CancelledError:
            sample.error = NOT_DONE if name.startswith("open") else CUT
            raise
        finally:
            sample.end_s = time.perf_counter()
        return sample


async def _swallow(request: Coroutine[None, None, Sample]) -> None:
    await request


async def _pause_until(due_s: float, floods: list[asyncio.Task[None]]) -> None:
    """Sleep; raise what ended one of the floods."""
    while True:
        for flood in floods:
            if flood.done():
                flood.result()
        left_s = due_s - time.perf_counter()
        if left_s <= 0:
            return
        await asyncio.sleep(min(left_s, 0.5))


async def _watch(recording: Recording, start_s: float, progress: Progress) -> None:
    """Note how late timers go off, and tell of progress."""
    told_s = start_s
    while True:
        before_s = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        now_s = time.perf_counter()
        recording.strain.slips_s.append(now_s - before_s - _TICK_S)
        if now_s - told_s >= 1:
            told_s = now_s
            progress(recording, now_s - start_s)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
