"""The plugin of pytest, loaded by its name as its entry point would."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import Any

import pytest

import actorflow as af

pytest_plugins = ["pytester"]

SERVICE = """
import asyncio
import pytest
import actorflow as af
from actorflow.testing import Faults, InjectedError, replace

graph = af.Graph("service")
x = graph.blob("x", [])

async def ask(x):
    await asyncio.sleep(3600)
    return x + 1

y = graph.function("ask", ask, x.spec, retries=1)(x)

async def program():
    async with graph:
        result = await graph.run({x: 1})
        return float(result[y]), asyncio.get_running_loop().time()
"""


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Load all that the tests inside do: pytester unloads what they are the first to load, and half of a package."""
    service: dict[str, Any] = {}
    exec(SERVICE, service)
    af.testing.simulate(service["program"], seed=0, time_limit_s=1e4)
    with asyncio.Runner(loop_factory=af.testing.virtual_time_loop) as runner:
        runner.run(service["program"]())


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error")

    def runs(code: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(SERVICE + code)
        return pytester.runpytest_inprocess("-p", "actorflow.testing.pytest", "-p", "no:xdist", *options)

    return runs


def test_time_jumps_in_plain_tests_and_in_those_of_pytest_asyncio(run, monkeypatch) -> None:
    code = """
def test_plain(virtual_time):
    assert virtual_time(program()) == (2, 3600)

{mark}async def test_async(virtual_time):
    assert await program() == (2, 3600)

{mark}async def test_usual():
    assert asyncio.get_running_loop().time() != 0
    assert not hasattr(asyncio.get_running_loop(), "advance")
"""
    run(code.format(mark="@pytest.mark.asyncio\n")).assert_outcomes(passed=3)
    found = run(code.format(mark=""), "--asyncio-mode=auto", "-v")
    found.assert_outcomes(passed=3)
    found.stdout.fnmatch_lines(["*::test_async PASSED*"])


def test_a_users_own_choice_of_loops_is_that_of_all_other_tests(run, pytester) -> None:
    pytester.makeconftest("""
import asyncio
class Loop(asyncio.SelectorEventLoop):
    pass
def pytest_asyncio_loop_factories(config, item):
    return {"own": Loop}
""")
    run(
        """
async def test_async(virtual_time):
    assert await program() == (2, 3600)

async def test_own():
    assert type(asyncio.get_running_loop()).__name__ == "Loop"
""",
        "--asyncio-mode=auto",
    ).assert_outcomes(passed=2)


def test_many_seeds_and_the_one_that_fails_again(run) -> None:
    code = """
def test_seeds(simulate):
    assert len(simulate(program, seeds=3, time_limit_s=10000)) == 3
    with replace(graph, "ask", 7):
        assert {found.value[0] for found in simulate(program, seeds=3)} == {7}

def test_fails(simulate):
    simulate(program, time_limit_s=10000, faults=Faults(fails=0.3))
"""
    first = run(code)
    first.assert_outcomes(passed=1, failed=1)
    # With CI=true pytest says it once more, in its summary.
    (note,) = {found[0] for line in first.outlines if (found := re.search(r"again: pytest.*=(\d+)", line))}
    seed = note.rpartition("=")[2]
    assert int(seed) > 0  # so that frames have run before
    again = run(code, f"--simulate-seed={seed}", "-k", "not test_seeds")
    again.assert_outcomes(failed=1, deselected=1)
    assert any(note in line for line in again.outlines)


def test_the_plugin_imports_next_to_nothing() -> None:
    code = "import sys, actorflow.testing.pytest\nprint([m for m in sys.modules if m in ('numpy', 'actorflow.graph')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
