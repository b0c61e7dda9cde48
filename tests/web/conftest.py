"""Tests in a browser. They run where Chromium and Playwright are; elsewhere pytest's summary says
that they did not."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest

from tests.packaging.project import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")
MISSING = [
    name
    for name, found in (("Chromium", CHROMIUM), ("Playwright", find_spec("playwright")))
    if not found
]
PICTURES = ROOT / "build/web"
"""Where tests leave screenshots for people."""

collect_ignore_glob = ["test_page*.py"] if MISSING else []

figures: list[str] = []
"""What tests have measured, for the summary."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was not run, and what was measured."""
    if MISSING:
        terminalreporter.write_line(f"tests/web: browser tests not run, without {MISSING}")
    for figure in figures:
        terminalreporter.write_line(f"tests/web: {figure}")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Chromium without a window. For one module: while it lives, no event loop can run here."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            # As root, and where /dev/shm is small, as in containers.
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """The folder for screenshots."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES
