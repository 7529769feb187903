"""Which form of the core runs; and that programs cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.effort import FULL

ROOT = Path(__file__).parents[2]
is_compiled_here = pytest.mark.skipif(
    find_spec("actorflow.core.compiled") is None, reason="the core is not compiled here"
)


def run(program: str, wanted: str | None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    environment.pop("ACTORFLOW_CORE", None)
    if wanted is not None:
        environment["ACTORFLOW_CORE"] = wanted
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


ASK = "from actorflow.core import IS_COMPILED; print(IS_COMPILED)"
#: As if it had not been compiled.
WITHOUT = "import sys; sys.modules['actorflow.core.compiled'] = None; " + ASK


def test_zero_has_the_plain_one_run() -> None:
    assert run(ASK, "0").stdout == "False\n"


@is_compiled_here
@pytest.mark.parametrize("wanted", [None, "1"])
def test_the_compiled_one_runs_where_it_is(wanted: str | None) -> None:
    assert run(ASK, wanted).stdout == "True\n"


def test_without_it_the_plain_one_runs() -> None:
    assert run(WITHOUT, None).stdout == "False\n"


def test_one_fails_loudly_without_it() -> None:
    found = run(WITHOUT, "1")
    assert found.returncode != 0
    assert "ACTORFLOW_CORE=1, but actorflow's compiled core cannot be loaded" in found.stderr


#: As if the source had changed since.
CHANGED = "import zlib; zlib.crc32 = lambda data: 0; " + ASK


@is_compiled_here
def test_one_that_was_compiled_from_another_source_does_not_run() -> None:
    found = run(CHANGED, None)
    assert found.stdout == "False\n"
    assert "RuntimeWarning: actorflow runs without its compiled core: it was compiled from another" in found.stderr
    found = run(CHANGED, "1")
    assert found.returncode != 0
    assert "install actorflow again, with pip install -e ." in found.stderr


def test_other_values_are_refused() -> None:
    assert "ACTORFLOW_CORE must be 0 or 1, or not set, got 'yes'" in run(ASK, "yes").stderr


#: Graphs of all that the core calls by itself, and of what it asks actors for: prints what can be told of their runs.
TOLD = """
import asyncio, json
from tests.support.random_programs import told
print(json.dumps(asyncio.run(told({count}))))
"""


@is_compiled_here
@pytest.mark.slow
def test_both_forms_tell_the_same() -> None:
    count = 4_000 if FULL else 400
    found = [run(TOLD.format(count=count), wanted) for wanted in "01"]
    for each in found:
        assert each.returncode == 0, each.stderr
    plain, compiled = [json.loads(each.stdout) for each in found]
    assert len(plain) == count
    assert sum(bool(told["error"]) for told in plain) > count / 12
    assert [each for each in zip(plain, compiled, strict=True) if each[0] != each[1]] == []
