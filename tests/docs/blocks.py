"""Code blocks and commands of the documents."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.project import ROOT

DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "deploy").glob("*.md"),
        *(ROOT / "integrations").glob("*/*.md"),
    ]
)
LANGUAGES = {"sh", "python", "js", "json", "toml", "text"}
_BLOCK = re.compile(
    r"(?:^<!-- not run in tests: (?P<why>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"`((?:headway|make|python) [^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. why: what a test lacks to run it; empty where one does."""

    document: Path
    line: int
    language: str
    text: str
    why: str

    @property
    def name(self) -> str:
        """For a test's id."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[str]:
        """Commands of a shell block without comments, each in one line."""
        whole = ""
        for line in self.text.replace("\\\n", " ").splitlines():
            whole += line + " "
            try:
                shlex.split(whole, comments=True)
            except ValueError:  # a quotation goes on in the next line
                continue
            command = re.sub(r"(^|\s)#.*$", "", whole).strip()
            whole = ""
            if command:
                yield command


def blocks() -> list[Block]:
    """All of them."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for match in _BLOCK.finditer(text):
            line = text[: match.start("language")].count("\n") + 1
            found.append(
                Block(document, line, match["language"], match["text"], match["why"] or "")
            )
    return found


def inline_commands() -> list[tuple[str, str]]:
    """Commands in the midst of a sentence: where, and what."""
    found = []
    for document in DOCUMENTS:
        prose = _BLOCK.sub("", document.read_text())
        name = str(document.relative_to(ROOT))
        found += [(name, match[1]) for match in _INLINE.finditer(prose)]
    return found
