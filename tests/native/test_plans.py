"""What isn't a plan is refused before anything is computed, and the executor goes on."""

import threading
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from headway.core.plan import BlockCopy, Chunk, Masks, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ConfigError, ExecutorError, ModelError
from headway.executors.native import NativeExecutor, NativeOptions
from tests.native.helpers import OPTIONS, Bench, bench
from tests.tiny import LLAMA, tiny_weights, tokens

WEIGHTS = tiny_weights()
ONE = RequestId(1)
OPEN = Open(ONE, [1, 2, 3], SamplingSpec())
CHUNK = Chunk(ONE, [1, 2, 3], 0, [BlockId(0)], 1, True)


def plan(*chunks: Chunk, opens: tuple[Open, ...] = (OPEN,)) -> StepPlan:
    """A step of those chunks."""
    return StepPlan(0, Lane.UNIFIED, opens, chunks=chunks)


FAULTS = {
    "unknown request": (plan(CHUNK, opens=()), "unknown request 1"),
    "block": (plan(CHUNK._replace(blocks=[BlockId(96)])), "block 96"),
    "negative block": (plan(CHUNK._replace(blocks=[BlockId(-1)])), "block -1"),
    "huge block": (plan(CHUNK._replace(blocks=[BlockId(1 << 40)])), "out of range"),
    "short table": (plan(CHUNK._replace(blocks=[], num_blocks=1)), "too short"),
    "few blocks": (plan(CHUNK._replace(num_blocks=0)), "too short"),
    "negative count": (plan(CHUNK._replace(num_blocks=-1)), "negative"),
    "token": (plan(CHUNK._replace(tokens=[LLAMA.vocab])), f"token {LLAMA.vocab}"),
    "negative token": (plan(CHUNK._replace(tokens=[-1])), "token -1"),
    "no tokens": (plan(CHUNK._replace(tokens=[])), "empty chunk"),
    "position": (plan(CHUNK._replace(start=-1)), "positions"),
    "word": (plan(CHUNK._replace(tokens=cast(list[int], ["a"]))), "int"),
    "prompt token": (plan(opens=(replace(OPEN, prompt=[LLAMA.vocab]),)), "token"),
    "bias token": (plan(opens=(replace(OPEN, sampling=SamplingSpec(bias=((-1, 1.0),))),)), "token"),
    "two chunks": (plan(CHUNK, CHUNK), "two chunks"),
    "units": (replace(plan(CHUNK), units=2), "2 units of 1"),
    "copy": (
        StepPlan(0, Lane.UNIFIED, swap_out=(BlockCopy(BlockId(0), BlockId(64)),)),
        "host block 64",
    ),
    "copy in": (
        StepPlan(0, Lane.UNIFIED, swap_in=(BlockCopy(BlockId(96), BlockId(0)),)),
        "device block 96",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plan_is_refused(fault: str) -> None:
    faulty, message = FAULTS[fault]
    with bench(WEIGHTS) as it:
        with pytest.raises(ExecutorError, match=message):
            it.executor.submit(faulty, {}).result()
        assert it.executor.submit(plan(CHUNK), {}).result().sampled


def test_limits_of_a_step() -> None:
    options = replace(OPTIONS, max_seqs=1, max_step_tokens=4, max_model_len=20)
    other = replace(OPEN, request=RequestId(2))
    second = CHUNK._replace(request=RequestId(2), blocks=[BlockId(1)])
    long = CHUNK._replace(tokens=[1] * 5)
    late = CHUNK._replace(start=18, blocks=[BlockId(0), BlockId(1)], num_blocks=2)
    with bench(WEIGHTS, options) as it:
        for faulty in (plan(CHUNK, second, opens=(OPEN, other)), plan(long), plan(late)):
            with pytest.raises(ExecutorError, match="invalid plan"):
                it.executor.submit(faulty, {}).result()


@pytest.mark.parametrize("mask", [b"", b"\xff"])
def test_a_short_mask_is_refused(mask: bytes) -> None:
    masks: Masks = {ONE: mask}
    with bench(WEIGHTS) as it, pytest.raises(ExecutorError, match="mask"):
        it.executor.submit(plan(CHUNK), masks).result()


def test_only_the_first_blocks_of_a_table_count() -> None:
    """The list may have grown since the plan was made, by blocks of anyone's."""
    with bench(WEIGHTS) as it:
        expected = it.executor.submit(plan(CHUNK), {}).result().sampled
        grown = CHUNK._replace(blocks=[BlockId(0), BlockId(10**6)])
        assert it.executor.submit(plan(grown), {}).result().sampled == expected


def test_closes_apply_after_the_step_and_unknown_ones_are_ignored() -> None:
    with bench(WEIGHTS) as it:
        closing = replace(plan(CHUNK), closes=(ONE, RequestId(77)))
        assert it.executor.submit(closing, {}).result().sampled
        with pytest.raises(ExecutorError, match="unknown request"):
            it.executor.submit(plan(CHUNK, opens=()), {}).result()


def test_a_lane_runs_one_step_at_a_time_and_lanes_run_at_once() -> None:
    weights = tiny_weights(replace(LLAMA, layers=200))
    with bench(weights, replace(OPTIONS, threads=2)) as it:
        prefill = it.run(tokens(500))
        decode = it.run(tokens(10))
        opens = tuple(Open(r.request, r.tokens, r.spec) for r in (prefill, decode))
        slow = StepPlan(0, Lane.PREFILL, opens, chunks=(prefill.chunk(500),))
        first = it.executor.submit(slow, {})
        with pytest.raises(ExecutorError, match="in flight"):
            it.executor.submit(slow, {}).result()
        second = it.executor.submit(StepPlan(1, Lane.DECODE, chunks=(decode.chunk(10),)), {})
        together = (first.result(), second.result())
        alone = it.executor.submit(StepPlan(2, Lane.UNIFIED, chunks=(decode.chunk(10),)), {})
        assert together[1].sampled == alone.result().sampled


@pytest.mark.parametrize("units", [0, 1, 2, 3])
def test_a_plan_says_how_many_threads_compute(units: int) -> None:
    with bench(WEIGHTS, replace(OPTIONS, threads=3)) as it:
        assert it.executor.capacity.units == 3
        expected = it.executor.submit(plan(CHUNK), {}).result().sampled
        for lane in Lane:
            again = replace(plan(CHUNK), lane=lane, units=units)
            assert it.executor.submit(again, {}).result().sampled == expected


def test_result_times_out_and_the_step_goes_on() -> None:
    weights = tiny_weights(replace(LLAMA, layers=200))
    with bench(weights) as it:
        run = it.run(tokens(500))
        opened = StepPlan(
            0, Lane.UNIFIED, (Open(ONE, run.tokens, run.spec),), chunks=(run.chunk(500),)
        )
        handle = it.executor.submit(opened, {})
        with pytest.raises(TimeoutError):
            handle.result(0.001)
        assert handle.result(30).sampled
        assert handle.done()


def test_an_interrupt_stops_at_a_layer() -> None:
    weights = tiny_weights(replace(LLAMA, layers=200))
    with bench(weights) as it:
        # The least of a few: a busy machine delays any of them.
        whole = min(_timed(it, interrupt=False) for _ in range(2))
        cut = min(_timed(it, interrupt=True) for _ in range(4))
    assert cut < whole / 2


def _timed(it: Bench, interrupt: bool) -> float:
    """Seconds of a long step, interrupted by another thread or not."""
    run = it.run(tokens(400), room=0)
    opened = StepPlan(
        0, Lane.UNIFIED, (Open(run.request, run.tokens, run.spec),), chunks=(run.chunk(400),)
    )
    start = time.perf_counter()
    handle = it.executor.submit(opened, {})
    if interrupt:
        thread = threading.Thread(target=handle.interrupt)
        thread.start()
        thread.join()
    assert handle.result(30).interrupted == interrupt
    it.free += run.blocks
    return time.perf_counter() - start


def test_threads_run_while_python_does() -> None:
    """A step needs no interpreter lock: it ends while this thread never lets go of it."""
    with bench(WEIGHTS) as it:
        handle = it.executor.submit(plan(CHUNK), {})
        end = time.perf_counter() + 10
        while not handle.done() and time.perf_counter() < end:
            pass
        assert handle.done()


def test_close_ends_the_step_in_flight() -> None:
    weights = tiny_weights(replace(LLAMA, layers=100))
    executor = NativeExecutor(weights, OPTIONS)
    ids = tokens(200)
    blocks = [BlockId(i) for i in range(13)]
    chunk = Chunk(ONE, ids, 0, blocks, 13, True)
    handle = executor.submit(plan(chunk, opens=(Open(ONE, ids, SamplingSpec()),)), {})
    executor.close()
    assert handle.done() and handle.result().sampled
    with pytest.raises(ExecutorError, match="closed"):
        executor.submit(plan(CHUNK), {})


@pytest.mark.parametrize(
    "bad",
    [
        {"block_size": 32},
        {"kv_blocks": 0},
        {"max_seqs": 0},
        {"host_blocks": -1},
        {"threads": -1},
        {"isa": "mmx"},
    ],
)
def test_options_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        NativeExecutor(WEIGHTS, replace(OPTIONS, **bad))


def test_a_model_that_does_not_add_up_is_refused() -> None:
    missing = {k: v for k, v in WEIGHTS.tensors.items() if k != "layers.1.up"}
    with pytest.raises(ModelError, match=r"layers\.1\.up"):
        NativeExecutor(replace(WEIGHTS, tensors=missing), OPTIONS)
    cut = WEIGHTS.tensors["layers.0.q"]
    short = {**WEIGHTS.tensors, "layers.0.q": replace(cut, data=cut.data[:-2])}
    with pytest.raises(ModelError, match=r"layers\.0\.q"):
        NativeExecutor(replace(WEIGHTS, tensors=short), OPTIONS)
    wide = replace(WEIGHTS, config=replace(WEIGHTS.config, hidden=128))
    with pytest.raises(ModelError, match="64"):
        NativeExecutor(wide, OPTIONS)


def test_capacity_says_what_was_asked_for() -> None:
    options = NativeOptions(kv_blocks=7, host_blocks=3, max_model_len=10**6)
    with bench(WEIGHTS, options) as it:
        capacity = it.executor.capacity
    assert (capacity.kv_blocks, capacity.host_blocks, capacity.block_size) == (7, 3, 16)
    assert capacity.max_model_len == WEIGHTS.config.max_context
    a = WEIGHTS.config.attention
    assert capacity.block_bytes == 2 * 2 * 16 * a.kv_heads * a.head_dim * WEIGHTS.config.layers
