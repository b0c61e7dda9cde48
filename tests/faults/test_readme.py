"""The table of faults names tests that there are."""

import ast
import re
from collections.abc import Iterator

from tests.packaging.project import ROOT

TABLE = ROOT / "tests/faults/README.md"
NUMBERS = {"S": 15, "K": 14, "C": 7, "A": 5, "B": 4}
FREE = 5
"""Kinds without a letter."""


def rows() -> Iterator[tuple[str, str, str]]:
    """Kind, tests here, tests elsewhere."""
    for line in TABLE.read_text().splitlines():
        if line.startswith("|") and not line.startswith(("| kind", "|---")):
            kind, _, here, elsewhere = (cell.strip() for cell in line[1:-1].split("|"))
            yield kind, here, elsewhere


def described_in(path: str) -> str:
    """A file's docstrings and the names of its tests, a line each."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return "\n".join(f"{f.name} {ast.get_docstring(f) or ''}" for f in functions)


def test_every_kind_has_a_row_with_a_test() -> None:
    kinds = [kind for kind, here, elsewhere in rows() if here or elsewhere]
    named = [name for kind in kinds for name in re.findall(r"[A-Z]\d+", kind)]
    assert sorted(named) == sorted(f"{k}{i}" for k, n in NUMBERS.items() for i in range(1, n + 1))
    assert kinds.count("") == FREE


def test_what_the_table_names_is_there() -> None:
    for kind, here, elsewhere in rows():
        folder = "tests/faults"
        for name in re.findall(r"`(.*?)`", here):
            path = f"{folder}/{name}"
            assert not kind or re.search(rf"\b{kind}\b", described_in(path)), (path, kind)
        path = ""
        for name in re.findall(r"`(.*?)`", elsewhere):
            file, _, test = name.partition("::")
            if file:
                path = file if "/" in file else f"{folder}/{file}"
                folder = path.rpartition("/")[0]
            assert (ROOT / path).exists(), path
            assert not test or f"{test} " in described_in(path), name


def test_kinds_that_are_tested_elsewhere_name_the_test() -> None:
    """Those here say in a docstring which kind they are of."""
    for kind, here, elsewhere in rows():
        assert here or "::" in elsewhere, kind
