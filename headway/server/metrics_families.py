"""What `/metrics` shows: gauges computed when scraped, and what the engine thread has counted.

docs/metrics.md lists every family; a test compares the two.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.request import ClassCounts, Snapshot, TierCounts
from headway.core.types import ServiceClass
from headway.server.metrics import (
    ClassFigures,
    Histogram,
    Latencies,
    Metrics,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_TOKENS_HELP = "Tokens: generated ones as they come, the others when their request ends."
_REQUEST_STATES = ("waiting", "running", "paused", "swapped")
_BLOCK_STATES = ("free", "used", "cached")


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Batch jobs by status, and lines by outcome: of all jobs on record, and of live ones."""

    jobs: Mapping[str, int]
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Build:
    """What is running."""

    version: str
    model: str
    python: str = field(default_factory=platform.python_version)


@dataclass(frozen=True, slots=True, eq=False)
class Scrape:
    """All that a scrape shows, as it is now.

    responses: HTTP responses by (route, status).
    jobs: None for a server without Batch jobs.
    """

    metrics: Metrics
    snapshot: Snapshot
    healthy: bool
    build: Build
    responses: Mapping[tuple[str, int], int]
    jobs: JobTotals | None = None

    def collect(self) -> "Iterator[Metric]":
        """All metric families, for a registry."""
        yield from _pool_families(self.snapshot)
        yield from _gauges(self.snapshot)
        yield from self._server_families()
        yield from _counters(self.metrics)
        yield from _step_families(self.metrics)
        yield from _histograms(self.metrics)

    def _server_families(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily("headway_healthy", "1 while the step loop lives.", self.healthy)
        build = GaugeMetricFamily(
            "headway_build_info", "Always 1.", labels=["version", "model", "python"]
        )
        build.add_metric([self.build.version, self.build.model, self.build.python], 1)
        yield build
        responses = CounterMetricFamily(
            "headway_http_responses", "HTTP responses.", labels=["route", "status"]
        )
        for (route, status), count in tuple(self.responses.items()):
            responses.add_metric([route, str(status)], count)
        yield responses
        if self.jobs is not None:
            jobs = GaugeMetricFamily("headway_batch_jobs", "Batch jobs.", labels=["status"])
            for status_word, count in self.jobs.jobs.items():
                jobs.add_metric([status_word], count)
            yield jobs
            lines = GaugeMetricFamily(
                "headway_batch_lines", "Lines of the jobs on record.", labels=["state"]
            )
            for state, count in self.jobs.lines.items():
                lines.add_metric([state], count)
            yield lines


def exposition(scrape: Scrape) -> tuple[bytes, str]:
    """What `/metrics` answers, and its content type. Uses a registry of its own, no global one."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(scrape)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _pool_families(now: Snapshot) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    blocks = GaugeMetricFamily(
        "headway_kv_blocks", "KV blocks by tier and state.", labels=["tier", "state"]
    )
    tiers: dict[str, TierCounts] = {"device": now.device, "host": now.host}
    for tier, counts in tiers.items():
        for state in _BLOCK_STATES:
            blocks.add_metric([tier, state], getattr(counts, state))
    yield blocks
    requests = GaugeMetricFamily(
        "headway_requests", "Live requests by state.", labels=["state", "service_class"]
    )
    for service_class in ServiceClass:
        counts_of = now.classes.get(service_class, ClassCounts())
        for state in _REQUEST_STATES:
            requests.add_metric([state, service_class.label], getattr(counts_of, state))
    yield requests


def _gauges(now: Snapshot) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    rates = GaugeMetricFamily(
        "headway_decode_tokens_per_second", "Decode rate over the last steps.", labels=["kind"]
    )
    for kind in ("achieved", "bound", "paper"):
        rates.add_metric([kind], getattr(now.throughput, kind))
    yield rates
    named = {
        "decode_bound_ratio": ("Share of the decode bound reached.", now.throughput.ratio),
        "headroom_blocks": ("Blocks kept free for running requests.", now.headroom_blocks),
        "promoted_requests": ("Batch requests in the reserve.", now.promoted),
        "selection_gap_ratio": ("Share of Eq. 1's optimum missed.", now.selection_gap),
        "step_time_error_ratio": ("Median error of predicted step times.", now.step_error),
        "lanes_split": ("1 while prefill and decode run apart.", now.arrangement.split),
    }
    for name, (text, value) in named.items():
        yield GaugeMetricFamily(f"headway_{name}", text, value=value)


def _counters(metrics: Metrics) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily

    named: list[tuple[str, str, str, Callable[[ClassFigures], dict[str, int]]]] = [
        ("headway_preemptions", "Preemptions.", "kind", lambda f: f.preemptions),
        ("headway_finished", "Requests ended.", "reason", lambda f: f.finished),
        ("headway_tokens", _TOKENS_HELP, "kind", lambda f: f.tokens),
        ("headway_computed_tokens", "Tokens computed in steps.", "phase", lambda f: f.computed),
    ]
    for name, text, label, values in named:
        family = CounterMetricFamily(name, text, labels=["service_class", label])
        for service_class, figures in metrics.classes.items():
            for key, value in values(figures).items():
                family.add_metric([service_class.label, key], value)
        yield family
    pauses = CounterMetricFamily(
        "headway_pauses", "Residents newly left out of a step.", labels=["service_class"]
    )
    for service_class, figures in metrics.classes.items():
        pauses.add_metric([service_class.label], figures.pauses)
    yield pauses
    labels = ["tenant", "service_class", "kind"]
    tenants = CounterMetricFamily(
        "headway_tenant_tokens", "Tokens of requests that ended.", labels=labels
    )
    for tenant, service_class, tokens in metrics.tenants.items():
        for kind, value in tokens.items():
            tenants.add_metric([tenant, service_class.label, kind], value)
    yield tenants


def _step_families(metrics: Metrics) -> "Iterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    steps = CounterMetricFamily(
        "headway_steps", "Steps by how they ended.", labels=["lane", "outcome"]
    )
    predicted = CounterMetricFamily(
        "headway_step_predicted_seconds", "Time predicted for the steps done.", labels=["lane"]
    )
    seconds = HistogramMetricFamily(
        "headway_step_seconds", "Time computing a step.", labels=["lane"]
    )
    for lane, figures in metrics.lanes.items():
        label = lane.name.lower()
        for outcome, count in figures.outcomes.items():
            steps.add_metric([label, outcome], count)
        predicted.add_metric([label], figures.predicted_s)
        seconds.add_metric([label], figures.seconds.cumulative(), figures.seconds.sum_s)
    blocks = CounterMetricFamily(
        "headway_swapped_blocks", "Blocks copied between the tiers.", labels=["direction"]
    )
    copying = CounterMetricFamily(
        "headway_swap_seconds", "Time copying blocks.", labels=["direction"]
    )
    for direction, blocks_copied in metrics.copies.blocks.items():
        blocks.add_metric([direction], blocks_copied)
        copying.add_metric([direction], metrics.copies.seconds[direction])
    yield from (steps, predicted, seconds, blocks, copying)


def _histograms(metrics: Metrics) -> "Iterator[Metric]":
    from prometheus_client.core import HistogramMetricFamily

    named: list[tuple[str, str, Callable[[Latencies], Histogram]]] = [
        ("headway_ttft_seconds", "Arrival to first token.", lambda f: f.ttft),
        ("headway_itl_seconds", "Time between tokens of a request.", lambda f: f.itl),
        ("headway_tpot_seconds", "Mean time per token after the first.", lambda f: f.tpot),
        ("headway_queue_seconds", "Arrival to admission.", lambda f: f.queue),
    ]
    for name, text, histogram_of in named:
        family = HistogramMetricFamily(name, text, labels=["service_class"])
        for service_class, figures in metrics.classes.items():
            histogram = histogram_of(figures.latencies)
            family.add_metric([service_class.label], histogram.cumulative(), histogram.sum_s)
        yield family
