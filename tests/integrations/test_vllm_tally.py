"""What the vLLM integration counts by class between two reports."""

from headway.core.types import PreemptKind, ServiceClass
from headway_vllm.book import SwapBook
from headway_vllm.tally import Tally

REALTIME = ServiceClass.REALTIME


def counted() -> Tally:
    tally = Tally()
    tally.arrived("a", REALTIME, 1.0)
    tally.queued(REALTIME, 0.5)
    tally.token("a", 3.0)
    tally.token("a", 4.0)
    tally.preempted(REALTIME, PreemptKind.SWAP)
    tally.promotions += 1
    return tally


def test_a_report_is_of_the_time_since_the_last() -> None:
    tally, book = counted(), SwapBook(4, 16)
    first = tally.report({REALTIME: 2}, {REALTIME: 1}, book)
    assert (first["waiting"], first["running"]) == ({"realtime": 2}, {"realtime": 1})
    assert (first["ttft_s"], first["queued_s"]) == ({"realtime": [2.0]}, {"realtime": [0.5]})
    assert (first["preempted"], first["promotions"]) == ([["realtime", "swap", 1]], 1)
    second = tally.report({}, {}, book)
    assert not any(second[name] for name in ("ttft_s", "queued_s", "preempted", "promotions"))


def test_what_nobody_wants_reported_is_forgotten() -> None:
    tally = counted()
    tally.arrived("b", REALTIME, 5.0)
    tally.clear()
    tally.token("b", 6.0)
    report = tally.report({}, {}, SwapBook(4, 16))
    assert (report["ttft_s"], report["queued_s"]) == ({"realtime": [1.0]}, {})
    assert not report["preempted"] and not report["promotions"]
