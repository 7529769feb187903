"""Text as people are shown it: names that others have written, and times."""

from __future__ import annotations

_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))


def visible(text: str, *, lines: bool = False) -> str:
    r"""A text in which nothing is hidden: what is not printable is written as `repr` does, ``\u202e`` for example.

    Names of lanes and stages, messages of errors and the like come from anywhere. Shown as they are, they could turn
    the text around them, move a terminal's cursor, or look like other ones. The live page does the same in
    ``static/text.js``.

    Args:
        text: The text; one that is printable is returned as it is.
        lines: Whether it may have several lines: ends of lines are kept.
    """
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() or (lines and one == "\n") else repr(one)[1:-1] for one in text])


def time_text(time_ns: float) -> str:
    """A time of three digits, with its unit."""
    for unit, size_ns in _UNITS:
        if time_ns >= size_ns:
            count = time_ns / size_ns
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"
    return "0"
