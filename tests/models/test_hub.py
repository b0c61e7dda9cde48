"""Models from a hub, here one on 127.0.0.1."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import DownloadError
from headway.models.hub import pull_hub
from headway.models.loader import load_model
from tests.models.fake_hub import fake_hub
from tests.models.writers import tiny_folder, tiny_gguf


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hub")
    gguf = tiny_gguf(folder / "tiny.gguf").read_bytes()
    whole = {path.name: path.read_bytes() for path in tiny_folder(folder / "m").iterdir()}
    repositories = {
        "org/folder": {**whole, "README.md": b"#", "original/x.json": b"{}", "big.bin": b"0"},
        "org/one": {"tiny.gguf": gguf, "README.md": b"#"},
        "org/two": {"a.gguf": gguf, "sub/b.gguf": gguf},
        "org/none": {"README.md": b"#"},
    }
    with fake_hub(repositories) as address:
        yield address


def test_a_folder(endpoint: str, tmp_path: Path) -> None:
    said: list[str] = []
    path = pull_hub("hf:org/folder", endpoint, tmp_path, said.append)
    assert load_model(path).weights.config.layers == 2
    assert sorted(file.name for file in path.rglob("*") if file.is_file()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert said == [f"hf:org/folder: {path}"]


def test_without_the_hub_one_line_says_so_at_once(
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pulled = pull_hub("hf:org/two:a.gguf", endpoint, tmp_path)
    monkeypatch.setattr("headway.models.hub.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for spec in ("hf:org/folder", "hf:org/two:sub/b.gguf"):
        with pytest.raises(DownloadError, match=r"127\.0\.0\.1 can't be reached: .*refused"):
            pull_hub(spec, nowhere, tmp_path)
    assert pull_hub("hf:org/two:a.gguf", nowhere, tmp_path) == pulled  # it is in the cache
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("spec", ["hf:org/one", "org/one", "hf:org/two:sub/b.gguf"])
def test_a_file(endpoint: str, tmp_path: Path, spec: str) -> None:
    path = pull_hub(spec, endpoint, tmp_path)
    assert path.suffix == ".gguf"
    assert load_model(path).weights.config.layers == 2


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("hf:org/two", r"choose a file.*a\.gguf, sub/b\.gguf"),
        ("hf:org/none", "neither safetensors nor"),
        ("hf:org/missing", "hf:org/missing: "),
        ("hf:org/one:absent.gguf", "hf:org/one: "),
        ("hf:org", "ORG/REPO"),
        ("hf:a/b/c", "ORG/REPO"),
        ("hf:org/one:", "ORG/REPO"),
        ("hf:../x", "ORG/REPO"),
        ("hf:org/one:../../x", "ORG/REPO"),
    ],
)
def test_what_can_t_be_had(endpoint: str, tmp_path: Path, spec: str, reason: str) -> None:
    with pytest.raises(DownloadError, match=reason) as error:
        pull_hub(spec, endpoint, tmp_path)
    assert "\n" not in str(error.value)


def test_the_address_comes_from_hf_endpoint(endpoint: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
    code = "from headway.models.hub import pull_hub; print(pull_hub('hf:org/one'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r"pip install 'headway\[hub\]'"):
        pull_hub("hf:org/one")
