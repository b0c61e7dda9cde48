"""What bench/flood.py makes of its cells, without simulating an hour of traffic."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headway.simulate.cells import Cell, Sizes
from headway.simulate.devices import find_device
from headway.simulate.figures import figures
from headway.simulate.report import settings, values
from headway.simulate.shapes import find_model
from headway.simulate.synthetic import load_trace
from headway.simulate.workload import Mix, parse_shares
from tests.bench.scripts import script

flood = script("flood.py")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Every cell's figures, of a few requests each."""
    trace, cells = load_trace("poisson", 0, 6), {}
    for backlog in (0, 2):
        shares = parse_shares({"realtime": 0.9, "batch": 0.1})
        device, model = find_device("h100"), find_model("llama-3.1-8b")
        cell = Cell(device, model, "tiered", Sizes(), Mix(shares, backlog=backlog))
        recorder = cell.replay(trace)
        cells[backlog] = {
            "settings": settings(cell),
            "figures": values(figures(recorder, {})),
            "ttft_s": flood.realtime_ttft_s(recorder),
        }
    return {name: cells[2 if cell.mix.backlog else 0] for name, (cell, _) in flood.runs().items()}


def test_a_row_for_every_cell_and_what_batch_is_due(found: dict[str, Any]) -> None:
    lines = list(flood.table(found))
    rows = [line for line in lines if line.startswith("|")][2:]
    assert len(rows) == len(flood.runs()) - 1 - len(flood.MORE), "batch alone has a sentence"
    busy = found["u0.11-alone"]["figures"]["busy"]
    assert f"100% ({0.85 * (1 - busy):.0%})" in rows[1]
    assert "realtime alone" in rows[0] and rows[0].endswith("|  |  |")


def test_a_tail_is_compared_by_request() -> None:
    alone_s = [0.01 + 0.0001 * (i % 97) for i in range(400)]
    twice_s = [2 * seconds for seconds in alone_s]
    assert flood.tail_ratio(alone_s, twice_s) == "2.00 (2.00 to 2.00), of 400 requests"
    said = flood.tail_ratio([*alone_s, None, 0.3], [*alone_s, 0.1, 0.9])
    assert said.startswith("1.00 (1.00 to ") and said.endswith("of 401 requests")


def test_rows_of_cells_that_are_not_there_are_left_out(found: dict[str, Any]) -> None:
    some = {name: cell for name, cell in found.items() if not name.startswith("u0.30")}
    del some["u0.11-weighted"]
    lines, whole = list(flood.table(some)), list(flood.table(found))
    assert lines[0] == whole[0]
    assert sum(line.startswith("- u") for line in lines) == len(flood.RATES) - 1
    others = sum(name.startswith("u0.30") for name in found) + 1 + 1  # weighted, and a ratio
    assert len(lines) == len(whole) - others


def test_nothing_but_what_is_between_the_markers_is_written(
    found: dict[str, Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{flood.BEGIN}\nold\n{flood.END}\n\nafter\n")
    for _ in range(2):
        flood.write(page, flood.table(found))
    text = page.read_text()
    assert text.startswith(f"before\n\n{flood.BEGIN}\n\nBatch alone")
    assert text.endswith(f" requests\n\n{flood.END}\n\nafter\n") and "old" not in text
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="markers"):
        flood.write(page, flood.table(found))


def test_the_plots_show_the_cells_of_the_highest_rate(
    found: dict[str, Any], tmp_path: Path
) -> None:
    flood.draw(found, tmp_path)
    for name in ("flood-trade.svg", "flood-ttft.svg"):
        drawn = ElementTree.parse(tmp_path / name).getroot()
        words = [element.text for element in drawn.iter() if element.tag.endswith("text")]
        assert words.count("tiered, 2 batch") >= 1


def test_a_cell_that_was_simulated_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, (cell, _)), *_ = flood.runs().items()
    monkeypatch.setattr(flood, "runs", lambda: {name: (cell, 3), "other": (cell, 3)})
    assert flood.simulate(name, "poisson", tmp_path).startswith(name)
    assert list(flood.read(tmp_path)) == [name]
