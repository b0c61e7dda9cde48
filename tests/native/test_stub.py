"""The hand-written stub names what the module has, and nothing else."""

import ast
from pathlib import Path

import headway
from headway import _native


def test_stub_and_module_have_the_same_names() -> None:
    stub = ast.parse((Path(headway.__file__).parent / "_native.pyi").read_text())
    written = {
        node.name: _members(node) if isinstance(node, ast.ClassDef) else set()
        for node in stub.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    real = {name: getattr(_native, name) for name in vars(_native) if not name.startswith("_")}
    assert written.keys() == real.keys()
    for name, members in written.items():
        value = real[name]
        if isinstance(value, type):
            assert members == {m for m in vars(value) if not m.startswith("_")}, name


def _members(node: ast.ClassDef) -> set[str]:
    names = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            names.add(item.name)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            names.add(item.target.id)
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            names.add(item.targets[0].id)
    return {name for name in names if not name.startswith("_")}
