"""Figures for Prometheus: gauges computed from the scheduler's snapshot when scraped, counters and
histograms fed by the engine thread.

One writer (the engine thread) and plain integers: recording a token costs no lock and no lookup by
label, and a scrape reads whatever is there.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.request import Snapshot, TierCounts, Usage
from headway.core.types import FinishReason, PreemptKind, ServiceClass

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)
_TOKEN_BOUNDS_S = tuple(ms / 1000 for ms in _MS)
_QUEUE_BOUNDS_S = (*_TOKEN_BOUNDS_S, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_TOKEN_KINDS = ("prompt", "cached", "generated", "recomputed")
_TOKENS_HELP = "Tokens: generated ones as they come, the others when their request ends."
_REQUEST_STATES = ("waiting", "running", "paused", "swapped")
_BLOCK_STATES = ("free", "used", "cached")


class Histogram:
    """Counts of observed seconds by upper bound. One thread observes."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count a value into the first bucket whose bound it doesn't exceed."""
        self._counts[bisect_left(self._bounds_s, value_s)] += 1
        self._sum_s += value_s

    @property
    def sum_s(self) -> float:
        """Sum of all observed values."""
        return self._sum_s

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, values up to it) pairs as Prometheus has them, the last being `+Inf`."""
        pairs, total = [], 0
        for bound, count in zip((*self._bounds_s, None), list(self._counts), strict=True):
            total += count
            pairs.append(("+Inf" if bound is None else repr(float(bound)), total))
        return pairs


def _zeros(keys: Iterable[str]) -> Callable[[], dict[str, int]]:
    names = tuple(keys)
    return lambda: dict.fromkeys(names, 0)


@dataclass(slots=True)
class ClassFigures:
    """Figures of one service class."""

    ttft: Histogram = field(default_factory=lambda: Histogram(_QUEUE_BOUNDS_S))
    itl: Histogram = field(default_factory=lambda: Histogram(_TOKEN_BOUNDS_S))
    queue: Histogram = field(default_factory=lambda: Histogram(_QUEUE_BOUNDS_S))
    preemptions: dict[str, int] = field(default_factory=_zeros(k.value for k in PreemptKind))
    finished: dict[str, int] = field(default_factory=_zeros(r.value for r in FinishReason))
    tokens: dict[str, int] = field(default_factory=_zeros(_TOKEN_KINDS))


class Metrics:
    """An engine Observer that is also a prometheus_client collector.

    snapshot: where gauges come from; set once the engine exists.
    """

    def __init__(self) -> None:
        self.snapshot: Callable[[], Snapshot] | None = None
        self._classes = {service_class: ClassFigures() for service_class in ServiceClass}

    def on_admitted(self, service_class: ServiceClass, queued_s: float) -> None:
        """A request left the queue."""
        self._classes[service_class].queue.observe(queued_s)

    def on_tokens(self, service_class: ServiceClass, gaps_s: Sequence[float], first: bool) -> None:
        """Tokens of one request in one step."""
        figures = self._classes[service_class]
        figures.tokens["generated"] += len(gaps_s)
        histogram = figures.ttft if first else figures.itl
        for gap_s in gaps_s:
            histogram.observe(gap_s)

    def on_preempted(self, service_class: ServiceClass, kind: str) -> None:
        """A request gave up its blocks."""
        self._classes[service_class].preemptions[kind] += 1

    def on_finished(self, service_class: ServiceClass, reason: FinishReason, usage: Usage) -> None:
        """A request ended, aborted and failed ones too. What it generated is counted already."""
        figures = self._classes[service_class]
        figures.finished[reason.value] += 1
        figures.tokens["prompt"] += usage.prompt
        figures.tokens["cached"] += usage.cached
        figures.tokens["recomputed"] += usage.recomputed

    def collect(self) -> "Iterable[Metric]":
        """All metric families, for a registry."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> "Iterable[Metric]":
        from prometheus_client.core import GaugeMetricFamily

        if self.snapshot is None:
            return
        now = self.snapshot()
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
            counts_of = now.classes.get(service_class)
            for state in _REQUEST_STATES:
                value = 0 if counts_of is None else getattr(counts_of, state)
                requests.add_metric([state, service_class.label], value)
        yield requests
        rates = GaugeMetricFamily(
            "headway_decode_tokens_per_second", "Decode rate over the last steps.", labels=["kind"]
        )
        for kind in ("achieved", "bound", "paper"):
            rates.add_metric([kind], getattr(now.throughput, kind))
        yield rates
        named = {
            "headroom_blocks": ("Blocks kept free for running requests.", now.headroom_blocks),
            "promoted_requests": ("Batch requests in the reserve.", now.promoted),
            "selection_gap_ratio": ("Share of Eq. 1's optimum missed.", now.selection_gap),
            "step_time_error_ratio": ("Median error of predicted step times.", now.step_error),
            "lanes_split": ("1 while prefill and decode run apart.", now.arrangement.split),
        }
        for name, (text, value) in named.items():
            yield GaugeMetricFamily(f"headway_{name}", text, value=value)

    def _counters(self) -> "Iterable[Metric]":
        from prometheus_client.core import CounterMetricFamily

        named: list[tuple[str, str, str, Callable[[ClassFigures], dict[str, int]]]] = [
            ("headway_preemptions", "Preemptions.", "kind", lambda f: f.preemptions),
            ("headway_finished", "Requests ended.", "reason", lambda f: f.finished),
            ("headway_tokens", _TOKENS_HELP, "kind", lambda f: f.tokens),
        ]
        for name, text, label, values in named:
            family = CounterMetricFamily(name, text, labels=["service_class", label])
            for service_class, figures in self._classes.items():
                for key, value in values(figures).items():
                    family.add_metric([service_class.label, key], value)
            yield family

    def _histograms(self) -> "Iterable[Metric]":
        from prometheus_client.core import HistogramMetricFamily

        named: list[tuple[str, str, Callable[[ClassFigures], Histogram]]] = [
            ("headway_ttft_seconds", "Arrival to first token.", lambda f: f.ttft),
            ("headway_itl_seconds", "Time between tokens of a request.", lambda f: f.itl),
            ("headway_queue_seconds", "Arrival to admission.", lambda f: f.queue),
        ]
        for name, text, histogram_of in named:
            family = HistogramMetricFamily(name, text, labels=["service_class"])
            for service_class, figures in self._classes.items():
                histogram = histogram_of(figures)
                buckets = histogram.cumulative()
                family.add_metric([service_class.label], buckets, histogram.sum_s)
            yield family


def exposition(metrics: Metrics) -> tuple[bytes, str]:
    """What `/metrics` answers, and its content type. Uses a registry of its own, no global one."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return generate_latest(registry), CONTENT_TYPE_LATEST
