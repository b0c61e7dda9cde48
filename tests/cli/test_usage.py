"""`headway usage`."""

import json
import time
from pathlib import Path

import pytest

from headway.cli import main
from headway.core.types import ServiceClass
from headway.server.usage import Share, Tally, UsageBook


def test_tokens_by_tenant_and_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hour = int(time.time() // 3600)
    tally = Tally(2, 30, 6, 11)
    UsageBook(tmp_path).add(
        {
            Share(hour, "", ServiceClass.REALTIME): tally,
            Share(hour - 50, "acme", ServiceClass.BATCH): tally,
        }
    )
    folder = ["--data-dir", str(tmp_path)]
    assert main(["usage", *folder]) == 0
    heading, own, acme = capsys.readouterr().out.splitlines()
    assert heading.split() == ["tenant", "class", "answers", "prompt", "cached", "generated"]
    assert own.split() == ["-", "realtime", "2", "30", "6", "11"]
    assert acme.split()[:2] == ["acme", "batch"]
    assert main(["usage", "--since", "24h", "--json", *folder]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["class"] == "realtime"


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--data-dir", str(tmp_path / "typo")]) == 2
    assert capsys.readouterr() == ("", f"headway: there is no data folder {tmp_path / 'typo'}\n")


@pytest.mark.parametrize("since", ["7", "x", "-1d", "", "nand"])
def test_a_time_that_is_none(since: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["usage", "--since", since])
    assert ended.value.code == 2
    assert "--since" in capsys.readouterr().err
