"""What may wait: answers and tokens by class, and the estimate of the wait."""

import pytest

from headway.core.types import ServiceClass
from headway.engine.options import LoopOptions, QueueLimits
from headway.engine.queues import Burden, WaitingRoom
from headway.errors import OverloadedError
from headway.testing import ManualClock

REALTIME, STANDARD, BATCH = ServiceClass


def room(clock: ManualClock, requests: int = 100, tokens: int = 1000) -> WaitingRoom:
    limits = QueueLimits(requests, requests, requests), QueueLimits(tokens, tokens, tokens)
    return WaitingRoom(LoopOptions(queues=limits[0], queue_tokens=limits[1]), clock)


def wait_s(waiting: WaitingRoom, burden: Burden) -> float:
    """The wait that a refusal names."""
    with pytest.raises(OverloadedError) as caught:
        waiting.enter(burden)
    return caught.value.retry_after_s


def test_tokens_are_limited_by_class() -> None:
    waiting = room(ManualClock())
    waiting.enter(Burden(STANDARD, 2, 900))
    wait_s(waiting, Burden(STANDARD, 1, 101))
    waiting.enter(Burden(STANDARD, 1, 100))
    waiting.enter(Burden(REALTIME, 1, 1000))  # has a share of its own
    waiting.leave(Burden(STANDARD, 1, 450))
    waiting.enter(Burden(STANDARD, 1, 450))


def test_one_request_alone_may_be_longer_than_the_limit() -> None:
    waiting = room(ManualClock())
    waiting.enter(Burden(BATCH, 1, 5000))
    wait_s(waiting, Burden(BATCH, 1, 1))
    waiting.enter(Burden(STANDARD, 101, 1))
    wait_s(waiting, Burden(STANDARD, 1, 1))


def test_what_is_not_limited_is_counted_and_let_in() -> None:
    waiting = room(ManualClock(), requests=2)
    for _ in range(5):
        waiting.enter(Burden(BATCH, 1, 1000), limited=False)
    wait_s(waiting, Burden(BATCH, 1, 1))
    for _ in range(5):
        waiting.leave(Burden(BATCH, 1, 1000))
    waiting.enter(Burden(BATCH, 2, 10))


def test_the_wait_follows_what_is_ahead_and_how_fast_it_goes() -> None:
    clock = ManualClock()
    waiting = room(clock)
    waiting.enter(Burden(STANDARD, 1, 1000))
    assert wait_s(waiting, Burden(STANDARD, 1, 1)) == 60  # nothing has gone yet
    waiting.enter(Burden(REALTIME, 10, 1000))
    for _ in range(10):
        clock.advance(1)
        waiting.leave(Burden(REALTIME, 1, 100))  # 100 tokens a second or so
    waiting.enter(Burden(REALTIME, 1, 1000))
    realtime = wait_s(waiting, Burden(REALTIME, 1, 1))
    standard = wait_s(waiting, Burden(STANDARD, 1, 1))
    assert 9 <= realtime <= 11
    assert standard == pytest.approx(2 * realtime)
    clock.advance(3600)
    assert wait_s(waiting, Burden(STANDARD, 1, 1)) == 60


def test_the_wait_has_a_bound() -> None:
    clock = ManualClock()
    waiting = room(clock, tokens=10_000_000)
    waiting.enter(Burden(BATCH, 2, 10_000_000))
    clock.advance(1)
    waiting.leave(Burden(BATCH, 1, 1))
    assert wait_s(waiting, Burden(BATCH, 1, 10)) == 600
