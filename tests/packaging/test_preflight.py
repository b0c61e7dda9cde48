"""scripts/preflight names everything that is missing, and the command that installs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.project import ROOT

# What the script itself needs, and the least that a package manager's presence means.
ALWAYS = ("sh", "id")


def write_tool(folder: Path, name: str, body: str = "exit 0") -> None:
    path = folder / name
    path.write_text(f"#!{shutil.which('sh')}\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH that holds every prerequisite, apt-get and this Python among them."""
    for name in ALWAYS:
        real = shutil.which(name)
        assert real is not None
        (tmp_path / name).symlink_to(real)
    for name in ("git", "make", "g++", "apt-get"):
        write_tool(tmp_path, name)
    write_tool(tmp_path, "python3", f'exec {sys.executable} "$@"')
    return tmp_path


def preflight(tools: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(ROOT / "scripts/preflight")],
        env={"PATH": str(tools), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nothing_missing_prints_the_python(tools: Path) -> None:
    run = preflight(tools)
    assert (run.returncode, run.stdout, run.stderr) == (0, "python3\n", "")


@pytest.mark.parametrize(
    ("gone", "named", "packages"),
    [
        (["g++"], ["g++"], "g++"),
        (["git", "make"], ["git", "make"], "git make"),
        (["python3"], ["Python 3.11"], "python3-dev python3-venv"),
        (
            ["git", "make", "g++", "python3"],
            ["git", "make", "g++", "Python 3.11"],
            "git make g++ python3-dev python3-venv",
        ),
    ],
)
def test_missing_tools_are_named_in_one_line(
    tools: Path, gone: list[str], named: list[str], packages: str
) -> None:
    for name in gone:
        (tools / name).unlink()
    run = preflight(tools)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert all(name in run.stderr for name in named)
    sudo = "" if os.getuid() == 0 else "sudo "
    assert run.stderr.endswith(f"Install with: {sudo}apt-get install -y {packages}\n")


@pytest.mark.parametrize(
    ("broken", "named", "packages"),
    [
        ("ensurepip", "venv", "python3-venv"),
        ("Python.h", "Python.h", "python3-dev"),
    ],
)
def test_half_a_python_is_seen(tools: Path, broken: str, named: str, packages: str) -> None:
    write_tool(
        tools, "python3", f'case $2 in *{broken}*) exit 1;; esac; exec {sys.executable} "$@"'
    )
    run = preflight(tools)
    assert run.returncode == 2
    assert named in run.stderr
    assert run.stderr.endswith(f"apt-get install -y {packages}\n")


def test_an_old_python_is_refused_and_a_newer_one_beside_it_found(tools: Path) -> None:
    write_tool(tools, "python3", "exit 1")
    run = preflight(tools)
    assert run.returncode == 2
    assert "python3.11-dev python3.11-venv" in run.stderr
    write_tool(tools, "python3.12", f'exec {sys.executable} "$@"')
    assert preflight(tools).stdout == "python3.12\n"


def test_the_named_python_is_the_one_that_counts(tools: Path) -> None:
    write_tool(tools, "old", "exit 1")
    run = preflight(tools, PYTHON="old")
    assert run.returncode == 2
    assert "PYTHON=old" in run.stderr


def test_another_compiler_will_do(tools: Path) -> None:
    (tools / "g++").rename(tools / "clang++")
    assert preflight(tools).returncode == 0
    assert preflight(tools, CXX="g++-14").returncode == 0
    (tools / "clang++").rename(tools / "g++-14")
    assert preflight(tools).returncode == 2
    assert preflight(tools, CXX="g++-14").returncode == 0
