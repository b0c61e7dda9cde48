"""Matrix products are timed without what handing them to threads takes."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from headway import _native
from tests.bench.scripts import script

gemm = script("gemm.py")


class OwnTime(threading.local):
    """A clock for each thread, which its reading and its work alone move on."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


class CountingPool(ThreadPoolExecutor):
    """Knows how often work was handed to it, which takes no time on its clock."""

    handed = 0

    def __init__(self) -> None:
        super().__init__(1)
        self.clock = OwnTime()

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.handed += 1
        begun_s = self.clock.now_s

        def begun() -> Any:
            self.clock.now_s = begun_s
            return work(*args, **kwargs)

        return super().submit(begun)


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    with CountingPool() as pool:
        yield pool


def test_a_thread_makes_many_runs_a_hand_over(pool: CountingPool) -> None:
    runs: list[list[int]] = [[], []]
    clock = pool.clock

    def work(run: int, thread: int) -> None:
        runs[thread].append(run)
        clock.now_s += 9e-6

    seconds = gemm.Machine(2, pool, 0.05, clock).run_s(work)
    assert len(runs[1]) > 100 * pool.handed
    assert all(numbers == list(range(len(numbers))) for numbers in runs)
    assert seconds == pytest.approx(1e-5, rel=0.01)


def test_a_run_longer_than_the_window_is_timed_whole(pool: CountingPool) -> None:
    clock = pool.clock

    def work(run: int, thread: int) -> None:
        clock.now_s += 0.06

    seconds = gemm.Machine(2, pool, 0.05, clock).run_s(work)
    assert seconds == pytest.approx(0.06, rel=0.01)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [gemm.HOT, "960x576"])
def test_every_panel_of_every_product_is_computed(
    pool: CountingPool, monkeypatch: pytest.MonkeyPatch, threads: int, shape: str
) -> None:
    monkeypatch.setattr(gemm, "COLD_BYTES", 1 << 20)
    panels: dict[int, set[tuple[int, int]]] = {}
    clock, product = pool.clock, _native.gemm

    def spy(isa: Any, copy: Any, acts: Any, out: Any, tokens: Any, share: Any) -> None:
        product(isa, copy, acts, out, tokens, share)
        panels.setdefault(id(out), set()).add(share)
        clock.now_s += 1e-5 * (share[1] - share[0])

    case = gemm.Case(_native.best_isa(), gemm.packed_copies("Q4_0", shape))
    monkeypatch.setattr(gemm._native, "gemm", spy)
    seconds = case.product_s(gemm.Machine(threads, pool, 0.05, clock), 3)
    count = case.copies[0].panels
    assert seconds == pytest.approx(1e-5 * count / threads, rel=0.01)
    shares = sorted(share for of_one in panels.values() for share in of_one if share != (0, 0))
    if threads == 1 or shape == gemm.HOT:
        assert shares == [(0, count)] * threads
    else:
        assert shares == [(0, count // 2), (count // 2, count)]
