"""Settings: four places, one declaration, and a page that follows from it."""

import tomllib
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.arguments import parse
from headway.cli.reference import reference
from headway.cli.serve_options import SERVE_OPTIONS
from headway.cli.settings import Origin, Setting, namespace, places, resolve, shown
from headway.errors import ConfigError
from tests.packaging.project import ROOT


def settings(line: str = "", environment: dict[str, str] | None = None) -> dict[str, Setting]:
    flags = parse(["serve", *line.split()])
    found = resolve(SERVE_OPTIONS, places(flags, environment or {}))
    return {setting.option.name: setting for setting in found}


def written(folder: Path, text: str) -> str:
    path = folder / "headway.toml"
    path.write_text(text)
    return str(path)


def test_the_command_line_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, 'port = 1\nthreads = 1\nkv-blocks = 1\nlanes = "split"')
    environment = {"HEADWAY_PORT": "2", "HEADWAY_THREADS": "2", "HEADWAY_CONFIG": file}
    found = settings("--port 3", environment)
    origins = {name: (found[name].value, found[name].origin) for name in ("port", "threads")}
    assert origins == {"port": (3, Origin.FLAG), "threads": (2, Origin.ENVIRONMENT)}
    assert (found["kv-blocks"].value, found["kv-blocks"].origin) == (1, Origin.FILE)
    assert found["lanes"].value == "split"
    assert (found["block-size"].value, found["block-size"].origin) == (16, Origin.DEFAULT)
    assert found["max-seqs"].value is None


def test_the_flag_names_the_file_before_the_environment_does(tmp_path: Path) -> None:
    file = written(tmp_path, "threads = 7")
    found = settings(f"--config {file}", {"HEADWAY_CONFIG": "/no/such/file"})
    assert found["threads"].value == 7


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("kv-block = 5", "did you mean kv-blocks?"),
        ("frobnicate = 5", "frobnicate, which is no setting"),
        ("[serve]\nport = 5", "serve, which is no setting"),
        ("port = 'x'", "port in"),
        ("port = true", "not of the right type"),
        ("port = [1]", "not of the right type"),
        ("no-batches = 1", "not of the right type"),
        ("served-model-name = [1]", "not of the right type"),
        ("kv-blocks = 0", "less than 1"),
        ("drain-timeout = -1", "no number of seconds"),
        ("drain-timeout = nan", "no number of seconds"),
        ("lanes = 'twisted'", "unified, split, auto"),
        ("host = ''", "it is empty"),
        ("port = ", "is not TOML"),
        ("port = '\xff'", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "headway.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        settings(f"--config {path}")
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match="/no/such/file can't be read"):
        settings("--config /no/such/file")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("HEADWAY_THREDS", "3", "did you mean HEADWAY_THREADS?"),
        ("HEADWAY_THREADS", "many", "HEADWAY_THREADS: 'many' is no whole number"),
        ("HEADWAY_NO_BATCHES", "1", "neither true nor false"),
        ("HEADWAY_PORT", "tcpx", "is no port"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings("", {name: text})
    assert reason in str(caught.value)


def test_what_kubernetes_sets_for_a_service_of_this_name_is_passed_over() -> None:
    environment = {
        "HEADWAY_SERVICE_HOST": "10.0.0.1",
        "HEADWAY_PORT": "tcp://10.0.0.1:8000",
        "HEADWAY_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert settings("", environment)["port"].origin is Origin.DEFAULT


def test_lists_and_switches_in_every_place(tmp_path: Path) -> None:
    file = written(tmp_path, 'served-model-name = ["a", "b"]\nno-batches = true')
    found = settings(f"--config {file} --cors-origin https://x,https://y")
    assert found["served-model-name"].value == ("a", "b")
    assert found["no-batches"].value is True
    assert found["cors-origin"].value == ("https://x", "https://y")
    assert settings("--no-batches")["no-batches"].value is True
    assert settings("", {"HEADWAY_NO_BATCHES": "false"})["no-batches"].value is False


def test_what_is_shown_can_be_read_back(tmp_path: Path) -> None:
    line = "odd\\name\t.gguf"
    flags = ["--served-model-name", 'a,b"c', "--itl-target", ".5", "--data-quota", "1e1"]
    flags += ["--no-batches", "--drain-timeout", "2.50"]
    given = resolve(SERVE_OPTIONS, places(parse(["serve", line, *flags]), {}))
    text = "\n".join(shown(given))
    assert "drain-timeout = 2.5  # command line" in text
    file = written(tmp_path, text)
    again = resolve(SERVE_OPTIONS, places(parse(["serve", "--config", file]), {}))
    assert namespace(again) == namespace(given)
    assert tomllib.loads(text)["model"] == line


def test_config_show_hides_the_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "sesame")
    assert main(["config", "show", "--kv-blocks", "64"]) == 0
    out = capsys.readouterr().out
    assert "kv-blocks = 64  # command line" in out
    assert "# api-key is not shown  # environment" in out
    assert "sesame" not in out


def test_config_show_refuses_what_serve_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--tls-cert", "x.pem"]) == 2
    assert "--tls-cert and --tls-key go together" in capsys.readouterr().err


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert page == reference(), "headway config reference > docs/configuration.md"
    assert all(f"| `{option.name}`" in page for option in SERVE_OPTIONS)


def test_a_file_without_a_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="HEADWAY_CONFIG is empty"):
        settings("", {"HEADWAY_CONFIG": ""})
