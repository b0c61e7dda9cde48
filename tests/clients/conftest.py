"""Clients in other languages. Their tests run where Node is and `make` has installed the client;
elsewhere pytest's summary says that they did not."""

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

FOLDER = Path(__file__).parent
LEAST_NODE = 20


def _missing() -> list[str]:
    node = which("node")
    if node is None:
        return ["Node"]
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = re.match(r"v(\d+)", said)
    if major is None or int(major[1]) < LEAST_NODE:
        return [f"Node {LEAST_NODE} or later"]
    return [] if (FOLDER / "node_modules/openai").is_dir() else ["the npm package openai"]


MISSING = _missing()

collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was not run."""
    if MISSING:
        terminalreporter.write_line(f"tests/clients: not run, without {', '.join(MISSING)}")
