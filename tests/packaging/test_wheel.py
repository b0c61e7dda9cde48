"""`pip wheel .` gives a wheel that is whole, and installs and runs where no compiler is."""

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.project import ROOT, distribution, pyproject, requirements

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make", "ld")


def run(command: list[str], folder: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `command` in `folder`; with `env` given, in that environment and no other."""
    result = subprocess.run(
        command,
        cwd=folder,
        env=env or None,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree. Compiles only what has changed since the last build."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", ".", "--wheel-dir", str(folder)]
    run([*pip, "--no-deps", "--no-index", "--no-build-isolation"])
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def files(wheel: Path) -> list[str]:
    """Names of the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """METADATA of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment that holds the wheel.

    What it depends on is read from this environment's packages, so that no network is needed. They
    go last on the path and their .pth files are not run: this environment's own Headway, which is
    installed in place, stays invisible.
    """
    home = tmp_path_factory.mktemp("elsewhere")
    venv.create(home, with_pip=False)
    python = str(home / "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install"]
    run([*pip, "--no-deps", "--no-index", str(wheel)])
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home / "bin"


def run_without_compiler(programs: Path, *command: str) -> str:
    """Output of a program of the new environment, with nothing else on PATH."""
    path = str(programs)
    assert [name for name in COMPILERS if shutil.which(name, path=path)] == []
    return run([str(programs / command[0]), *command[1:]], programs, PATH=path, HOME=path).stdout


def test_the_wheel_holds_each_source_file_and_the_native_module(files: list[str]) -> None:
    packaged = {name for name in files if name.startswith("headway/")}
    native = {name for name in packaged if name.endswith(".so")}
    assert len(native) == 1
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "headway").rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"}
    }
    assert packaged - native == sources
    assert "headway/py.typed" in packaged
    assert len(files) == len(set(files))


def test_the_wheel_holds_nothing_else(files: list[str]) -> None:
    version = pyproject()["project"]["version"]
    info = f"headway-{version}.dist-info/"
    others = {name for name in files if not name.startswith("headway/")}
    expected = ["METADATA", "RECORD", "WHEEL", "entry_points.txt"]
    assert others == {info + name for name in expected} | {
        info + "licenses/LICENSE",
        info + "licenses/NOTICE",
    }


def test_the_metadata_is_the_projects(metadata: Message) -> None:
    project = pyproject()["project"]
    assert metadata["Version"] == project["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {distribution(line) for line in needed} == requirements()["run"]


def test_the_command_runs_without_a_compiler(installed: Path) -> None:
    version = run_without_compiler(installed, "headway", "--version")
    assert re.search(rf"\b{re.escape(pyproject()['project']['version'])}\b", version)


def test_the_native_module_runs_without_a_compiler(installed: Path) -> None:
    code = (
        "import headway._native as native, pathlib\n"
        "assert native.supports(native.best_isa())\n"
        "print(pathlib.Path(native.__file__).resolve())\n"
    )
    module = run_without_compiler(installed, "python", "-c", code).strip()
    assert Path(module).is_relative_to(installed.parent.resolve())


def test_the_package_imports_in_one_go(installed: Path) -> None:
    public = "import headway; [getattr(headway, name) for name in headway.__all__]"
    heavy = "import sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    run_without_compiler(installed, "python", "-W", "error", "-c", f"{public}; {heavy}")
