"""``actorflow docs``: the pages of the documentation, in the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from actorflow.errors import ActorflowError, did_you_mean

#: The package's folder.
PACKAGE = Path(__file__).parents[1]
#: Folders of pages with their titles, in the order of a reader.
ROOMS = {
    "start": "The path, step by step",
    "how-to": "How to",
    "explanation": "Explanation",
    "coming-from": "Coming from",
    "reference": "Reference",
}
#: Directives that only the site understands.
_FOR_THE_SITE = re.compile(r"^```\{(?:toctree|operations|command-line)\}\n.*?^```\n?", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[.*\]\(.*\)\n+", re.MULTILINE)
#: A link to another page, by its path.
_TO_PAGE = re.compile(r"\]\((?:\.\./)?(?:[a-z-]+/)?(?P<name>[a-z-]+)\.md(?:#[^)]*)?\)")
#: Pages that a search finds, at most, best first, and lines of each.
_MOST_FOUND, _MOST_LINES = 8, 3
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.MULTILINE | re.DOTALL)


class Page(NamedTuple):
    """A page of the documentation."""

    name: str  # its name, which stays: that of its file
    room: str  # the folder it is in
    path: Path

    @property
    def title(self) -> str:
        """Its heading."""
        with self.path.open(encoding="utf-8") as lines:
            return next((line[2:].strip() for line in lines if line.startswith("# ")), self.name)

    @property
    def text(self) -> str:
        """Its Markdown for the terminal: without pictures and directives of the site, links by name."""
        text = self.path.read_text(encoding="utf-8")
        for left_out in (_FOR_THE_SITE, _COMMENT, _PICTURE):
            text = left_out.sub("", text)
        return _TO_PAGE.sub(r"](\g<name>)", text)


def pages() -> dict[str, Page]:
    """All pages by name, in the order of the site: the installed package's, or the ones beside it in a checkout."""
    folder = PACKAGE / "docs"
    if not folder.is_dir():
        folder = PACKAGE.parent / "docs"
    return {page.name: page for page in _found(folder)}


def _found(folder: Path) -> Iterator[Page]:
    entries = folder.joinpath("index.md").read_text(encoding="utf-8").splitlines()
    order = {entry: place for place, entry in enumerate(entries)}
    for room in ROOMS:
        paths = sorted(folder.joinpath(room).glob("*.md"))
        for path in sorted(paths, key=lambda path: order.get(f"{path.parent.name}/{path.stem}", len(order))):
            yield Page(path.stem, room, path)


def docs(name: str | None, words: str | None = None) -> int:
    """Print a page, or the names and titles of all of them, or of those with some words, the best first."""
    known = pages()
    if words is not None:
        _search(known, words)
        return 0
    if name is None:
        _list(known)
        return 0
    wanted = name.lower().rpartition("/")[2].removesuffix(".md")  # also a path, as links have it
    page = known.get(wanted)
    if page is None:
        raise ActorflowError(f"no page {name!r}, actorflow docs lists them{did_you_mean(wanted, known)}")
    if not sys.stdout.isatty():
        print(page.text, end="")
        return 0
    console = Console()
    os.environ.setdefault("LESS", "-R")  # or less would show escape sequences as text
    with console.pager(styles=True):
        console.print(Markdown(page.text, hyperlinks=False), width=min(console.width, 100))
    return 0


def _search(known: dict[str, Page], text: str) -> None:
    words = [re.compile(rf"\b{re.escape(word)}", re.IGNORECASE) for word in text.split()]

    def count(where: str) -> int:
        return sum(word.search(where) is not None for word in words)

    found = []
    for page in known.values():
        lines = sorted(page.text.splitlines(), key=count, reverse=True)
        if words and count("\n".join([page.title, *lines])) == len(words):
            most = count(lines[0])
            best = [line for line in lines if count(line) == most]
            found.append(((count(f"{page.name} {page.title}"), most, len(best)), page, best[:_MOST_LINES]))
    if not found:
        raise ActorflowError(f"no page has all of these words: {text!r}; actorflow docs lists the pages")
    for _, page, lines in sorted(found, key=lambda each: each[0], reverse=True)[:_MOST_FOUND]:
        print(f"{page.name}: {page.title}")
        for line in lines:
            print(f"    {line.strip()}")


def _list(known: dict[str, Page]) -> None:
    width = max(map(len, known), default=0)
    for room, heading in ROOMS.items():
        print(f"{heading}:")
        for page in known.values():
            if page.room == room:
                print(f"  {page.name:{width}}  {page.title}")
        print()
    print("actorflow docs NAME shows a page, actorflow docs --search WORDS finds some.")
