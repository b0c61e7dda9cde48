"""scripts/venv installs with uv where it is there, but never past pip's own settings."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.project import ROOT


def write_echo(path: Path) -> None:
    """A program that prints its name and arguments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\necho "${0##*/} $*"\n')
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with `bin` for PATH (uv among it) and an environment `env`."""
    write_echo(tmp_path / "bin/uv")
    write_echo(tmp_path / "env/bin/python")
    for name in ("env", "grep"):
        real = shutil.which(name)
        assert real is not None
        (tmp_path / "bin" / name).symlink_to(real)
    return tmp_path


def install(machine: Path, **settings: str) -> str:
    """What `scripts/venv install` runs under `settings`."""
    run = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts/venv"), "install", str(machine / "env"), "numpy"],
        env={"PATH": str(machine / "bin"), "HOME": str(machine), **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout


def test_uv_is_used_where_it_is_set_up(machine: Path) -> None:
    settings = {"PIP_INDEX_URL": "https://mirror.test", "UV_INDEX_URL": "https://mirror.test"}
    assert (
        install(machine, **settings) == f"uv pip install --python {machine}/env/bin/python numpy\n"
    )


def test_pip_is_used_where_only_pip_is_set_up(machine: Path) -> None:
    assert install(machine, PIP_INDEX_URL="https://mirror.test").startswith("python -m pip install")
    settings = machine / ".config/pip/pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text("[global]\nindex-url = https://mirror.test\n")
    assert install(machine).startswith("python -m pip install")


def test_pip_is_used_where_there_is_no_uv(machine: Path) -> None:
    (machine / "bin/uv").unlink()
    assert install(machine).startswith("python -m pip install")
