"""The command line as it describes itself: ``actorflow --help`` and that of each command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from actorflow.cli.app import parser


def helps(top: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Names of commands with what their ``--help`` prints."""
    yield top.prog, top.format_help()
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from helps(command)


class CommandLine(Directive):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        found = []
        for name, text in helps(parser()):
            section = nodes.section(ids=[nodes.make_id(name)], names=[nodes.fully_normalize_name(name)])
            section += nodes.title(text=name)
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of it."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
