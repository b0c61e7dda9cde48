"""What /metrics shows."""

import re
from collections.abc import Sequence

import pytest

from headway.core.plan import BlockCopy, Chunk, StepFailure, StepPlan, StepResult, StepTiming
from headway.core.record import Computed, Left, StepRecord
from headway.core.request import Usage
from headway.core.types import BlockId, FinishReason, Lane, RequestId, ServiceClass
from headway.engine.types import RequestEnd, StepEnd
from headway.server.metrics import Histogram, Metrics, Tenants
from headway.server.metrics_families import Build, JobTotals, Scrape, exposition
from headway.server.operate import Insight
from tests.packaging.project import ROOT
from tests.server.fake_engine import FakeEngine, Script
from tests.server.live import eventually, live_server
from tests.server.metric_names import every_metric

BATCH, REALTIME = ServiceClass.BATCH, ServiceClass.REALTIME
METRICS_PAGE = ROOT / "docs/metrics.md"


def samples(metrics: Metrics) -> dict[str, float]:
    snapshot = FakeEngine().snapshot()
    scrape = Scrape(metrics, snapshot, True, Build("1.2.3", "tiny"), {("/v1/models", 200): 3})
    text = exposition(scrape)[0].decode()
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
    batch = BATCH
    metrics.on_admitted(batch, 2.5)
    metrics.on_tokens(batch, [0.3], first=True)
    metrics.on_tokens(batch, [0.01, 0.02], first=False)
    metrics.on_preempted(batch, "swap")
    metrics.on_finished(RequestEnd(batch, "acme", FinishReason.ABORT, Usage(10, 4, 3, 2), 0.5))
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
        tenant = f'headway_tenant_tokens_total{{kind="{kind}",{label},tenant="acme"}}'
        assert shown[tenant] == count


def test_time_per_output_token_is_the_mean_after_the_first() -> None:
    metrics = Metrics()
    for generated, decode_s in ((1, 0.0), (5, 0.4)):
        usage = Usage(10, 0, generated, 0)
        metrics.on_finished(RequestEnd(REALTIME, "", FinishReason.STOP, usage, decode_s))
    shown = samples(metrics)
    assert shown['headway_tpot_seconds_count{service_class="realtime"}'] == 1
    assert shown['headway_tpot_seconds_sum{service_class="realtime"}'] == pytest.approx(0.1)


def test_tenants_beyond_a_bound_are_counted_together() -> None:
    tenants = Tenants(most=2)
    for tenant in ("a", "b", "c", "d", "a", ""):
        tenants.add(tenant, BATCH, Usage(prompt=1, generated=2))
    shown = {(tenant, c): dict(tokens) for tenant, c, tokens in tenants.items()}
    assert {key: tokens["generated"] for key, tokens in shown.items()} == {
        ("a", BATCH): 4,
        ("b", BATCH): 2,
        ("(other)", BATCH): 6,
    }
    assert shown["(other)", BATCH]["prompt"] == 3


def step_end(
    outcome: StepResult | StepFailure,
    computed: Sequence[Computed] = (),
    paused: Sequence[int] = (),
    swap_out: int = 0,
) -> StepEnd:
    """The end of a step of requests 0 (realtime) and others (batch), predicted to take 0.2 s."""
    left = tuple(Left(RequestId(r), "the step was full") for r in paused)
    record = StepRecord(1, Lane.UNIFIED, 1.0, 0.2, computed=tuple(computed), paused=left)
    copies = tuple(BlockCopy(BlockId(i), BlockId(i)) for i in range(swap_out))
    chunks = tuple(Chunk(c.request, (1,), 0, (), 1, False) for c in computed)
    plan = StepPlan(1, Lane.UNIFIED, swap_out=copies, chunks=chunks)
    classes = {RequestId(r): REALTIME if r == 0 else BATCH for r in range(9)}
    return StepEnd(plan, record, outcome, classes, 0.0)


def test_steps_are_counted_by_how_they_ended() -> None:
    metrics = Metrics()
    timing = StepTiming(copy_out_s=0.5, compute_s=0.3)
    rows = (Computed(RequestId(0), 1, True), Computed(RequestId(1), 60, False))
    metrics.on_step(step_end(StepResult(1, timing=timing), rows, swap_out=3))
    metrics.on_step(step_end(StepResult(2, timing=timing, interrupted=True), rows))
    metrics.on_step(step_end(StepFailure(3, "broken"), rows))
    shown = samples(metrics)
    for outcome in ("done", "interrupted", "failed"):
        assert shown[f'headway_steps_total{{lane="unified",outcome="{outcome}"}}'] == 1
    assert shown['headway_step_seconds_sum{lane="unified"}'] == pytest.approx(0.3)
    assert shown['headway_step_predicted_seconds_total{lane="unified"}'] == pytest.approx(0.2)
    assert shown['headway_swapped_blocks_total{direction="out"}'] == 3
    assert shown['headway_swap_seconds_total{direction="out"}'] == pytest.approx(1.0)
    done = 'headway_computed_tokens_total{{phase="{}",service_class="{}"}}'
    assert shown[done.format("decode", "realtime")] == 1
    assert shown[done.format("prefill", "batch")] == 60


def test_a_pause_is_counted_once_however_long() -> None:
    metrics = Metrics()
    for paused in ((1, 2), (1, 2), (2,), (1, 2)):
        metrics.on_step(step_end(StepResult(1), paused=paused))
    assert samples(metrics)['headway_pauses_total{service_class="batch"}'] == 3


def test_two_servers_have_figures_of_their_own() -> None:
    one, other = Metrics(), Metrics()
    one.on_preempted(BATCH, "swap")
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


def families(text: str) -> dict[str, str]:
    """Names as queries have them → types."""
    lines = [line.split() for line in text.splitlines() if line.startswith("# TYPE")]
    return {words[2]: words[3] for words in lines}


def test_the_documentation_lists_every_metric_with_its_labels() -> None:
    shown = every_metric()
    rows = re.findall(r"^\| `(headway_\w+)` \| (.*?) \| ", METRICS_PAGE.read_text(), re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert len(rows) == len(listed)
    assert listed == shown


def test_format() -> None:
    with live_server(FakeEngine()) as server:
        answer = server.http().get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    types = families(answer.text)
    assert types["headway_kv_blocks"] == "gauge"
    assert types["headway_tokens_total"] == "counter"
    assert types["headway_ttft_seconds"] == "histogram"
    jobs = {"headway_batch_jobs", "headway_batch_lines"}
    assert set(types) | jobs == set(every_metric())


def test_what_runs_and_whether_it_is_well() -> None:
    engine = FakeEngine()
    insight = Insight(Build("1.2.3", "tiny"), lambda: JobTotals({"completed": 2}, {"failed": 1}))
    with live_server(engine, insight=insight) as server:
        http = server.http()
        assert http.get("/nothing/here").status_code == 404
        shown = server.gauges()
        assert shown["headway_healthy"] == 1
        engine.healthy = False
        assert server.gauges()["headway_healthy"] == 0
    (build,) = [name for name in shown if name.startswith("headway_build_info")]
    assert 'model="tiny"' in build and 'version="1.2.3"' in build
    assert shown['headway_batch_jobs{status="completed"}'] == 2
    assert shown['headway_batch_lines{state="failed"}'] == 1
    assert shown['headway_http_responses_total{route="(none)",status="404"}'] == 1
