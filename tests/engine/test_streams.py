"""Delivery: one call a step for each loop, merged for slow readers, silent for closed loops."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from headway.core.config import SchedulerConfig
from headway.core.plan import Masks, StepHandle, StepPlan, StepResult
from headway.core.scheduler import Scheduler
from headway.core.types import FinishReason, ServiceClass
from headway.engine.arrivals import core_requests
from headway.engine.choices import Choices, Live
from headway.engine.flight import Flight
from headway.engine.loop import StepLoop
from headway.engine.masks import MaskMaker
from headway.engine.observers import Observers
from headway.engine.options import LoopOptions, ModelLimits
from headway.engine.queues import Burden, WaitingRoom
from headway.engine.streams import (
    Assembler,
    LoopBell,
    Mailbox,
    Outbox,
    Parcel,
    ThreadBell,
)
from headway.engine.text import ChoiceText
from headway.engine.types import TokenInfo
from headway.testing import (
    LinearDuration,
    ManualClock,
    RecordingExecutor,
    ScriptedExecutor,
    WallClock,
    make_capacity,
)
from headway.testing.builders import make_prompt
from headway.testing.recording import RecordingHandle, Tally
from headway.testing.text import ByteTokenizer
from tests.engine.helpers import SLOW, collect, greedy, make_rig, oracle, running, until


class CountingBell:
    """Writes down how many mailboxes each ring names."""

    def __init__(self) -> None:
        self.rings: list[int] = []

    def ring(self, mailboxes: Sequence[Mailbox]) -> None:
        self.rings.append(len(mailboxes))

    def settle(self, limit_s: float) -> None:
        """Nobody to wait for."""


def byte(character: str) -> Parcel:
    return Parcel(0, (TokenInfo(ord(character)),))


def test_a_bell_rings_once_a_step_for_all_its_mailboxes() -> None:
    bells = CountingBell(), CountingBell()
    mailboxes = [Mailbox(bells[i % 2], lambda: None) for i in range(5)]
    outbox = Outbox()
    for _ in range(2):
        for mailbox in mailboxes:
            outbox.put(mailbox, byte("a"))
            outbox.put(mailbox, byte("b"))
        outbox.flush()
    assert [bell.rings for bell in bells] == [[3], [2]], "an unread mailbox is rung again"
    mailboxes[0].take_all()
    outbox.put(mailboxes[0], byte("c"))
    outbox.flush()
    assert bells[0].rings == [3, 1]


def test_a_slow_reader_finds_one_delta_a_choice() -> None:
    mailbox = Mailbox(ThreadBell(), lambda: None)
    for character in "hello":
        mailbox.put(byte(character))
    mailbox.put(Parcel(1, (), "ready"))
    mailbox.put(Parcel(0, finish=FinishReason.STOP))
    assembler = Assembler([ChoiceText(ByteTokenizer().stream()) for _ in range(2)])
    deltas = assembler.assemble(mailbox.take_all())
    assert [(d.choice, d.text, len(d.tokens), d.finish) for d in deltas] == [
        (0, "hello", 5, FinishReason.STOP),
        (1, "ready", 0, None),
    ]
    assert not assembler.finished
    assembler.assemble([Parcel(1, finish=FinishReason.LENGTH)])
    assert assembler.finished


def test_half_a_character_gives_no_delta() -> None:
    assembler = Assembler([ChoiceText(ByteTokenizer().stream())])
    first, second = [Parcel(0, (TokenInfo(b),)) for b in "é".encode()]
    assert assembler.assemble([first]) == []
    (delta,) = assembler.assemble([second])
    assert delta.text == "é" and len(delta.tokens) == 2


async def test_reader_that_sleeps_gets_everything_merged() -> None:
    with running(make_rig()) as rig:
        prompt = make_prompt(1, 16)
        generation = rig.engine.submit(greedy(prompt, 50))
        # Idle is also what an engine is that has not looked at the request yet.
        await asyncio.to_thread(until, lambda: rig.engine.snapshot().step >= 50 and rig.idle())
        deltas = [delta async for delta in generation]
    assert len(deltas) <= 2
    assert collect(deltas)[0].ids == oracle(rig, prompt, 50)


async def test_reader_that_is_quick_gets_token_by_token() -> None:
    with running(make_rig(clock=WallClock(), duration=SLOW)) as rig:
        deltas = [d async for d in rig.engine.submit(greedy(make_prompt(1, 16), 10))]
    assert len(deltas) >= 8


def test_closed_loop_breaks_nothing() -> None:
    loop = asyncio.new_event_loop()
    bell = LoopBell(loop)
    assert bell == LoopBell(loop)
    loop.close()
    bell.ring([Mailbox(bell, lambda: None)])
    bell.settle(60)


def test_who_wants_whole_answers_is_woken_at_their_ends() -> None:
    bell = CountingBell()
    mailbox, outbox = Mailbox(bell, lambda: None, patient=True), Outbox()
    for choice, parcel in enumerate([byte("a"), byte("b"), Parcel(0, finish=FinishReason.STOP)]):
        assert len(bell.rings) == 0, choice
        outbox.put(mailbox, parcel)
        outbox.flush()
    assert bell.rings == [1]
    assert len(mailbox.take_all()) == 3


async def test_whole_answers_come_in_one_delta_a_choice() -> None:
    with running(make_rig(clock=WallClock(), duration=SLOW)) as rig:
        prompt = make_prompt(1, 16)
        whole = replace(greedy(prompt, 10), whole=True)
        deltas = [d async for d in rig.engine.submit(whole)]
        held = rig.engine.submit_sync(greedy(prompt, 10))
        held.hold()
        later = list(held)
    assert len(deltas) == 1
    assert len(later) <= 2, "one may have come before"
    assert collect(deltas)[0].ids == collect(later)[0].ids == oracle(rig, prompt, 10)


async def test_a_bell_is_settled_once_its_readers_have_dealt_with_what_they_had() -> None:
    loop = asyncio.get_running_loop()
    outbox, filled, read = Outbox(), asyncio.Event(), list[Parcel]()
    mailbox = Mailbox(LoopBell(loop), filled.set)

    async def reader() -> None:
        while len(read) < 20:
            await filled.wait()
            filled.clear()
            read.extend(mailbox.take_all())

    def engine() -> list[int]:
        seen = []
        for choice in range(20):
            outbox.put(mailbox, Parcel(choice))
            outbox.flush()
            outbox.settle(60)
            seen.append(len(read))
        return seen

    reading = asyncio.create_task(reader())
    assert await asyncio.to_thread(engine) == list(range(1, 21))
    await reading


async def test_a_busy_loop_is_waited_for_so_long_and_no_longer() -> None:
    bell = LoopBell(asyncio.get_running_loop())
    woken: list[str] = []
    mailbox = Mailbox(bell, lambda: woken.append("late"))

    def engine() -> None:
        bell.ring([mailbox])
        bell.settle(0.001)
        woken.append("engine")

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()  # the loop can't wake anybody meanwhile
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == ["engine", "late"]


def test_loop_that_ends_under_a_generation_leaves_no_request_behind() -> None:
    with running(make_rig(clock=WallClock(), duration=SLOW)) as rig:

        async def leave_early() -> None:
            generation = rig.engine.submit(greedy(make_prompt(1, 16), 400))
            await anext(aiter(generation))

        asyncio.run(leave_early())
        until(rig.idle)


def test_realtime_interrupts_a_long_batch_step_once() -> None:
    clock = WallClock()
    duration = LinearDuration(step_s=0.0, token_s=0.004)
    with running(make_rig(clock=clock, duration=duration)) as rig:
        batch_prompt, urgent_prompt = make_prompt(1, 250), make_prompt(2, 8)
        warm = rig.engine.submit_sync(greedy(make_prompt(3, 16), 2, ServiceClass.BATCH))
        list(warm)
        before = len(rig.executor.submitted)
        batch = rig.engine.submit_sync(greedy(batch_prompt, 4, ServiceClass.BATCH))
        until(lambda: len(rig.executor.submitted) > before)
        started_s = clock()
        urgent = rig.engine.submit_sync(greedy(urgent_prompt, 2, ServiceClass.REALTIME))
        first = next(urgent)
        assert clock() - started_s < 0.7, "the step was not interrupted"
        assert first.tokens[0].token == oracle(rig, urgent_prompt, 1)[0]
        assert collect(list(batch))[0].ids == oracle(rig, batch_prompt, 4)
        list(urgent)


class ImpatientExecutor(RecordingExecutor):
    """Realtime arrives during each of its steps. `ends`: whether each was interrupted."""

    loop: StepLoop

    def __init__(self, executor: ScriptedExecutor) -> None:
        super().__init__(executor)
        self.ends: list[bool] = []

    def submit(self, plan: StepPlan, masks: Masks) -> "ImpatientHandle":
        return ImpatientHandle(super().submit(plan, masks), self)


class ImpatientHandle(RecordingHandle):
    """A step during which realtime arrives."""

    def __init__(self, handle: StepHandle, executor: ImpatientExecutor) -> None:
        super().__init__(handle, Tally())
        self._impatient = executor

    def result(self, timeout_s: float | None = None) -> StepResult:
        self._impatient.loop.interrupt_for_realtime()
        result = super().result(timeout_s)
        self._impatient.ends.append(result.interrupted)
        return result


def test_frequent_realtime_costs_lower_classes_at_most_every_other_step() -> None:
    capacity, clock = make_capacity(), ManualClock()
    executor = ImpatientExecutor(ScriptedExecutor(capacity, duration=SLOW, clock=clock))
    options, limits = LoopOptions(), ModelLimits.from_capacity(capacity, frozenset())
    waiting = WaitingRoom(options, clock)
    scheduler = Scheduler(capacity, SchedulerConfig())
    choices = Choices(waiting, Observers([]), MaskMaker(lambda: None))
    watched: list[Flight] = []
    loop = StepLoop(scheduler, executor, clock, options, choices, watched.append, lambda: 0.0)
    executor.loop = loop
    for i in range(3):
        request = greedy(make_prompt(i, 200), 20, ServiceClass.BATCH)
        waiting.enter(Burden(ServiceClass.BATCH, 1, 200))
        (core,) = core_requests(request, limits, i, 0, 0.0)
        loop.add([Live(core, 0, Mailbox(ThreadBell(), lambda: None), None)])
    while loop.busy:
        loop.turn()
    assert not watched, "the unified lane is waited for"
    pairs = list(pairwise(executor.ends))
    assert (False, True) in pairs, "nothing was interrupted"
    assert (True, True) not in pairs
