"""Per-class figures on vLLM's own /metrics page, by the way vLLM has for connectors."""

from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ClassStats(KVConnectorStats):
    """The scheduler's report. vLLM's log line has nothing of it: the figures are for /metrics."""

    def reset(self) -> None:
        """Forget it."""
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """The later report: nothing is summed here."""
        return other

    def reduce(self) -> dict[str, int | float]:
        """Nothing for the log."""
        return {}

    def is_empty(self) -> bool:
        """Whether the log should leave it out: always."""
        return True


class ClassMetrics(KVConnectorPromMetrics):
    """The metrics, labelled as vLLM's own and by service class."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        """Register them."""
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        gauge, counter = metric_types[Gauge], metric_types[Counter]
        histogram = metric_types[Histogram]
        by_class = [*labelnames, "service_class"]
        self._requests = gauge(
            "headway_requests", "Live requests.", [*labelnames, "state", "service_class"]
        )
        self._preempted = counter(
            "headway_preemptions", "Requests that gave up their blocks.", [*by_class, "kind"]
        )
        self._ttft = histogram(
            "headway_ttft_seconds", "Arrival to first token.", by_class, buckets=_SECONDS
        )
        self._queued = histogram(
            "headway_queue_seconds", "Arrival to first admission.", by_class, buckets=_SECONDS
        )
        self._promoted = counter("headway_promotions", "Requests let into the reserve.", labelnames)
        self._tokens = counter(
            "headway_swap_tokens", "Tokens of KV saved and restored.", [*labelnames, "direction"]
        )
        self._host = gauge("headway_kv_blocks", "KV blocks.", [*labelnames, "tier", "state"])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take in a report."""
        if not transfer_stats_data:
            return
        report, engine = transfer_stats_data, self.per_engine_labelvalues[engine_idx]
        for state in ("waiting", "running"):
            for label, count in report[state].items():
                self._requests.labels(*engine, state, label).set(count)
        for label, kind, count in report["preempted"]:
            self._preempted.labels(*engine, label, kind).inc(count)
        for name, metric in (("ttft_s", self._ttft), ("queued_s", self._queued)):
            for label, samples in report[name].items():
                for seconds in samples:
                    metric.labels(*engine, label).observe(seconds)
        self._promoted.labels(*engine).inc(report["promotions"])
        self._tokens.labels(*engine, "out").inc(report["saved_tokens"])
        self._tokens.labels(*engine, "in").inc(report["restored_tokens"])
        free, total = report["host_free"], report["host_total"]
        self._host.labels(*engine, "host", "free").set(free)
        self._host.labels(*engine, "host", "used").set(total - free)
