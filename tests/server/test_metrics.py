"""What /metrics shows."""

import pytest

from headway.core.request import Usage
from headway.core.types import FinishReason, ServiceClass
from headway.server.metrics import Histogram, Metrics, exposition
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import eventually, live_server


def samples(metrics: Metrics) -> dict[str, float]:
    text = exposition(metrics)[0].decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_histograms_count_into_the_first_bucket_that_holds_the_value() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.sum_s == pytest.approx(8.0)


def test_what_observers_are_told_is_shown() -> None:
    metrics = Metrics()
    batch = ServiceClass.BATCH
    metrics.on_admitted(batch, 2.5)
    metrics.on_tokens(batch, [0.3], first=True)
    metrics.on_tokens(batch, [0.01, 0.02], first=False)
    metrics.on_preempted(batch, "swap")
    metrics.on_finished(batch, FinishReason.ABORT, Usage(10, 4, 99, 2))
    shown = samples(metrics)
    label = 'service_class="batch"'
    assert shown[f"headway_queue_seconds_sum{{{label}}}"] == 2.5
    assert shown[f"headway_ttft_seconds_count{{{label}}}"] == 1
    assert shown[f"headway_itl_seconds_count{{{label}}}"] == 2
    assert shown[f"headway_itl_seconds_sum{{{label}}}"] == pytest.approx(0.03)
    assert shown[f'headway_preemptions_total{{kind="swap",{label}}}'] == 1
    assert shown[f'headway_preemptions_total{{kind="recompute",{label}}}'] == 0
    assert shown[f'headway_finished_total{{reason="abort",{label}}}'] == 1
    for kind, count in (("prompt", 10), ("cached", 4), ("generated", 3), ("recomputed", 2)):
        assert shown[f'headway_tokens_total{{kind="{kind}",{label}}}'] == count
        assert shown[f'headway_tokens_total{{kind="{kind}",service_class="realtime"}}'] == 0


def test_two_servers_have_figures_of_their_own() -> None:
    one, other = Metrics(), Metrics()
    one.on_preempted(ServiceClass.BATCH, "swap")
    name = 'headway_preemptions_total{kind="swap",service_class="batch"}'
    assert (samples(one)[name], samples(other)[name]) == (1, 0)


def test_gauges_are_those_of_the_moment() -> None:
    metrics = Metrics()
    engine = FakeEngine(Script(b"abc", hold_after=1), observers=[metrics])
    running = 'headway_requests{service_class="realtime",state="running"}'
    used = 'headway_kv_blocks{state="used",tier="device"}'
    ended = 'headway_finished_total{reason="abort",service_class="realtime"}'
    with live_server(engine, metrics=metrics) as server:
        client = server.client()
        streams = [
            client.completions.create(model="tiny:realtime", prompt="x", stream=True, max_tokens=3)
            for _ in range(3)
        ]
        for stream in streams:
            next(stream)
        gauges = server.gauges()
        assert (gauges[running], gauges[used]) == (3, 3)
        for stream in streams:
            stream.close()
        eventually(lambda: server.gauges()[ended] == 3)
        gauges = server.gauges()
        assert (gauges[running], gauges[used]) == (0, 0)


def test_format() -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    names = {
        line.split()[2]: line.split()[3]
        for line in answer.text.splitlines()
        if line.startswith("# TYPE")
    }
    assert names == {
        "headway_kv_blocks": "gauge",
        "headway_requests": "gauge",
        "headway_headroom_blocks": "gauge",
        "headway_decode_tokens_per_second": "gauge",
        "headway_promoted_requests": "gauge",
        "headway_selection_gap_ratio": "gauge",
        "headway_step_time_error_ratio": "gauge",
        "headway_lanes_split": "gauge",
        "headway_preemptions_total": "counter",
        "headway_finished_total": "counter",
        "headway_tokens_total": "counter",
        "headway_ttft_seconds": "histogram",
        "headway_itl_seconds": "histogram",
        "headway_queue_seconds": "histogram",
    }
