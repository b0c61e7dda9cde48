"""Jobs survive SIGKILL; `make kills` does this 200 times."""

from pathlib import Path

from tests.batches.kill import kill_often


def test_killed_at_random_moments_every_line_is_answered_once(tmp_path: Path) -> None:
    report = kill_often(6, 3, tmp_path)
    assert report.faults == []
    assert report.kills == 6
    assert report.found.total() > 0, "no kill hit a job under way"
