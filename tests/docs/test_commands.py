"""Every command that a document shows exists; every block is run, or says what a test lacks."""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from headway.cli.arguments import parse
from tests.docs.blocks import LANGUAGES, Block, blocks, inline_commands
from tests.packaging.project import ROOT

BLOCKS = blocks()
SHELL = [block for block in BLOCKS if block.language == "sh"]
RUN = [block for block in BLOCKS if block.language in ("sh", "python") and not block.why]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SHORTER = {
    "--seconds 75": "--seconds 5 --warmup 1",
    "rate=0.3,": "rate=3,",
    "streams=32,prompt=190,answer=128": "streams=2,prompt=30,answer=8",
}
"""A load is shown as large as it should be, and run for a moment."""

# Stands before each shell block: servers are there already, clients are told where.
PRELUDE = """
headway() {
  case "$1" in
    serve) ;;
    batch) command headway "$1" "$2" --url "$URL" "${@:3}" ;;
    explain) command headway "$@" --url "$URL" ;;
    *) command headway "$@" ;;
  esac
}
"""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block.name))
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES


@pytest.mark.parametrize("block", SHELL, ids=lambda block: str(block.name))
def test_commands_of_blocks_exist(block: Block) -> None:
    for command in block.commands():
        expect_to_exist(command)


@pytest.mark.parametrize(("document", "command"), inline_commands())
def test_commands_in_sentences_exist(document: str, command: str) -> None:
    expect_to_exist(command)


def expect_to_exist(command: str) -> None:
    """Fail where a `headway` command is not in the grammar, a target not in the Makefile, a script
    not in the tree or without an option shown."""
    words = shlex.split(command.split("|")[0].rstrip("& "))
    while words and re.fullmatch(r"[A-Z]\w*=.*", words[0]):
        words.pop(0)
    if not words:
        return
    program = Path(words[0]).name
    if program == "headway":
        expect_headway(words[1:])
    elif program == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert set(targets) <= TARGETS, f"no such target: {targets}"
    elif program == "python" and words[1:2] != ["-m"] and words[1:]:
        script = ROOT / words[1]
        assert script.exists(), f"no such script: {words[1]}"
        text = script.read_text()
        for flag in (word.partition("=")[0] for word in words[2:] if word.startswith("--")):
            assert f'"{flag}"' in text, f"{words[1]} has no {flag}"


def expect_headway(words: list[str]) -> None:
    """A whole command line parses; one cut short (`headway keys`) is the beginning of one."""
    whole = [word for word in words if word not in ("…", "...")]
    shown = [re.sub(r"^\[(.*)\]$", r"\1", word) for word in whole]
    try:
        parse(shown)
    except SystemExit as end:
        if end.code in (0, None):
            return
        names = [word for word in shown if not word.startswith("-")]
        said = io.StringIO()
        with redirect_stdout(said), pytest.raises(SystemExit) as asked:
            parse([*names, "--help"])
        assert asked.value.code == 0, f"headway {' '.join(shown)} is no command"
        unknown = [w for w in shown if w.startswith("-") and w not in said.getvalue()]
        assert not unknown, f"headway {' '.join(names)} has no {', '.join(unknown)}"


@pytest.fixture(scope="module")
def url(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the embedded model."""
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, "-m", "headway", "serve", "--port", "0", "--kv-blocks", "1024"]
    command += ["--data-dir", str(folder / "data"), "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line for line in process.stdout if "Ready on " in line).split()[2]
        finally:
            process.terminate()


@pytest.mark.parametrize("block", RUN, ids=lambda block: str(block.name))
def test_blocks_run(block: Block, url: str, tmp_path: Path) -> None:
    if "curl " in block.text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    text = block.text.replace("http://127.0.0.1:8000", url)
    for shown, run in SHORTER.items():
        text = text.replace(shown, run)
    (tmp_path / "requests.jsonl").write_text(
        '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": '
        '"smollm2", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}}\n'
    )
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The capital of France is"}\n')
    if block.language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", PRELUDE + text]
    else:
        command = [sys.executable, "-c", f"import openai\n{text}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "URL": url, "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_run_says_why() -> None:
    reasons = {block.why for block in BLOCKS if block.why}
    assert all(len(reason) > 3 for reason in reasons)
