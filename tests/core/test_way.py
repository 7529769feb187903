"""The way of a warm run is the one that the page on the architecture tells."""

from __future__ import annotations

import json
import re

from tests.core.test_choice import ROOT, run

PAGE = ROOT / "docs" / "explanation" / "architecture.md"

#: Prints the calls of this package's functions in a warm run: the file and the name of each.
WAY = """
import asyncio, json, sys
from pathlib import Path
import numpy as np
import actorflow as af

PACKAGE = Path(af.__file__).parent
calls = []

def note(frame, event, _):
    path = Path(frame.f_code.co_filename)
    if event == "call" and PACKAGE in path.parents:
        calls.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))

async def main():
    graph = af.Graph("way")
    x = y = graph.blob("x", (3,))
    for i in range(3):
        y = graph.function(f"f{i}", lambda a: a, x.spec)(y)
    feeds = {x: np.ones(3, np.float32)}
    async with graph:
        for _ in range(20):
            await graph.run(feeds)
        graph.engine.resources.dispatcher.slice_ns = 1 << 60  # noting takes long
        await asyncio.sleep(0)
        sys.setprofile(note)
        await graph.run(feeds)
        sys.setprofile(None)

asyncio.run(main())
print(json.dumps(calls))
"""


def steps() -> list[tuple[str, str]]:
    """The files and functions of the table, in its order."""
    table = PAGE.read_text().partition("### The way of one warm")[2].partition("\n### ")[0]
    found: list[tuple[str, str]] = []
    file = ""
    for row in re.findall(r"^\|.*\|$", table, re.MULTILINE):
        where, what = row.split("|")[1:3]
        named = re.findall(r"`([\w/.]+)`", where)
        file = named[0] if named else file
        found += [(file, name.rpartition(".")[2]) for name in re.findall(r"`([\w.]+)`", what)]
    return found


def test_the_way_of_a_warm_run_is_the_one_that_is_told() -> None:
    found = run(WAY, "0")
    assert found.returncode == 0, found.stderr
    calls = [(file, name) for file, name in json.loads(found.stdout)]
    told = steps()
    assert len(told) > 20
    assert {file for file, _ in calls} == {file for file, _ in told}
    assert len({file for file, _ in calls}) <= 6
    left = iter(calls)
    missing = [step for step in told if step not in left]  # each behind the one before
    assert missing == []
