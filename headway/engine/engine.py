"""The engine: a thread around the step loop, and the door to it."""

import asyncio
import contextlib
import itertools
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from headway.core.picture import Picture
from headway.core.plan import Capacity, Executor
from headway.core.record import StepRecord
from headway.core.request import Request, Snapshot
from headway.core.scheduler import Scheduler
from headway.core.types import RequestId, ServiceClass
from headway.engine.arrivals import check_request, core_requests
from headway.engine.choices import Choices, Live
from headway.engine.flight import Flight
from headway.engine.loop import Clock, StepLoop
from headway.engine.masks import MaskMaker
from headway.engine.observers import Observers
from headway.engine.options import LoopOptions, ModelLimits
from headway.engine.pulse import Pulse
from headway.engine.queues import Burden, WaitingRoom
from headway.engine.streams import (
    Assembler,
    AsyncGeneration,
    LoopBell,
    Mailbox,
    Reading,
    SyncGeneration,
    ThreadBell,
)
from headway.engine.text import ChoiceText, Detokenizer
from headway.engine.types import GenerationRequest, Observer
from headway.engine.watch import End, LaneWatch
from headway.errors import EngineStoppedError

logger = logging.getLogger(__name__)

POLL_S = 0.01
"""How long the loop sleeps when requests are alive but none can be planned (deadlines pass)."""

JOIN_GRACE_S = 5.0
"""How much longer than its drain time `stop` waits for the thread."""

STOPPING = "The server is shutting down."

Command = Callable[[StepLoop], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engine takes from outside: time, chance, and who watches."""

    clock: Clock
    rng: random.Random
    observers: Sequence[Observer] = ()


class Engine:
    """Implements `engine.types.EngineClient`: requests in, deltas out, one thread in between.

        submit (any thread) → inbox → engine thread: plan, submit, judge, commit → mailboxes

    `start` begins, `stop` ends it for good.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        detokenizer: Detokenizer,
        limits: ModelLimits,
        surroundings: Surroundings,
        options: LoopOptions | None = None,
    ) -> None:
        self._options = options or LoopOptions()
        self._executor = executor
        self._detokenizer = detokenizer
        self._limits = limits
        self._clock = surroundings.clock
        self._rng = surroundings.rng
        self._waiting = WaitingRoom(self._options, self._clock)
        self._masks = MaskMaker(partial(self._command, StepLoop.note_mask))
        self._pulse = Pulse(self._options.stall_limit_s)
        self._watch = LaneWatch(self._options.stall_limit_s, self._pulse.frozen_s, self._landed)
        self._loop = StepLoop(
            scheduler,
            executor,
            surroundings.clock,
            self._options,
            Choices(self._waiting, Observers(surroundings.observers), self._masks),
            self._watch.watch,
            self._pulse.frozen_s,
        )
        self._records = scheduler.records
        self._ids = itertools.count()
        self._inbox: deque[Command] = deque()
        self._wake = threading.Condition()
        self._refusal = "The engine has not been started."
        self._ended = False
        self._stop_at_s: float | None = None
        self._busy_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="headway-engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread. Once only."""
        self._refusal = ""
        self._pulse.start()
        self._thread.start()

    def stop(self, drain_s: float = 0.0, reason: str = STOPPING) -> None:
        """Take no more requests, let those under way end for `drain_s` seconds, end the rest with
        ERROR and the reason, and close the executor. Idempotent; returns when the thread has ended,
        or is stuck in a step for good."""
        with self._wake:
            self._refusal = self._refusal or reason
            if self._stop_at_s is None:
                self._stop_at_s = self._clock() + drain_s
            self._wake.notify()
        if self._thread.ident is None:
            self._executor.close()
        else:
            self._thread.join(drain_s + JOIN_GRACE_S)

    def submit(self, request: GenerationRequest, limited: bool = True) -> AsyncGeneration:
        """Start a generation on the running event loop; see `EngineClient.submit`."""
        filled = asyncio.Event()
        mailbox = Mailbox(LoopBell(asyncio.get_running_loop()), filled.set, request.whole)
        requests = self._accept(request, mailbox, limited)
        reading = Reading(mailbox, self._assembler(request), partial(self._abort, requests))
        return AsyncGeneration(reading, filled, requests)

    def submit_sync(self, request: GenerationRequest) -> SyncGeneration:
        """The same for a caller without an event loop."""
        filled = threading.Event()
        mailbox = Mailbox(ThreadBell(), filled.set, request.whole)
        abort = partial(self._abort, self._accept(request, mailbox))
        return SyncGeneration(Reading(mailbox, self._assembler(request), abort), filled)

    def snapshot(self) -> Snapshot:
        """The scheduler after its last commit."""
        return self._loop.snapshot

    async def picture(self) -> Picture:
        """Every block and sequence as it is between two steps; see `PictureSource`."""
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[Picture] = loop.create_future()

        def take(step_loop: StepLoop) -> None:
            picture = step_loop.picture()
            with contextlib.suppress(RuntimeError):  # the event loop has been closed
                loop.call_soon_threadsafe(_fulfil, taken, picture)

        if not self._command(take):
            raise EngineStoppedError(self._refusal)
        return await taken

    def explain(self, step: int | None = None) -> StepRecord | None:
        """What a step decided and why, the last one by default; None if it is no longer kept."""
        return self._records.latest() if step is None else self._records.find(step)

    @property
    def healthy(self) -> bool:
        """False once the step loop has died, while a turn lasts longer than the stall limit (but
        for the time that this process was frozen), and after two failed steps in a row until one
        succeeds."""
        if self._ended or not self._thread.is_alive() or self._loop.failures >= 2:
            return False
        since_s = self._busy_since_s
        return since_s is None or self._running_s() - since_s <= self._options.stall_limit_s

    @property
    def capacity(self) -> Capacity:
        """The executor's sizes."""
        return self._executor.capacity

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._limits.max_model_len

    def _accept(
        self, request: GenerationRequest, mailbox: Mailbox, limited: bool = True
    ) -> tuple[RequestId, ...]:
        """Validate and queue; the numbers of its choices."""
        self._require_open()
        check_request(request, self._limits, self._options.max_choices)
        burden = Burden(request.service_class, request.n, request.n * len(request.prompt))
        self._waiting.enter(burden, limited)
        with self._wake:
            try:
                self._require_open()
            except EngineStoppedError:
                self._waiting.leave(burden)
                raise
            choices = self._number(request)
            lives = [
                Live(r, choice, mailbox, self._watched_text(request), request.grammar)
                for choice, r in enumerate(choices)
            ]
            self._inbox.append(lambda loop: loop.add(lives))
            self._wake.notify()
        if request.service_class is ServiceClass.REALTIME:
            self._loop.interrupt_for_realtime()
        return tuple(r.id for r in choices)

    def _number(self, request: GenerationRequest) -> tuple[Request, ...]:
        """The core's requests, with ids in order of arrival."""
        first_id = next(self._ids)
        for _ in range(request.n - 1):
            next(self._ids)
        return core_requests(
            request, self._limits, first_id, self._rng.getrandbits(63), self._clock()
        )

    def _watched_text(self, request: GenerationRequest) -> ChoiceText | None:
        return self._choice_text(request) if request.stop.stop else None

    def _assembler(self, request: GenerationRequest) -> Assembler:
        return Assembler([self._choice_text(request) for _ in range(request.n)])

    def _choice_text(self, request: GenerationRequest) -> ChoiceText:
        stop = request.stop
        eos_ids = frozenset[int]() if stop.ignore_eos else self._limits.eos_ids
        silent = eos_ids | frozenset(stop.stop_ids)
        return ChoiceText(self._detokenizer.stream(request.shown), stop.stop, silent)

    def _require_open(self) -> None:
        if self._refusal:
            raise EngineStoppedError(self._refusal)

    def _abort(self, requests: Iterable[RequestId]) -> None:
        def command(loop: StepLoop) -> None:
            for request in requests:
                loop.abort(request)

        self._command(command)

    def _landed(self, flight: Flight, end: End) -> None:
        """A step of one of several lanes has ended; called by what watches it."""
        self._command(lambda loop: loop.land(flight, end))

    def _command(self, command: Command) -> bool:
        """Have the engine thread do something; False if there is none any more."""
        with self._wake:
            if not self._ended:
                self._inbox.append(command)
                self._wake.notify()
            return not self._ended

    def _run(self) -> None:
        """The engine thread."""
        try:
            while not self._drained():
                self._busy_since_s = self._running_s()
                self._obey()
                if not self._loop.turn():
                    self._sleep()
            self._end(self._refusal)
            self._executor.close()
        except BaseException as error:
            logger.critical("the step loop has died", exc_info=error)
            self._end(f"The engine has failed: {error or type(error).__name__}")

    def _running_s(self) -> float:
        """The clock, without the time that this process was frozen."""
        return self._clock() - self._pulse.frozen_s()

    def _obey(self) -> None:
        """Carry out the commands that have come in, oldest first."""
        self._loop.urgent = False
        while self._inbox:
            self._inbox.popleft()(self._loop)

    def _drained(self) -> bool:
        """Whether a stop was asked for, and nothing is left or the time is up."""
        if self._stop_at_s is None:
            return False
        waiting = self._loop.busy or self._inbox
        return not waiting or self._clock() >= self._stop_at_s

    def _sleep(self) -> None:
        """Nothing to do now: wait for a command, such as the end of a step; while requests are
        alive, for a moment only."""
        self._busy_since_s = None
        with self._wake:
            if not self._inbox and not (self._stop_at_s is not None and not self._loop.busy):
                self._wake.wait(POLL_S if self._loop.busy else None)

    def _end(self, message: str) -> None:
        """Refuse what comes, and end what is here with an error."""
        with self._wake:
            self._refusal, self._ended = message, True
        self._loop.end(message)
        self._watch.close()
        self._pulse.close()
        self._masks.close()
        self._obey()


def _fulfil(future: "asyncio.Future[Picture]", picture: Picture) -> None:
    """Give a picture to whoever asked, if they still wait."""
    if not future.done():
        future.set_result(picture)
