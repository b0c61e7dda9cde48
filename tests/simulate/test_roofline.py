"""Times of steps against sums done by hand, on a device and a model with round numbers."""

from dataclasses import replace

import pytest

from headway.core.plan import BlockCopy, Chunk, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.models.types import AttentionShape, ModelConfig, Rope
from headway.simulate.devices import DEVICES, Device, Efficiency, Link, Peaks
from headway.simulate.roofline import Roofline, RooflineTimer, Work
from headway.simulate.shapes import ModelShape, find_model

# 2 layers: q 10x10, k and v 5x10, o 10x10 and three of 20x10 each: 2 * (300 + 600) = 1,800 weights;
# head 100 x 10; attention 4 * 2 layers * 2 heads * 5 = 80 operations a pair;
# KV 2 * 2 bytes * 2 layers * 1 head * 5 = 40 bytes a token.
MODEL = ModelShape(
    "round",
    ModelConfig(
        "llama", 2, 10, 20, 100, AttentionShape(2, 1, 5), Rope(1e4), norm_eps=1e-5, max_context=1000
    ),
    tied=False,
)
DEVICE = Device(
    "round",
    Peaks(flops=1e6, bytes_per_s=1e5, memory_bytes=1e6, units=10),
    Efficiency(matmul=0.5, attention=0.25, weights=1.0, kv=0.5),
    Link(out_bytes_per_s=1000.0, in_bytes_per_s=500.0, host_bytes=1e6),
    overhead_s=0.01,
    bandwidth_by_share=((0.5, 0.8), (1.0, 1.0)),
    weight_bytes=2.0,
)


def chunk(tokens: int, start: int, sample: bool, request: int = 1) -> Chunk:
    return Chunk(RequestId(request), [2] * tokens, start, [BlockId(0)], 1, sample)


def test_sizes_of_the_round_model() -> None:
    assert MODEL.layer_weights == 1800
    assert MODEL.head_weights == 1000
    assert MODEL.weights == 1800 + 2 * 1000
    assert MODEL.attention_flops == 80
    assert MODEL.kv_bytes == 40


def test_work_counts_pairs_of_causal_chunks() -> None:
    work = Work.of([chunk(4, 6, True), chunk(1, 9, True, 2), chunk(3, 0, False, 3)])
    assert work.tokens == 8
    assert work.sampled == 2
    assert work.prefill_pairs == (4 * 6 + 10) + 6
    assert work.prefill_kv_tokens == 10 + 3
    assert work.decode_pairs == 10


def test_a_decode_row_is_bound_by_memory() -> None:
    seconds = Roofline(DEVICE, MODEL).seconds(Work.of([chunk(1, 99, True)]))
    layers, head, cache = 3600 / 1e5, 2000 / 1e5, 100 * 40 / 5e4
    assert seconds.total == pytest.approx(0.01 + layers + head + cache)
    assert seconds.memory == pytest.approx(layers + head + cache)
    assert seconds.moved == pytest.approx(3600 + 2000 + 4000)


def test_a_long_chunk_is_bound_by_arithmetic() -> None:
    seconds = Roofline(DEVICE, MODEL).seconds(Work.of([chunk(100, 0, False)]))
    layers = 2 * 1800 * 100 / 5e5
    attention = 80 * 5050 / 2.5e5
    assert layers > 3600 / 1e5
    assert seconds.total == pytest.approx(0.01 + layers + attention)
    assert seconds.memory == 0


def test_a_share_of_the_units_scales_arithmetic_and_follows_the_bandwidth_curve() -> None:
    roofline = Roofline(DEVICE, MODEL)
    long, row = Work.of([chunk(100, 0, False)]), Work.of([chunk(1, 99, False)])
    assert roofline.seconds(long, 0.5).total - 0.01 == pytest.approx(
        2 * (roofline.seconds(long).total - 0.01)
    )
    assert roofline.seconds(row, 0.5).total - 0.01 == pytest.approx(
        (roofline.seconds(row).total - 0.01) / 0.8
    )
    assert DEVICE.bandwidth_share(0.25) == pytest.approx(0.4)
    assert DEVICE.bandwidth_share(0.75) == pytest.approx(0.9)


def test_copies_go_at_the_links_rates() -> None:
    timer = RooflineTimer(Roofline(DEVICE, MODEL), block_bytes=100)
    copies = tuple(BlockCopy(BlockId(i), BlockId(i)) for i in range(3))
    plan = StepPlan(1, Lane.UNIFIED, swap_out=copies, swap_in=copies[:2])
    cost = timer.cost(plan)
    assert cost.copy_out_s == pytest.approx(3 * 100 / 1000)
    assert cost.copy_in_s == pytest.approx(2 * 100 / 500)
    assert cost.compute_s == pytest.approx(0.01)
    assert cost.total_s == pytest.approx(0.3 + 0.4 + 0.01)


def test_a_plan_is_timed_on_the_units_it_asks_for() -> None:
    timer = RooflineTimer(Roofline(DEVICE, MODEL), 100)
    chunks = (chunk(100, 0, False),)
    whole = timer.cost(StepPlan(1, Lane.UNIFIED, chunks=chunks))
    half = timer.cost(StepPlan(2, Lane.PREFILL, chunks=chunks, units=5))
    assert half.compute_s - 0.01 == pytest.approx(2 * (whole.compute_s - 0.01))
    assert timer.bytes_per_s == pytest.approx(1e5)


def test_llama_8b_has_its_published_sizes() -> None:
    model = find_model("llama-3.1-8b")
    assert model.weights == pytest.approx(8.03e9, rel=0.001)
    assert model.kv_bytes == 128 * 1024


def test_known_magnitudes_on_an_h100() -> None:
    """2,048 tokens of Llama 3.1 8B take about 57 ms, a decode row about 6."""
    roofline = Roofline(DEVICES["h100"], find_model("llama-3.1-8b"))
    prefill = roofline.seconds(Work.of([chunk(2048, 0, True)])).total
    row = roofline.seconds(Work.of([chunk(1, 500, True)])).total
    assert 0.05 < prefill < 0.07
    assert 0.005 < row < 0.008


@pytest.mark.parametrize("work", [Work.of([chunk(2048, 0, True)]), Work.of([chunk(1, 4000, True)])])
def test_a_newer_device_is_not_slower(work: Work) -> None:
    model = find_model("llama-3.1-8b")
    times = [Roofline(DEVICES[d], model).seconds(work).total for d in ("a100", "h100", "h200")]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_more_work_never_takes_less_time(device: Device) -> None:
    roofline = Roofline(device, find_model("smollm2-135m"))
    times = [roofline.seconds(Work.of([chunk(n, 64, True)])).total for n in (2, 3, 64, 65, 2000)]
    times += [roofline.seconds(Work.of([chunk(2000, c, True)])).total for c in (65, 1000, 5000)]
    assert times == sorted(times)
    shares = [roofline.seconds(Work.of([chunk(64, 64, True)]), s).total for s in (0.2, 0.5, 0.9, 1)]
    assert shares == sorted(shares, reverse=True)


def test_a_step_can_be_stopped_after_each_group_of_layers() -> None:
    plan = StepPlan(1, Lane.UNIFIED, chunks=(chunk(4, 0, True),))
    parts = []
    for group in (0, 1, 2, 3):
        roofline = Roofline(replace(DEVICE, layer_group=group), MODEL)
        parts.append(RooflineTimer(roofline, 640).cost(plan).parts)
    assert parts == [0, 2, 1, 1]
