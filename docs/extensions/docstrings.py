"""Docstrings in plain English as Sphinx reads them: asterisks are mathematics, and hanging indents no quotations."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

#: A paragraph that begins with what it is about, ``Gradient: ...``; napoleon's sections have nothing behind the colon.
_TERM = re.compile(r"[A-Z][A-Za-z ]*: \S")
#: The head of a section, which needs no blank line in front of it here.
_SECTION = re.compile(r"[A-Z][A-Za-z ]*:")
#: Code in backticks, which may go over several lines, and asterisks outside of it that stand alone.
_CODE_OR_STAR = re.compile(r"``.*?``|`[^`]*`|\*\*\w[^*]*\*\*|(?<!\\)\*", re.DOTALL)


def join_hanging(_app: Sphinx, _what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Before napoleon: a term begins a paragraph, and what hangs under it is the rest of that."""
    joined: list[str] = []
    inside = False
    for line in lines:
        if inside and line.startswith("    "):
            joined.append(line.strip())
            continue
        inside = bool(_TERM.match(line))
        joined += ["", line] if inside or _SECTION.fullmatch(line) else [line]
    lines[:] = joined


def escape_stars(_app: Sphinx, _what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """After napoleon: asterisks outside of code are no emphasis."""
    code: int | None = None  # indentation of the line that began a block of code
    prose: list[str] = []  # of the paragraph
    found: list[str] = []

    def end_paragraph() -> None:
        found.extend(_CODE_OR_STAR.sub(lambda m: "\\*" if m[0] == "*" else m[0], "\n".join(prose)).splitlines())
        prose.clear()

    for line in lines:
        indent = len(line) - len(line.lstrip())
        if code is not None and line.strip() and indent <= code:
            code = None
        if code is None and line.strip() and not line.lstrip().startswith((">>>", "...")):
            prose.append(line)
            if line.rstrip().endswith("::") or line.lstrip().startswith(".. code"):
                code = indent
        else:
            end_paragraph()
            found.append(line)
    end_paragraph()
    lines[:] = found


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of it."""
    app.connect("autodoc-process-docstring", join_hanging, priority=400)
    app.connect("autodoc-process-docstring", escape_stars, priority=600)
    return {"parallel_read_safe": True}
