"""A short run of what `make soak` does for twenty minutes."""

from pathlib import Path

from tests.soak.run import KINDS, Plan, soak, summary


def test_mixed_traffic_loses_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report = soak(Plan(seconds=24, crowd=500), tmp_path)
    assert report.faults == [], summary(report)
    outcomes = report.ledger.outcomes
    assert outcomes["in a crowd", "answered"] == 500
    # That each kind of client was there, and got what it was meant to.
    for kind in ("plain", "streamed", "chat", "several choices", "schema"):
        assert outcomes[kind, "answered"] > 0, summary(report)
    for kind in ("leaves", "cancels", "resets"):
        assert outcomes[kind, "left"] > 0, summary(report)
    for kind in ("too long", "wrong"):
        assert outcomes[kind, "error 400"] > 0, summary(report)
    for how in ("error 504", "error 504 in a stream"):
        assert outcomes["in a hurry", how] > 0, summary(report)
    assert outcomes["batch job", "completed"] > 0
    assert len(report.memory) == 2
    for kind in KINDS:
        assert report.preemptions(kind) > 0, summary(report)
