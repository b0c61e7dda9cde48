"""Scripts of bench/ as modules."""

import importlib
import sys
from typing import Any

from tests.packaging.project import ROOT


def script(path: str) -> Any:
    """A script of bench/ by its path there, as Python runs it: beside its neighbours."""
    file = ROOT / "bench" / path
    sys.path.insert(0, str(file.parent))
    try:
        return importlib.import_module(file.stem)
    finally:
        sys.path.pop(0)
