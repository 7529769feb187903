"""What the commands print on, and how they count."""

from __future__ import annotations

from rich.console import Console

#: Of what is no terminal: nothing is cut off or broken there.
_PLAIN_WIDTH = 240


def output() -> Console:
    """Standard output: as wide as the terminal is, and wide enough for anything where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def count_text(count: int, what: str) -> str:
    """A number of things: ``1 call``, ``2,000 calls``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
