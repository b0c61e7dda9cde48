"""Every metric there is, for those who compare a document with them."""

from prometheus_client.core import Metric

from headway.core.request import Usage
from headway.core.types import FinishReason, ServiceClass
from headway.engine.types import RequestEnd
from headway.server.metrics import Metrics
from headway.server.metrics_families import Build, JobTotals, Scrape
from tests.server.fake_engine import FakeEngine


def every_metric() -> dict[str, set[str]]:
    """Families by the name that documents use (counters end in `_total`), with their labels."""
    return {_name(family): _labels(family) for family in _families()}


def label_values() -> dict[str, dict[str, set[str]]]:
    """Values that labels with a fixed set of them have, by family."""
    open_ended = {"tenant", "model", "version", "python", "route", "status"}
    found: dict[str, dict[str, set[str]]] = {}
    for family in _families():
        values = found.setdefault(_name(family), {})
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label not in open_ended and label != "le":
                    values.setdefault(label, set()).add(value)
    return found


def _families() -> list[Metric]:
    metrics = Metrics()
    metrics.on_finished(RequestEnd(ServiceClass.BATCH, "acme", FinishReason.STOP, Usage()))
    jobs = JobTotals({"in_progress": 1}, {"completed": 1, "failed": 0, "waiting": 0})
    responses = {("/v1/models", 200): 1}
    snapshot = FakeEngine().snapshot()
    scrape = Scrape(metrics, snapshot, True, Build("1", "tiny"), responses, jobs)
    return list(scrape.collect())


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"le"}
