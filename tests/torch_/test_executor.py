"""What the conformance suite doesn't ask: pools, options, and the whole engine on torch."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.assembly import Backend, EngineOptions, Sizes, build_engine
from headway.core.controller import LaneMode
from headway.core.plan import BlockCopy, Capacity, Chunk, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ConfigError, ExecutorError
from headway.executors.torch_.build import blocks_beside, options_for, pool_blocks
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.options import TorchOptions
from headway.executors.torch_.pools import runs
from headway.models.types import Weights
from headway.testing import make_capacity
from tests.tiny import tiny_loaded, tiny_weights


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 40), max_size=20))
def test_runs_cover_every_copy_once(pairs: dict[int, int]) -> None:
    copies = [BlockCopy(BlockId(d), BlockId(h)) for d, h in pairs.items()]
    random.Random(1).shuffle(copies)
    found = [(device + i, host + i) for device, host, count in runs(copies) for i in range(count)]
    assert sorted(found) == sorted(pairs.items())


def test_neighbours_are_copied_in_one_piece() -> None:
    copies = [BlockCopy(BlockId(d), BlockId(h)) for d, h in ((4, 9), (3, 8), (5, 10), (7, 11))]
    assert list(runs(copies)) == [(3, 8, 3), (7, 11, 1)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TorchOptions(dtype="fp8"), "fp8"),
        (lambda: TorchOptions(device="tpu"), "tpu"),
        (lambda: TorchOptions(layers_a_launch=0), "layers"),
        (lambda: TorchOptions(graphs="on"), "graphs are for a GPU"),
        (lambda: TorchOptions(graphs="some"), "some"),
    ],
)
def test_wrong_options_are_named(make: Callable[[], TorchOptions], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_blocks_that_tiles_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="16"):
        TorchExecutor(tiny_weights(), make_capacity(block_size=32), TorchOptions())


def test_a_pool_fits_beside_the_weights() -> None:
    weights = tiny_weights()
    assert pool_blocks(weights, options_for("cpu", "fp32"), 16) == 65_536 // 16
    assert blocks_beside(80_000_000_000, 16_000_000_000, 2_097_152) == 25_987
    assert blocks_beside(10_000_000_000, 16_000_000_000, 2_097_152) < 1


@pytest.mark.parametrize("lanes", [LaneMode.UNIFIED, LaneMode.AUTO])
def test_a_gpu_is_divided_unless_lanes_are_unified(
    lanes: LaneMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TorchOptions] = []

    class Seen(TorchExecutor):
        def __init__(self, weights: Weights, capacity: Capacity, options: TorchOptions) -> None:
            asked.append(options)
            super().__init__(weights, capacity, options)

    monkeypatch.setattr("headway.executors.torch_.build.TorchExecutor", Seen)
    backend = Backend("torch", attention="gathered", graphs="off")
    options = EngineOptions(Sizes(kv_blocks=16, max_model_len=128), lanes=lanes, backend=backend)
    engine = build_engine(tiny_loaded(), options)
    engine.start()
    engine.stop()
    (made,) = asked
    assert made.divided is (lanes is LaneMode.AUTO)
    assert (made.attention, made.graphs) == ("gathered", "off")


def test_a_step_that_fails_still_closes() -> None:
    executor = TorchExecutor(tiny_weights(), make_capacity(max_model_len=64), TorchOptions())
    first, second = RequestId(1), RequestId(2)
    wrong = SamplingSpec(bias=((10**6, 1.0),))  # the engine refuses such an id
    opened = StepPlan(
        1,
        Lane.UNIFIED,
        opens=(Open(first, (1, 2), SamplingSpec()), Open(second, (3, 4), wrong)),
        chunks=(Chunk(first, (1, 2), 0, [BlockId(0)], 1, True),),
    )
    chunks = (Chunk(second, (3, 4), 0, [BlockId(1)], 1, True),)
    try:
        executor.submit(opened, {}).result(60)
        with pytest.raises((ExecutorError, IndexError)):
            executor.submit(StepPlan(2, Lane.UNIFIED, closes=(first,), chunks=chunks), {}).result(
                60
            )
        again = replace(opened, step=3, opens=opened.opens[:1])
        assert executor.submit(again, {}).result(60).sampled
    finally:
        executor.close()
