"""What serving streams over HTTP adds to a decode step, in one process and in two.

    python bench/http_overhead.py [--streams 64] [--step-ms 20] [--seconds 5]

The executor sleeps for the step's time, as one does that computes without the interpreter lock.
Whatever a step takes beyond that is Python: the engine's own part, and what it waits for the lock
while the event loop formats and sends the last step's tokens. Four set-ups: nobody reads; HTTP in
this process with Python's default switch interval, and with a short one; and the engine's side of
HTTP in a process of its own: each step's tokens pickled into a pipe, read by another process.
"""

import argparse
import asyncio
import multiprocessing
import pickle
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Protocol

from headway.bench.client import Client
from headway.core.config import SchedulerConfig
from headway.core.plan import Capacity, Masks, Sampled, StepPlan, StepResult, StepTiming
from headway.core.scheduler import Scheduler
from headway.core.types import ServiceClass
from headway.engine.engine import Engine, Surroundings
from headway.engine.options import ModelLimits
from headway.engine.streams import Mailbox
from headway.engine.types import GenerationRequest, RequestEnd, StepEnd, StopConditions
from headway.server.app import build_app
from headway.server.gate import Gate
from headway.server.listen import Listener, bind
from headway.server.metrics import Metrics
from headway.server.model import ServedModel
from headway.server.routes import ServerOptions, Service
from headway.server.tiers import ModelNames
from headway.testing import make_capacity
from headway.testing.text import ByteTokenizer


class SleepingStep:
    """A step that ends at a set time."""

    def __init__(self, result: StepResult, ends_s: float) -> None:
        self._result = result
        self._ends_s = ends_s

    def result(self, timeout_s: float | None = None) -> StepResult:
        time.sleep(max(0.0, self._ends_s - time.perf_counter()))
        return self._result

    def done(self) -> bool:
        return time.perf_counter() >= self._ends_s

    def interrupt(self) -> None:
        return None


@dataclass
class SleepingExecutor:
    """Answers every row with a letter, after `step_s`."""

    capacity: Capacity
    step_s: float

    def submit(self, plan: StepPlan, masks: Masks) -> SleepingStep:
        sampled = tuple(Sampled(c.request, 97 + plan.step % 26) for c in plan.chunks if c.sample)
        result = StepResult(plan.step, sampled, timing=StepTiming(compute_s=self.step_s))
        return SleepingStep(result, time.perf_counter() + self.step_s)

    def close(self) -> None:
        return None


@dataclass
class Gaps:
    """An observer that keeps the times between tokens, and what the event loop's thread used."""

    seconds: list[float] = field(default_factory=list)
    loop_cpu_s: float = 0.0

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        return None

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        if not first:
            self.seconds.extend(gaps_s)

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        return None

    def on_finished(self, end: RequestEnd) -> None:
        return None

    def on_step(self, end: StepEnd) -> None:
        return None


class PipeBell:
    """Sends each step's parcels to another process, where HTTP would be."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ring(self, mailboxes: Sequence[Mailbox]) -> None:
        news = [(id(mailbox), mailbox.take_all()) for mailbox in mailboxes]
        self._pipe.send_bytes(pickle.dumps(news))

    def settle(self, limit_s: float) -> None:
        """The other process has cores of its own."""


class NoBell:
    """Nobody reads."""

    def ring(self, mailboxes: Sequence[Mailbox]) -> None:
        for mailbox in mailboxes:
            mailbox.take_all()

    def settle(self, limit_s: float) -> None:
        """Nobody to wait for."""


def make_engine(streams: int, step_s: float, gaps: Gaps) -> Engine:
    capacity = make_capacity(
        kv_blocks=100_000, max_seqs=streams, max_step_tokens=4096, max_model_len=100_000
    )
    return Engine(
        Scheduler(capacity, SchedulerConfig()),
        SleepingExecutor(capacity, step_s),
        ByteTokenizer(),
        ModelLimits.from_capacity(capacity, frozenset()),
        Surroundings(time.monotonic, random.Random(1), [gaps]),
    )


def with_bell(bell: PipeBell | NoBell, streams: int, step_s: float, seconds: float) -> Gaps:
    """Steps whose tokens a bell takes."""
    gaps = Gaps()
    engine = make_engine(streams, step_s, gaps)
    engine.start()
    request = GenerationRequest([1] * 16, stop=StopConditions(max_tokens=50_000))
    for _ in range(streams):
        engine._accept(request, Mailbox(bell, lambda: None))
    time.sleep(seconds)
    engine.stop()
    return gaps


def drain_pipe(pipe: Connection) -> None:
    while True:
        try:
            pickle.loads(pipe.recv_bytes())
        except EOFError:
            return


def piped(streams: int, step_s: float, seconds: float) -> Gaps:
    ours, theirs = multiprocessing.Pipe()
    reader = multiprocessing.Process(target=drain_pipe, args=(theirs,), daemon=True)
    reader.start()
    theirs.close()
    try:
        return with_bell(PipeBell(ours), streams, step_s, seconds)
    finally:
        ours.close()
        reader.join(5)
        reader.kill()


def read_streams(url: str, streams: int) -> None:
    """The client process: reads `streams` streams until it is ended."""

    async def all_of_them() -> None:
        body: dict[str, object] = {"model": "m", "prompt": [1] * 16, "max_tokens": 50_000}
        await asyncio.gather(*(Client(url).complete(body) for _ in range(streams)))

    asyncio.run(all_of_them())


class Reader(Protocol):
    """Asks for streams once started, and reads them until it is ended."""

    def start(self) -> None: ...

    def kill(self) -> None: ...


def process_reader(url: str, streams: int) -> Reader:
    """A client in a process of its own."""
    return multiprocessing.Process(target=read_streams, args=(url, streams), daemon=True)


def over_http(
    streams: int,
    step_s: float,
    seconds: float,
    reader: Callable[[str, int], Reader] = process_reader,
) -> Gaps:
    gaps = Gaps()
    engine = make_engine(streams, step_s, gaps)
    metrics, gate = Metrics(), Gate()
    model = ServedModel(ModelNames("m"), ByteTokenizer(), None, engine.max_model_len, 0)
    sock = bind("127.0.0.1", 0)
    app = build_app(Service(engine, model, metrics, gate, ServerOptions()))
    listener = Listener(app, gate, [sock], drain_s=0.0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    client = reader(url, streams)
    engine.start()

    async def watch() -> None:
        await asyncio.sleep(seconds)
        while not gaps.seconds and engine.healthy:  # a busy machine may not have begun
            await asyncio.sleep(0.01)
        client.kill()
        await asyncio.sleep(0.1)
        listener.stop()

    async def serve() -> None:
        watching = asyncio.create_task(watch())
        await listener.run(client.start)
        await watching

    cpu_s = time.thread_time()
    asyncio.run(serve())
    gaps.loop_cpu_s = time.thread_time() - cpu_s
    engine.stop()
    return gaps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    size = (args.streams, args.step_ms / 1000, args.seconds)
    default_s = sys.getswitchinterval()
    setups: list[tuple[str, float, Callable[[], Gaps]]] = [
        ("nobody reads", default_s, lambda: with_bell(NoBell(), *size)),
        ("HTTP in this process, 5 ms", default_s, lambda: over_http(*size)),
        ("HTTP in this process, 0.5 ms", 0.0005, lambda: over_http(*size)),
        ("HTTP in this process, 0.1 ms", 0.0001, lambda: over_http(*size)),
        ("pickled to a process of its own", default_s, lambda: piped(*size)),
    ]
    print(f"{args.streams} streams, steps of {args.step_ms:g} ms; what a step takes beyond that:")
    for name, interval_s, measure in setups:
        sys.setswitchinterval(interval_s)
        gaps = measure()
        beyond = [1000 * gap - args.step_ms for gap in gaps.seconds]
        cuts = statistics.quantiles(beyond, n=100)
        loop_us = 1e6 * gaps.loop_cpu_s / len(gaps.seconds)
        print(
            f"  {name:<34} median {cuts[49]:6.2f} ms   p90 {cuts[89]:6.2f}   p99 {cuts[98]:6.2f}"
            f"   event loop {loop_us:3.0f} us of CPU a token"
        )


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
