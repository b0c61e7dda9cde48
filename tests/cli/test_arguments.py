"""The command line: what is wrong is said in one line, with exit status 2."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.arguments import parse
from headway.cli.serve_config import resolved
from headway.config import AccessConfig, ServeConfig, api_key
from headway.errors import ConfigError


def status_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "COMMAND"),
        ("fly", "invalid choice"),
        ("serve --port x", "--port"),
        ("serve --port 70000", "--port"),
        ("serve --kv-blocks 0", "less than 1"),
        ("serve --kv-blocks 1.5", "whole number"),
        ("serve --host-blocks -1", "less than 0"),
        ("serve --itl-target 0", "milliseconds"),
        ("serve --itl-target nan", "milliseconds"),
        ("serve --ttft-target soon", "milliseconds"),
        ("serve --drain-timeout -1", "--drain-timeout"),
        ("serve --drain-timeout nan", "--drain-timeout"),
        ("serve --default-class vip", "vip"),
        ("serve --api-key=", "--api-key: it is empty"),
        ("serve --served-model-name=", "--served-model-name"),
        ("serve --served-model-name a,a", "a name twice"),
        ("serve --root-path llm", "--root-path"),
        ("serve --tls-cert x", "go together"),
        ("serve --tls-cert /no/x --tls-key /no/y --port 0", "/no/x"),
        ("serve --chat-template /no/such/file --port 0", "/no/such/file"),
        ("serve --chat-template /dev/zero --port 0", "larger than 1,048,576 bytes"),
        ("serve --config /no/such/file", "/no/such/file"),
        ("config", "VERB"),
        ("serve --no-such-flag", "--no-such-flag (see headway serve --help)"),
        ("keys list --no-such-flag", "--no-such-flag (see headway keys list --help)"),
        ("bench speed --no-such-flag", "--no-such-flag (see headway bench speed --help)"),
        ("vllm check --no-such-flag", "--no-such-flag (see headway vllm check --help)"),
        ("serve --host 0.0.0.0 --port 0", "give a key"),
        ("serve --port 0 --admin-port 0 --admin-host 0.0.0.0", "0.0.0.0 can be reached"),
        ("serve --host no.such.host.invalid --port 0", "no.such.host.invalid"),
        ("serve /no/such/model --port 0", "/no/such/model"),
        ("pull gpt-5", "gpt-5"),
        ("pull hf:nonsense", "nonsense"),
        ("pull smollm2 --from /no/such/file", "/no/such/file"),
        ("pull hf:a/b --from x.whl", "--from"),
        ("run", "PROMPTS.jsonl"),
        ("batch", "VERB"),
        ("batch submit", "FILE.jsonl"),
        ("batch submit /no/such/file", "/no/such/file"),
        ("batch status --url nonsense", "nonsense"),
        ("batch status --url http://[::1", "no URL"),
        ("batch status --url http://127.0.0.1:99999", "no URL"),
        ("explain --url http://127.0.0.1:x", "no URL"),
        ("batch status --url http://127.0.0.1:1", "can't be reached"),
        ("serve --data-dir x --no-batches", "--no-batches"),
        ("serve --data-quota 0", "gigabytes"),
        ("serve --port 0 --data-dir /proc/none", "/proc/none"),
        ("serve --host 192.0.2.1 --api-key x --port 0", "try another --host"),
        ("batch submit /dev/null", "/dev/null is empty"),
        ("explain last", "'last'"),
        (
            "explain --url http://127.0.0.1:1",
            "http://127.0.0.1:1 can't be reached: Connection refused",
        ),
        ("run /no/such/file -o out --model x", "/no/such/file"),
    ],
)
def test_what_is_wrong_takes_one_line(
    line: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_API_KEY", raising=False)
    assert status_of(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headway") and err.count("\n") == 1
    assert reason in err


def test_help_where_the_encoding_lacks_a_letter() -> None:
    command = [sys.executable, "-m", "headway", "serve", "--help"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"NAME[,NAME\\u2026]" in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--version"]) == 0
    assert capsys.readouterr().out == f"headway {version('headway')}\n"


def test_the_grammar_loads_nothing_heavy() -> None:
    program = (
        "import sys; from headway.cli.arguments import parse; parse(['serve']); "
        "print({'numpy', 'fastapi', 'pydantic', 'asyncio', 'tokenizers'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "set()\n"


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"    {command} " in out for command in ("serve", "run", "pull"))


def test_times_are_given_in_milliseconds_and_kept_in_seconds() -> None:
    settings = resolved(parse(["serve", "--itl-target", "50", "--ttft-target", "200"]))
    assert (settings.itl_target, settings.ttft_target) == (0.05, 0.2)


def test_the_key_given_beats_the_environment() -> None:
    environment = {"HEADWAY_API_KEY": "from environment"}
    assert api_key(None, environment) == "from environment"
    assert api_key("given", environment) == "given"
    assert api_key(None, {}) is None


def test_an_empty_key_in_the_environment_is_refused_rather_than_ignored() -> None:
    with pytest.raises(ConfigError):
        AccessConfig(api_key(None, {"HEADWAY_API_KEY": ""}))


def test_a_key_is_not_in_the_representation() -> None:
    assert "secret" not in repr(ServeConfig(access=AccessConfig("secret")))


def test_pull_names_the_file_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "other.gguf"
    broken.write_bytes(b"GGUF")
    assert status_of(["pull", "smollm2", "--from", str(broken)]) == 2
    assert f"{broken} is broken: its SHA-256" in capsys.readouterr().err
