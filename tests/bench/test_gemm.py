"""Matrix products are timed without what handing them to threads takes."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from headway import _native
from tests.bench.scripts import script

gemm = script("gemm.py")


class CountingPool(ThreadPoolExecutor):
    """Knows how often work was handed to it."""

    handed = 0

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.handed += 1
        return super().submit(*args, **kwargs)


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    with CountingPool(1) as pool:
        yield pool


def test_a_thread_makes_many_runs_a_hand_over(pool: CountingPool) -> None:
    runs: list[list[int]] = [[], []]
    seconds = gemm.Machine(2, pool, 0.05).run_s(lambda run, thread: runs[thread].append(run))
    assert len(runs[1]) > 100 * pool.handed
    assert all(numbers == list(range(len(numbers))) for numbers in runs)
    assert seconds < 1e-4


def test_a_run_longer_than_the_window_is_timed_whole(pool: CountingPool) -> None:
    seconds = gemm.Machine(2, pool, 0.05).run_s(lambda run, thread: time.sleep(0.06))
    assert 0.06 <= seconds < 0.12


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [gemm.HOT, "960x576"])
def test_every_panel_of_every_product_is_computed(
    pool: CountingPool, monkeypatch: pytest.MonkeyPatch, threads: int, shape: str
) -> None:
    monkeypatch.setattr(gemm, "COLD_BYTES", 1 << 20)
    panels: dict[int, set[tuple[int, int]]] = {}

    def spy(_isa: object, _copy: object, _acts: object, out: Any, *ranges: Any) -> None:
        panels.setdefault(id(out), set()).add(ranges[1])

    case = gemm.Case(_native.best_isa(), gemm.packed_copies("Q4_0", shape))
    assert case.product_s(gemm.Machine(threads, pool, 0.05), 3) > 0
    monkeypatch.setattr(gemm._native, "gemm", spy)
    case.product_s(gemm.Machine(threads, pool, 0.05), 3)
    count = case.copies[0].panels
    shares = sorted(share for of_one in panels.values() for share in of_one if share != (0, 0))
    if threads == 1 or shape == gemm.HOT:
        assert shares == [(0, count)] * threads
    else:
        assert shares == [(0, count // 2), (count // 2, count)]
