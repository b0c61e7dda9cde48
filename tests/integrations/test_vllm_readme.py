"""The integration's README: every test it names exists, and every rule that holds has one."""

import re
from pathlib import Path

import pytest

from headway_vllm.contract import LEANED_ON
from headway_vllm.versions import SUPPORTED
from tests.packaging.project import ROOT

INTEGRATION = ROOT / "integrations" / "vllm"
README = (INTEGRATION / "README.md").read_text()
_NAMED = re.compile(r"`(?:(\w+)\.py::)?(test_\w+)(?:\[\w+\])?`")


def rows() -> list[list[str]]:
    """The table of promises."""
    table = README.partition("## Promises")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def names_in(*files: Path) -> set[str]:
    """Names of tests."""
    found = (re.findall(r"^(?:async )?def (test_\w+)", f.read_text(), re.MULTILINE) for f in files)
    return {name for names in found for name in names}


def test_every_test_that_is_named_exists() -> None:
    inside = INTEGRATION / "tests"
    everything = names_in(*inside.glob("test_*.py"), *Path(__file__).parent.glob("test_*.py"))
    named = _NAMED.findall(README)
    assert len(named) > 20
    assert [name for _, name in named if name not in everything] == []
    for module, name in named:
        assert not module or name in names_in(inside / f"{module}.py")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_rule_that_holds_has_its_test(row: list[str]) -> None:
    rule, holds, tests = row
    assert holds.startswith(("holds", "**does not**", "within 3 %")), rule
    assert "does not" in holds or "`test_" in tests


def test_versions_are_those_that_are_supported() -> None:
    minors = [version.minor for version in SUPPORTED]
    assert minors == sorted(minors, key=lambda minor: int(minor.partition(".")[2]), reverse=True)
    assert f"Supported: {' and '.join(minors)}." in README
    assert f"{len(LEANED_ON)} functions and classes" in " ".join(README.split())
    env = (ROOT / "scripts" / "vllm-env").read_text()
    assert f"version=${{2:-{SUPPORTED[0].tested}}}" in env
