"""How many lines are in the engine at once."""

import asyncio

from headway.batches.window import Window, WindowLimits
from headway.core.request import ClassCounts, Snapshot, TierCounts
from headway.core.types import ServiceClass

NOTHING = TierCounts(0, 0, 0, 0)


class Engine:
    """Publishes what a test says is waiting and resident."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, NOTHING, NOTHING)

    def publish(self, waiting: int, running: int = 0, swapped: int = 0) -> None:
        counts = ClassCounts(waiting, running, 0, swapped)
        classes = {ServiceClass.BATCH: counts, ServiceClass.REALTIME: ClassCounts(500, 500)}
        self.snapshot = Snapshot(self.snapshot.step + 1, NOTHING, NOTHING, classes)


async def entered(window: Window, size_bytes: int = 10) -> int:
    """How many lines get in before one has to wait."""
    count = 0
    while True:
        try:
            await asyncio.wait_for(window.enter(size_bytes), 0.03)
        except TimeoutError:
            return count
        count += 1


async def test_a_few_lines_wait_while_nothing_is_resident() -> None:
    engine = Engine()
    window = Window(lambda: engine.snapshot, WindowLimits(waiting=4))
    assert await entered(window) == 4
    engine.publish(waiting=4)
    assert await entered(window) == 0
    engine.publish(waiting=1, running=3)
    assert await entered(window) == 3


async def test_as_many_wait_as_are_resident() -> None:
    engine = Engine()
    window = Window(lambda: engine.snapshot, WindowLimits(waiting=4))
    engine.publish(waiting=0, running=20, swapped=10)
    assert await entered(window) == 30
    engine.publish(waiting=25, running=20, swapped=10)
    assert await entered(window) == 5


async def test_lines_and_bytes_are_bounded() -> None:
    engine = Engine()
    engine.publish(waiting=0, running=1000)
    assert await entered(Window(lambda: engine.snapshot, WindowLimits(lines=7))) == 7
    assert await entered(Window(lambda: engine.snapshot, WindowLimits(bytes=100)), 30) == 3


async def test_a_line_larger_than_all_goes_in_alone() -> None:
    engine = Engine()
    window = Window(lambda: engine.snapshot, WindowLimits(bytes=100))
    await window.enter(1000)
    assert await entered(window, 1) == 0
    window.leave(1000)
    assert await entered(window, 50) == 2


async def test_one_line_is_always_under_way_whatever_an_old_snapshot_says() -> None:
    engine = Engine()
    engine.publish(waiting=99)
    window = Window(lambda: engine.snapshot, WindowLimits())
    assert await entered(window) == 1
    window.leave(10)
    assert await entered(window) == 1


async def test_lines_enter_in_the_order_they_came() -> None:
    engine = Engine()
    window = Window(lambda: engine.snapshot, WindowLimits(lines=1))
    await window.enter(1)
    order: list[int] = []

    async def line(number: int) -> None:
        await window.enter(1)
        order.append(number)
        window.leave(1)

    lines = [asyncio.create_task(line(number)) for number in range(5)]
    await asyncio.sleep(0)
    window.leave(1)
    await asyncio.gather(*lines)
    assert order == [0, 1, 2, 3, 4]
