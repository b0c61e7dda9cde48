"""The project as files: where it is, and what its pyproject.toml says."""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def distribution(requirement: str) -> str:
    """Normalised distribution name of a requirement: "Foo_Bar>=1" → "foo-bar" (PEP 503)."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def requirements() -> dict[str, set[str]]:
    """Distribution names by group: `build`, `run` and each extra."""
    project = pyproject()
    groups = {
        "build": project["build-system"]["requires"],
        "run": project["project"]["dependencies"],
    }
    groups |= project["project"]["optional-dependencies"]
    return {group: {distribution(line) for line in lines} for group, lines in groups.items()}
