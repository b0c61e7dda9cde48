"""What stands between our figures and the tables of docs/benchmarks.md, without any peer."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from tests.bench.scripts import script
from tests.packaging.project import ROOT

page = script("peers/page.py")
compare = script("peers/compare.py")
footprint = script("peers/footprint.py")
mixed_tables = script("peers/mixed_tables.py")
servers = script("peers/servers.py")
plots = script("plots.py")


def parsed(*words: str) -> argparse.Namespace:
    """Settings as the scripts take them."""
    parser = argparse.ArgumentParser()
    servers.add_arguments(parser)
    return parser.parse_args(["model.gguf", *words])


def test_q4_1_tensors_become_q4_0_and_all_else_stays(tmp_path: Path) -> None:
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    for name, kind in (("a", "Q4_1"), ("b", "Q8_0")):
        kind_ = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(values, kind_), raw_dtype=kind_)
    writer.add_tensor("norm", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    script("peers/q4_0_gguf.py").requantise(source, out)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(out)
    a, b, norm = after.tensors
    assert [t.tensor_type.name for t in (a, b, norm)] == ["Q4_0", "Q8_0", "F32"]
    largest = np.abs(values).reshape(-1, 32).max(axis=1)
    error = np.abs(dequantize(a.data, a.tensor_type) - values).reshape(-1, 32)
    assert (error <= largest[:, None] / 8 * 1.01).all()
    assert (b.data == before.tensors[1].data).all()
    assert (norm.data == values[0]).all()
    kept = {n: f.contents() for n, f in before.fields.items() if not n.startswith("GGUF.")}
    kept["general.file_type"] = gguf.LlamaFileType.MOSTLY_Q4_0
    assert {n: f.contents() for n, f in after.fields.items() if n in kept} == kept
    assert set(tmp_path.iterdir()) == {source, out}


def distribution(folder: Path, name: str, size: int, *requires: str) -> None:
    """An installed package of one file, its bytecode beside it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
    (folder / f"{name}.py").write_bytes(b"#" * size)
    (folder / "__pycache__").mkdir(exist_ok=True)
    (folder / "__pycache__" / f"{name}.pyc").write_bytes(b"#" * 999)
    (info / "RECORD").write_text(f"{name}.py,,\n__pycache__/{name}.pyc,,\n{name}.gone,,\n")


def test_installed_counts_what_is_required_and_nothing_else(tmp_path: Path) -> None:
    distribution(tmp_path, "peer", 1000, 'Deep_Er[fast]>=1; python_version > "3"', "absent")
    distribution(tmp_path, "deep_er", 100, 'fast; extra == "fast"', 'slow; extra == "slow"', "peer")
    distribution(tmp_path, "fast", 10)
    distribution(tmp_path, "slow", 5)
    distribution(tmp_path, "unrelated", 5)
    command = [sys.executable, str(ROOT / "bench/peers/installed.py")]
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, "peer"], env=environment, capture_output=True, text=True)
    assert json.loads(done.stdout) == {
        "bytes": 1110,
        "versions": {"deep-er": "1.0", "fast": "1.0", "peer": "1.0"},
    }
    done = subprocess.run([*command, "nobody"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "not installed: nobody\n"


def test_headway_installed_in_place_counts_its_sources() -> None:
    command = [sys.executable, str(ROOT / "bench/peers/installed.py"), "headway"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    own = sum(f.stat().st_size for f in (ROOT / "headway").rglob("*.py"))
    assert found["bytes"] > own + 10_000_000  # numpy alone
    assert {"headway", "numpy", "fastapi", "uvicorn"} <= set(found["versions"])
    assert not {"pytest", "mypy", "ruff", "torch"} & set(found["versions"])


def process(proc: Path, number: int, parent: int, pss_kb: int) -> None:
    """A process as the kernel shows it, with a name that is hard to read."""
    (proc / f"{number}").mkdir()
    (proc / f"{number}/stat").write_text(f"{number} (a ) (b) S {parent} 0 0\n")
    (proc / f"{number}/smaps_rollup").write_text(
        f"00-ff ---p 0 0 0 [rollup]\nRss: 9 kB\nPss: {pss_kb} kB\n"
    )


def test_memory_is_that_of_a_process_and_its_descendants(tmp_path: Path) -> None:
    for number, parent, pss_kb in ((10, 1, 1000), (11, 10, 2000), (12, 11, 4000), (13, 1, 8000)):
        process(tmp_path, number, parent, pss_kb)
    (tmp_path / "self").mkdir()
    assert footprint.memory_mb(10, tmp_path) == pytest.approx(7000 * 1024 / 1e6)
    (tmp_path / "12/smaps_rollup").unlink()
    assert footprint.memory_mb(10, tmp_path) == pytest.approx(3000 * 1024 / 1e6)


def test_memory_of_real_processes_grows_with_them() -> None:
    code = "import time; held = bytearray(50_000_000); print('ready', flush=True); time.sleep(60)"
    shell = ["sh", "-c", f'{sys.executable} -c "{code}"; true']
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        held.stdout.readline()
        assert footprint.memory_mb(held.pid) > 50
        child = list(footprint.family(held.pid, Path("/proc")))[1]
        os.kill(child, signal.SIGTERM)


def test_headway_itself_has_a_footprint(smollm2_path: Path, tmp_path: Path) -> None:
    settings = parsed()
    settings.out, settings.seconds, settings.warmup = tmp_path, 1.0, 0.1
    with socket.socket() as anywhere:
        anywhere.bind(("127.0.0.1", 0))
        settings.port = anywhere.getsockname()[1]
    server = servers.headway(str(smollm2_path), 4, 50)
    found = footprint.measure(server, 0, settings)
    assert found.first_token_s > 0.1
    assert 50 < found.idle_mb <= found.loaded_mb * 1.2
    (row,) = list(footprint.table([found], {server.name: footprint.Installed.of(server)}))[2:]
    assert row.startswith("| Headway, ITL target 50 ms | ")


def test_a_server_that_is_there_already_is_not_measured_in_anothers_place(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = servers.headway("no such model", 4, 50)
        with (
            pytest.raises(SystemExit, match=f"port {port} is taken"),
            servers.running(server, port, tmp_path / "log"),
        ):
            pass
    assert not (tmp_path / "log").exists()


def cell(server: str, turn: int, u: float, flood: bool, **figures: Any) -> Any:
    """A measurement, its figures chosen."""
    given = {
        "requests": 100,
        "errors": 0,
        "ttft_p50": 40.0,
        "ttft_p90": 60.0,
        "ttft_levels": tuple(range(101)),
        "itl_p50": 10.0,
        "itl_p99": 30.0,
        "batch_tokens_per_s": 0.0,
        "doubts": "",
    }
    return mixed_tables.Cell(server, turn, u, flood, **(given | figures))


def cells(requests: int = 100) -> list[Any]:
    """Two servers, three rounds, one u."""
    found = []
    for turn in range(3):
        for place, server in enumerate(("Headway, ITL target 20 ms", "other")):
            found += [
                cell(server, turn, 0.0, True, requests=0, batch_tokens_per_s=1000.0),
                cell(server, turn, 0.25, False, requests=requests, ttft_p50=40.0 + turn),
                cell(
                    server,
                    turn,
                    0.25,
                    True,
                    requests=requests,
                    ttft_p50=50.0 + 1000 * place,
                    batch_tokens_per_s=600.0 + 10 * turn,
                    errors=place,
                ),
            ]
    return found


def test_tables_of_the_mixed_load_show_medians_and_intervals() -> None:
    lines = list(mixed_tables.tables(cells()))
    (ours,) = [line for line in lines if line.startswith("| 0.25 | Headway") and "41.0" in line]
    assert "| 41.0 (40.0 to 42.0) | 50.0 (50.0 to 50.0) |" in ours
    assert "| - | - |" in ours  # 300 requests carry no p99
    (theirs,) = [line for line in lines if "| 1,050 (1,050 to 1,050) |" in line]
    assert "other (3 errors)" in theirs
    shares = [line for line in lines if "| 0.61 (0.60 to 0.62) | 0.81 (0.80 to 0.83) |" in line]
    assert len(shares) == 2


def test_p99_is_shown_where_enough_requests_carry_it() -> None:
    assert mixed_tables.p99_of_all(cells(200)[1:2] * 2) == "-"
    assert mixed_tables.p99_of_all(cells(500)[1:2]) == "99.0"


def test_a_cell_is_read_from_what_the_load_client_writes() -> None:
    spread = {"p50": 0.04, "p90": 0.05, "p99": 0.06, "levels": [0.03, 0.06]}
    seen = {"requests": 7, "errors": {"status 500": 2}, "ttft": spread, "itl": spread}
    batch = {"tokens_per_s": 5.0, "errors": {"empty": 1}}
    said = {"doubts": ["late"], "classes": {"realtime": seen, "batch": batch}}
    one = mixed_tables.Cell.of("s", 0, 0.1, True, said)
    assert (one.requests, one.errors, one.ttft_p90, one.itl_p99) == (7, 3, 50.0, 60.0)
    assert (one.batch_tokens_per_s, one.doubts, one.ttft_levels) == (5.0, "late", (30.0, 60.0))
    alone = mixed_tables.Cell.of("s", 0, 0.0, True, {"doubts": [], "classes": {"batch": batch}})
    assert (alone.requests, alone.ttft_p50) == (0, 0.0)


def test_the_trade_off_is_drawn_with_a_point_for_each_case() -> None:
    seen = [vars_of(one) for one in cells()]
    root = ElementTree.fromstring(plots.drawing(plots.mixed(seen)))
    assert len(root.findall(".//{*}circle")) == 2
    words = [element.text for element in root.findall(".//{*}text")]
    assert {"Headway", "other", "u 0.25"} <= set(words)


def vars_of(one: Any) -> dict[str, Any]:
    """A cell as mixed.json has it."""
    return {name: getattr(one, name) for name in type(one).__slots__}


def test_the_ratio_is_to_the_best_peer_of_rounds_that_were_left_alone() -> None:
    figures = {"prefill": {"headway": [10.0, 20.0], "a": [5.0, 40.0], "b": [8.0, 1.0]}}
    assert compare.to_best_peer(figures["prefill"], [True, False]) == [1.25]
    assert compare.to_best_peer(figures["prefill"], [False, False]) == [1.25, 0.5]
    assert compare.to_best_peer({"headway": [1.0]}, [True]) == []
    assert "| 10 (10 to 10) | 5 (5 to 5) |" in compare.table(figures, {"prefill": [True, False]})


def measured(out: Path) -> None:
    """What the three parts leave behind."""
    for part in page.PARTS:
        about = {"machine": "a machine", "date": "2026-01-01", "command": f"python {part}"}
        (out / f"{part}.about.json").write_text(json.dumps(about))
    raw = {"figures": {"decode-1": {"headway": [1.0], "peer": [2.0]}}, "kept": {"decode-1": [True]}}
    (out / "raw.json").write_text(json.dumps(raw))
    (out / "mixed").mkdir()
    mixed = {"rates": {"0.25": 1.5}, "cells": [vars_of(one) for one in cells()]}
    (out / "mixed/mixed.json").write_text(json.dumps(mixed))
    start = {"server": "S", "turn": 0, "first_token_s": 1.5, "idle_mb": 200.0, "loaded_mb": 300.0}
    disk = {"S": {"bytes": 5_000_000, "versions": {"headway": "1", "torch": "2", "numpy": "3"}}}
    (out / "footprint").mkdir()
    (out / "footprint/footprint.json").write_text(
        json.dumps({"starts": [start], "installed": disk})
    )


def test_the_page_is_written_between_its_markers(tmp_path: Path) -> None:
    out, document = tmp_path / "out", tmp_path / "docs" / "page.md"
    out.mkdir()
    document.parent.mkdir()
    measured(out)
    before = f"Above.\n{page.BEGIN}\nold\n{page.END}\nBelow.\n"
    document.write_text(before)
    command = [sys.executable, str(ROOT / "bench/peers/page.py"), "secret/folder/m.gguf"]
    command += ["--out", str(out), "--page", str(document), "--parts", "none"]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True)
        text = document.read_text()
        assert text.startswith(f"Above.\n{page.BEGIN}\n")
        assert text.endswith(f"{page.END}\nBelow.\n")
        assert text.count("a machine; 2026-01-01.") == 1
    assert "old" not in text
    assert "A peer is ahead in: decode-1 (0.50 (0.50 to 0.50))." in text
    assert "Versions: torch 2, headway 1." in text
    assert "0.25 at 1.50 requests/s" in text
    assert "| S | 1.50 | 200 | 300 | 5.00 | 3 |" in text
    assert "python -m headway serve m.gguf" in text
    assert "secret" not in text
    assert str(ROOT) not in text
    assert (document.parent / "plots/peers-mixed.svg").exists()
    document.write_text("no markers")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "has no markers" in done.stderr


def test_commands_are_shown_without_places_of_this_machine(tmp_path: Path) -> None:
    vllm = str(tmp_path / "here/bin/python")
    Path(vllm).parent.mkdir(parents=True)
    Path(vllm).symlink_to(sys.executable)
    settings = parsed("--vllm", vllm, "--vllm-plugin", vllm, "--hf", "/there/folder")
    settings.out = tmp_path
    settings.model = "/there/model.gguf"
    for server in servers.chosen(settings, [50]):
        words = page.shown(page.words_of(server), settings)
        assert str(tmp_path) not in words
        assert "/there" not in words
        assert str(ROOT) not in words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["page.py", "m.gguf", "--parts", "raw,nothing"], "no such part: nothing"),
        (["compare.py", "m.gguf", "--vllm", sys.executable], "--hf FOLDER"),
        (["mixed.py", "m.gguf", "--out", "o", "--vllm", "nowhere/python"], "is no program"),
    ],
)
def test_wrong_words_are_one_line_and_status_2(words: list[str], said: str) -> None:
    command = [sys.executable, str(ROOT / "bench/peers" / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


def test_vllm_gets_what_its_manual_wants_loaded_first_where_it_is(tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    assert servers.preloaded(str(python), tmp_path) == {}
    for file in ("env/lib/libiomp5.so", "arch/libtcmalloc_minimal.so.4"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    found = servers.preloaded(str(python), tmp_path)["LD_PRELOAD"].split(":")
    assert [Path(file).name for file in found] == ["libtcmalloc_minimal.so.4", "libiomp5.so"]


def test_names_of_files_are_plain() -> None:
    assert servers.headway("m", 4, 50).slug == "headway-itl-target-50-ms"
    assert servers.vllm("p/bin/python", "f", 4, plugin=True).slug == "vllm-with-headway-s-scheduler"
