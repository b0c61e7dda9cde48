"""These tests need PyTorch. Where it is not installed, they are left out and pytest says so."""

from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


def pytest_report_header() -> str:
    """A line at the top of a run."""
    state = "installed" if find_spec("torch") else "not installed: tests/torch_ is left out"
    return f"torch: {state} (make test-torch)"
