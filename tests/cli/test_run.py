"""`headway run` on a tiny random model."""

import json
import sys
from contextlib import ExitStack
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.run import _opened
from headway.models.quant import Encoding
from tests.models.writers import TINY_WIDE, tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return str(tiny_gguf(path, TINY_WIDE, Encoding.Q8_0))


def test_lines_are_answered_in_order(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text(
        '"hello"\n\n{"prompt": "hello", "id": "b", "max_tokens": 2}\n{"prompt": 5}\n'
    )
    flags = ["--model", model, "--max-tokens", "3", "--kv-blocks", "64"]
    assert main(["run", str(prompts), "-o", str(answers), *flags]) == 1
    first, second, wrong = map(json.loads, answers.read_text().splitlines())
    assert first["usage"]["completion_tokens"] <= 3
    assert first["text"].startswith(second["text"])
    assert (second["id"], second["usage"]["completion_tokens"]) == ("b", 2)
    assert wrong["error"] == "'prompt' is text or a list of token ids"
    assert "2 answered, 1 failed" in capsys.readouterr().err


def test_a_file_that_is_no_text_takes_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(b"\xff\xfe\n")
    assert main(["run", str(prompts), "-o", "-", "--model", model]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "UTF-8" in err


def test_standard_output_is_utf_8_whatever_the_locale(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, raw = tmp_path / "prompts.jsonl", BytesIO()
    prompts.write_text('{"\N{GLOWING STAR}": 1}\n', encoding="utf-8")
    out = TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    assert main(["run", str(prompts), "-o", "-", "--model", model, "--kv-blocks", "64"]) == 1
    assert "\N{GLOWING STAR}" in json.loads(raw.getvalue())["error"]


def test_a_run_that_is_killed_keeps_the_answers_it_has_given(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    with ExitStack() as stack:
        _opened(stack, str(answers), "w", sys.stdout).write("an answer\n")
        assert answers.read_text() == "an answer\n"


def test_answers_never_overwrite_the_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, link = tmp_path / "prompts.jsonl", tmp_path / "link.jsonl"
    prompts.write_text('"hello"\n')
    link.symlink_to(prompts)
    assert main(["run", str(prompts), "-o", str(link)]) == 2
    assert prompts.read_text() == '"hello"\n'
    assert "overwrite" in capsys.readouterr().err


def test_a_mistyped_model_leaves_yesterdays_answers_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('"hello"\n')
    answers.write_text("yesterday's")
    assert main(["run", str(prompts), "-o", str(answers), "--model", "nothing.gguf"]) == 2
    assert answers.read_text() == "yesterday's"
    assert capsys.readouterr().err.count("\n") == 1


def test_a_full_disk_takes_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello", "max_tokens": 1}\n')
    assert main(["run", str(prompts), "-o", "/dev/full", "--model", model]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("headway: /dev/full: No space")


@pytest.mark.parametrize(
    ("flag", "most"),
    [
        ("--kv-blocks", "2,147,483,647"),
        ("--host-blocks", "2,147,483,647"),
        ("--max-seqs", "65,536"),
    ],
)
def test_sizes_beyond_all_measure_take_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, most: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"hello"\n')
    flags = [flag, "9" * 20, "--max-step-tokens", "512"]
    assert main(["run", str(prompts), "-o", "-", "--model", model, *flags]) == 2
    assert f"at most {most}" in capsys.readouterr().err
