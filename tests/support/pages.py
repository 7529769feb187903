"""Programs and commands of the documentation's pages, as a reader finds and runs them.

A block of Python is followed by a block of text, what it prints. Comments in front of a block, which no reader sees,
say what a reader is told in words:

- ``<!-- file: NAME -->``: the program is kept under this name, for what comes after it on the page;
- ``<!-- run: COMMAND -->``: it is run so, once it is kept;
- ``<!-- not run: WHY -->``: it is not run by tests;
- ``<!-- beside -->``: these commands run on, beside what follows.

On a page with ``<!-- one folder -->`` all of them run in one folder, in order, and so do its blocks ``console``: their
lines with ``$`` are commands, the others what those print.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts),
]
ONE_FOLDER = "<!-- one folder -->\n"
#: The port that pages speak of; tests take a free one for it.
PORT = "8080"

_BLOCK = re.compile(
    r"^## (?P<title>.*?)$|"
    r"(?P<marks>(?:^<!-- (?:file|run|not run|beside).*? -->\n+)*)"
    r"^```(?P<language>python|console)\n(?P<code>.*?)^```$(?:\n\n^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- (file|run|not run|beside)(?:: (.*?))? -->")


@dataclass(frozen=True)
class Block:
    """A program, or commands.

    Attributes:
        title: The heading that it stands under.
        language: ``python`` or ``console``.
        code: The block's text.
        output: What is to be printed; None where the page does not say.
        marks: The comments in front of it.
    """

    title: str
    language: str
    code: str
    output: str | None
    marks: dict[str, str]

    def __str__(self) -> str:
        return self.title

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Commands of a console, each with what it prints."""
        parts = re.split(r"^\$ (.*)\n", self.code, flags=re.MULTILINE)
        return list(zip(parts[1::2], parts[2::2], strict=True))


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found, title = [], "start"
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match["title"]:
            title = match["title"]
        else:
            marks = dict(_MARK.findall(match["marks"]))
            found.append(Block(title, match["language"], match["code"], match["output"], marks))
    return found


def is_one_folder(page: Path) -> bool:
    """Whether the blocks of a page build on each other."""
    return ONE_FOLDER in page.read_text(encoding="utf-8")


def agrees(printed: str, expected: str) -> bool:
    """Whether a program printed what a page says, where ``...`` stands for anything."""
    lines = [line.rstrip() for line in printed.strip().splitlines()]
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, "\n".join(lines), re.DOTALL) is not None
