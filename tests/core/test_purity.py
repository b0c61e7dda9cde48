"""headway/core decides and nothing else: no IO, no clock, no randomness, standard library only."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway.core

CORE = Path(headway.core.__file__).parent
FILES = sorted(CORE.rglob("*.py"))

OPEN_TO_CORE = ("headway.core", "headway.errors")

# Modules of pure data and functions. Time, chance, files, threads and logs are not among them:
# a plan may depend on nothing but the trace.
ALLOWED = frozenset(
    {"abc", "array", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools"}
    | {"hashlib", "heapq", "itertools", "math", "operator", "struct", "types", "typing"}
)
FORBIDDEN_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "hash", "id"})


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of all modules that the source imports, function bodies included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def called(tree: ast.AST) -> Iterator[str]:
    """Names of all plain functions that the source calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def impurities(source: str) -> list[str]:
    """What in `source` breaks the rule; empty if nothing does."""
    tree = ast.parse(source)
    found = []
    for module in imported(tree):
        top = module.split(".")[0]
        if module.startswith(".") or (top == "headway" and not module.startswith(OPEN_TO_CORE)):
            found.append(f"imports {module}, which is another room's")
        elif top != "headway" and top not in ALLOWED:
            found.append(f"imports {module}")
    found += [f"calls {name}()" for name in called(tree) if name in FORBIDDEN_CALLS]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_nothing_that_plans_must_not_depend_on(path: Path) -> None:
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import random",
        "def f():\n    import os.path",
        "import numpy as np",
        "from headway.engine.types import Delta",
        "from headway import engine",
        "from .. import engine",
        "print(1)",
        "order = sorted(items, key=lambda item: id(item))",
    ],
)
def test_the_check_sees_what_it_forbids(source: str) -> None:
    assert impurities(source) != []


def test_core_runs_with_nothing_installed() -> None:
    modules = [
        ".".join(("headway.core", *path.relative_to(CORE).with_suffix("").parts))
        for path in FILES
        if path.stem != "__init__"
    ]
    assert modules
    code = f"import sys; sys.path.insert(0, {str(CORE.parents[1])!r})\n" + "".join(
        f"import {module}\n" for module in modules
    )
    # -S: no site-packages, so nothing that was installed; -I: no environment, no current folder.
    run = subprocess.run(
        [sys.executable, "-S", "-I", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
