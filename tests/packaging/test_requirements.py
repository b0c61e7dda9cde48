"""What is imported is declared, what is declared is explained, and nothing heavy is among it."""

import ast
import re
import sys
from importlib.metadata import packages_distributions

import pytest

from tests.packaging.project import ROOT, distribution, requirements

# Imported by name only where the extra that brings it is installed.
OPTIONAL = {"huggingface-hub": "hub", "torch": "torch"}

# Always comes with pydantic, and with torch where that is built for a GPU; each pins the version
# that fits.
PARTS = {"pydantic-core": "pydantic", "triton": "torch"}


def imported_distributions() -> set[str]:
    """Distributions that headway/ imports, directly and anywhere in a file."""
    modules: set[str] = set()
    for path in (ROOT / "headway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.split(".")[0])
    owners = packages_distributions()
    outside = modules - set(sys.stdlib_module_names) - {"headway"}
    names = {distribution(owners.get(module, [module])[0]) for module in outside}
    return {PARTS.get(name, name) for name in names}


def test_every_import_is_declared() -> None:
    declared = requirements()
    assert imported_distributions() - declared["run"] - OPTIONAL.keys() == set()
    for name, extra in OPTIONAL.items():
        assert declared[extra] == {name}


def test_tests_have_the_extras() -> None:
    assert requirements()["hub"] <= requirements()["dev"]


@pytest.mark.parametrize("heavy", ["torch", "transformers", "tensorflow", "jax", "onnxruntime"])
def test_nothing_heavy_at_run_time(heavy: str) -> None:
    assert heavy not in requirements()["run"]
    assert heavy == "torch" or heavy not in imported_distributions()


def test_torch_is_imported_by_its_executor_alone() -> None:
    importers = {
        path.relative_to(ROOT / "headway").parts[:2]
        for path in (ROOT / "headway").rglob("*.py")
        if re.search(r"^\s*(import|from) torch\b", path.read_text(), re.MULTILINE)
    }
    assert importers == {("executors", "torch_")}


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs/dependencies.md").read_text()
    declared = set().union(*requirements().values())
    unexplained = {name for name in declared if f"| `{name}` |" not in text}
    assert unexplained == set()
