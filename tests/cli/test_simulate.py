"""`headway simulate`: a table, JSON, a plot, capacity planning, and one line for what is wrong."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from headway.cli import main

SMALL = ["simulate", "--trace", "poisson:6", "--max-requests", "20", "--jobs", "1"]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,7\n"


def status_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def test_table_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    flags = [
        "--policy",
        "tiered,fcfs",
        "--rate-scale",
        "2",
        "--layer-group",
        "8",
        "--json",
        str(out),
        "--plot",
        str(plot),
    ]
    assert main([*SMALL, *flags]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("simulated: llama-3.1-8b on h100") == 2
    assert "realtime" in printed.out
    assert "standard TTFT by prompt tokens: <= " in printed.out
    assert "2 of 2 done" in printed.err
    document = json.loads(out.read_text())
    assert document["simulated"] is True
    assert [cell["settings"]["policy"] for cell in document["cells"]] == ["tiered", "fcfs"]
    classes = document["cells"][0]["figures"]["classes"]
    assert sum(c["requests"] for c in classes.values()) == 20
    assert len(classes["standard"]["ttft"]["levels"]) == 101
    assert [q["tail"] for q in classes["standard"]["quartiles"]] == ["p90"] * 4
    device = document["cells"][0]["settings"]["device"]
    assert device["efficiency"]["matmul"] == 0.6
    assert device["layer_group"] == 8
    root = ElementTree.fromstring(plot.read_text())
    lines = [e for e in root.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2 * 3 * len(classes)


def test_few_requests_carry_no_p99(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--classes", "realtime=1"]) == 0
    row = next(x for x in capsys.readouterr().out.splitlines() if x.split()[:1] == ["realtime"])
    assert [field.count("/") for field in row.split()[2:5]] == [2, 2, 2]
    assert all(field.endswith("/-") for field in row.split()[2:5])


def test_a_trace_file_is_named_by_its_digest(tmp_path: Path) -> None:
    trace, out = tmp_path / "conv.csv", tmp_path / "out.json"
    trace.write_text(AZURE)
    assert main(["simulate", "--trace", str(trace), "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["trace"]["name"] == "conv"
    assert len(document["trace"]["sha256"]) == 64


def test_the_largest_rate_that_meets_targets(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--slo", "realtime.ttft=0.3", "--classes", "realtime=1", "--policy", "fcfs"]
    assert main([*SMALL, *flags]) == 0
    printed = capsys.readouterr()
    assert "requests/s" in printed.out
    assert "met" in printed.err
    assert "p90" in printed.err


def test_targets_that_no_rate_meets(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--slo", "realtime.itl=0.001", "--classes", "realtime=1"]
    assert main([*SMALL, *flags, "--max-requests", "2"]) == 1
    assert "no rate meets" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--device", "tpu"], "h100"),
        (["--model", "gpt-9"], "llama-3.1-8b"),
        (["--policy", "best"], "policy 'best'"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--trace", "poisson:-1"], "poisson"),
        (["--classes", "vip=1"], "vip"),
        (["--classes", "realtime=0"], "shares"),
        (["--classes", "realtime"], "NAME=NUMBER"),
        (["--slo", "realtime.e2e=1"], "CLASS.ttft"),
        (["--objectives", "realtime.ttft=0"], "CLASS.ttft"),
        (["--slo", "realtime.ttft=1", "--policy", "fcfs,tiered"], "one value each"),
        (["--lanes", "split:1"], "units left for both"),
        (["--lanes", "three"], "unified, auto or split"),
        (["--rate-scale", "0"], "positive"),
        (["--max-seqs", "0"], "less than 1"),
        (["--max-step-tokens", "100"], "max step tokens"),
        (["--kv-blocks", "many"], "whole number"),
        (["--calibrate", "nowhere.json"], "nowhere.json"),
        (["--json", "/nowhere/out.json"], "/nowhere/out.json"),
    ],
)
def test_what_is_wrong_takes_one_line_and_status_2(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of([*SMALL, "--max-requests", "2", *flags]) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if not x.endswith(("%", "one core"))]
    assert len(lines) == 1
    assert reason in lines[0]


def test_requests_that_could_never_fit_are_counted_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of([*SMALL, "--max-requests", "2", "--kv-blocks", "1"]) == 0
    printed = capsys.readouterr().out
    assert "0 -1" in printed or "0 -2" in printed
    assert "could never fit" in printed


def test_an_output_that_cannot_be_written_is_known_before_the_simulation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of([*SMALL, "--max-requests", "2", "--plot", "/nowhere/out.svg"]) == 2
    said = "headway: /nowhere/out.svg can't be written: No such file or directory\n"
    assert capsys.readouterr() == ("", said)


def test_a_malformed_trace_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "conv.csv"
    trace.write_text(AZURE + "2023-11-16 18:15:47,many,7\n")
    assert main(["simulate", "--trace", str(trace)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "conv.csv:3:" in line
