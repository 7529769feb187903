"""A test process that dies fails the run, soon, and is named; whatever else is to be run."""

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.effort import slow

pytestmark = pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed")

ROOT = Path(__file__).parents[1]
#: A safety net: what is shown here is that the run ends at all.
TIMEOUT_S = 120

DEATHS = {
    "abort": "os.abort()",
    "exit": "os._exit(0)",  # as if all were well
    "killed": "os.kill(os.getpid(), 9)",
    # A child that outlives the worker, and may be killed by its number.
    "orphan": "child = os.fork() or time.sleep(1_000)\n    open('ORPHAN', 'w').write(str(child))\n    os._exit(1)",
}
#: No other plugins, as some take seconds to import.
PLUGINS = ("-p", "xdist", "-p", "tests.support.workers")


class Run(NamedTuple):
    status: int
    output: str


def run(folder: Path, files: dict[str, str], workers: int) -> Run:
    """Run files of tests as ``make test`` does, with this suite's hooks."""
    orphan = folder / "orphan"
    for name, text in files.items():
        (folder / name).write_text("import os, time\n" + text.replace("ORPHAN", str(orphan)))
    (folder / "pytest.ini").touch()
    flags = [*PLUGINS, "-p", "no:cacheprovider", "--numprocesses", str(workers), "--dist", "worksteal"]
    try:
        with (folder / "output").open("w") as output:  # not a pipe, which an orphan would keep open
            ended = subprocess.run(
                [sys.executable, "-m", "pytest", *flags, str(folder)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            )
    finally:
        if orphan.exists():
            os.kill(int(orphan.read_text()), signal.SIGKILL)
    return Run(ended.returncode, (folder / "output").read_text())


def passing(count: int) -> str:
    return "".join(f"def test_{i}(): pass\n" for i in range(count))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize(("death", "workers"), [("exit", 1), *slow([("abort", 2), ("killed", 1), ("orphan", 2)])])
def test_a_dying_test_ends_the_run(tmp_path: Path, death: str, workers: int) -> None:
    dying = f"def test_first(): pass\ndef test_dies():\n    {DEATHS[death]}\ndef test_last(): pass\n"
    others = {f"test_{name}.py": passing(count) for name, count in (("b", 1), ("c", 3), ("d", 1), ("e", 2))}
    found = run(tmp_path, {"test_a.py": dying, **others}, workers)
    assert found.status != 0
    assert re.search(r"FAILED .*test_a\.py::test_dies", found.output), found.output
    assert "1 failed" in found.output, found.output
    assert "INTERNALERROR" not in found.output


@pytest.mark.parametrize(
    "text",
    [
        "os._exit(0)",  # while tests are collected
        "import pytest\n@pytest.fixture(scope='session')\ndef late():\n    yield\n    os._exit(0)\n"
        "def test_it(late): pass\n",  # when all tests are done
    ],
    ids=["collecting", "ending"],
)
def test_a_worker_that_dies_outside_of_tests_ends_the_run(tmp_path: Path, text: str) -> None:
    found = run(tmp_path, {"test_a.py": text}, 1)
    assert found.status != 0
    assert "worker gw0 died" in found.output, found.output


@pytest.mark.slow
def test_a_run_without_deaths_is_as_before(tmp_path: Path) -> None:
    found = run(tmp_path, {f"test_{name}.py": passing(3) for name in "abc"}, 2)
    assert found.status == 0, found.output
    assert "9 passed" in found.output
