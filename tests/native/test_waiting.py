"""Who waits for a step computes in it: however many wait and however briefly, its tokens are the
same."""

import threading
import time
from dataclasses import replace

import pytest

from headway.core.plan import Chunk, Open, StepPlan, StepResult
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.native import NativeExecutor, NativeStep
from tests.native.helpers import GREEDY, NO_MASKS, OPTIONS, bench
from tests.tiny import tiny_weights, tokens

WEIGHTS = tiny_weights()
PROMPT = tokens(400, seed=5)
BLOCKS = [BlockId(i) for i in range(25)]
THREADS = (1, 2, 3)


def start(executor: NativeExecutor, step: int) -> NativeStep:
    """A prompt's only step, of a request of its own."""
    request = RequestId(step + 1)
    chunk = Chunk(request, PROMPT, 0, BLOCKS, len(BLOCKS), True)
    opens = (Open(request, PROMPT, GREEDY),)
    return executor.submit(StepPlan(step, Lane.UNIFIED, opens, chunks=(chunk,)), NO_MASKS)


def first_token(result: StepResult) -> int:
    """What was sampled."""
    (sampled,) = result.sampled
    return sampled.token


@pytest.fixture(scope="module")
def token() -> int:
    """The answer of one thread that waits in one go."""
    with bench(WEIGHTS) as it:
        return first_token(start(it.executor, 0).result())


@pytest.mark.parametrize("threads", THREADS)
def test_who_goes_in_the_middle_of_a_step_may_come_back(threads: int, token: int) -> None:
    late = 0
    with bench(WEIGHTS, replace(OPTIONS, threads=threads)) as it:
        for step in range(20):
            handle = start(it.executor, step)
            while True:
                try:
                    result = handle.result(step * 1e-4)
                    break
                except TimeoutError:
                    late += 1
            assert first_token(result) == token
    assert late or threads > 1  # who computes goes only where it would have to wait for others


@pytest.mark.parametrize("threads", THREADS)
def test_a_step_ends_though_nobody_waits(threads: int, token: int) -> None:
    with bench(WEIGHTS, replace(OPTIONS, threads=threads)) as it:
        handle = start(it.executor, 0)
        end_s = time.monotonic() + 60
        while not handle.done() and time.monotonic() < end_s:
            time.sleep(0.001)
        assert handle.done()
        assert first_token(handle.result(0)) == token


@pytest.mark.parametrize("threads", THREADS)
def test_several_may_wait(threads: int, token: int) -> None:
    with bench(WEIGHTS, replace(OPTIONS, threads=threads)) as it:
        for step in range(10):
            handle, seen = start(it.executor, step), list[int]()
            waiting = [
                threading.Thread(
                    target=lambda h=handle, s=seen: s.append(first_token(h.result(60)))
                )
                for _ in range(4)
            ]
            for thread in waiting:
                thread.start()
            for thread in waiting:
                thread.join()
            assert seen == [token] * 4


def test_an_executor_is_closed_while_somebody_waits(token: int) -> None:
    seen = list[int]()
    with bench(WEIGHTS, replace(OPTIONS, threads=2)) as it:
        handle = start(it.executor, 0)
        thread = threading.Thread(target=lambda: seen.append(first_token(handle.result(60))))
        thread.start()
    thread.join()
    assert seen == [token]
