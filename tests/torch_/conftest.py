"""These tests need PyTorch. Where it is not installed, they are left out and pytest says so.

Those of paged attention need Triton too. Without a GPU its interpreter runs the kernels, which has
to be asked for before Triton is imported.
"""

import os
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
NEEDS = {"test_paged.py": "triton"}
collect_ignore_glob = (
    [name for name, needed in NEEDS.items() if not find_spec(needed)]
    if find_spec("torch")
    else ["test_*.py"]
)

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_report_header() -> list[str]:
    """Lines at the top of a run."""
    tested = "tests/torch_ is" if not find_spec("torch") else "tests/torch_/test_paged.py is"
    return [
        f"{name}: {'installed' if find_spec(name) else f'not installed: {tested} left out'}"
        " (make test-torch)"
        for name in ("torch", "triton")
    ]
