"""The names that users import: a change here is a change to what they rely on."""

import ast
import inspect
from types import ModuleType

import pytest

import headway
import headway.testing
from tests.packaging.project import ROOT

PUBLIC = ["LLM", "Result", "SamplingParams"]


def test_the_public_names_are_these() -> None:
    assert headway.__all__ == PUBLIC


@pytest.mark.parametrize("module", [headway, headway.testing], ids=lambda module: module.__name__)
def test_each_public_name_is_there_and_documented(module: ModuleType) -> None:
    assert module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


@pytest.mark.parametrize("module", [headway, headway.testing], ids=lambda module: module.__name__)
def test_nothing_else_is_public(module: ModuleType) -> None:
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("headway")
    }
    assert public <= set(module.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Magic'"):
        _ = headway.Magic


def test_the_exceptions_are_the_tree_that_is_drawn() -> None:
    """errors.py opens with its tree: each class stands in it, under its base."""
    tree = ast.parse((ROOT / "headway/errors.py").read_text())
    drawn = (ast.get_docstring(tree) or "").splitlines()
    places = {}
    for line in drawn:
        name = line.strip(" │├└─").split(" ")[0]
        places[name] = len(line) - len(line.lstrip(" │├└─"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            assert node.name in places
            base = node.bases[0]
            if isinstance(base, ast.Name) and base.id in places:
                assert places[node.name] == places[base.id] + 4
