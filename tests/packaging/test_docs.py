"""Documents: what they link to exists."""

import re
from pathlib import Path

import pytest

from tests.packaging.project import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Anchors of the headings, as the usual renderers make them."""
    headings = HEADING.findall(CODE_BLOCK.sub("", path.read_text()))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    """Relative links of `document` that lead nowhere."""
    broken = []
    for target in LINK.findall(CODE_BLOCK.sub("", document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name) if name else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# Big Title\n[ok](#big-title) [no](#small) [gone](b.md) [net](https://x.y)"
    )
    assert broken_links(document) == ["#small", "b.md"]


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/adr").glob("[0-9]*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
