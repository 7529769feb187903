"""The two tiers of tests: who takes too much for the quick one fails, and of the slow one a part is drawn."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import budget, costs
from tests.support.loops import loop_factories

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
PLUGINS = ("-p", "no:cacheprovider", "-p", "tests.support.costs", "-p", "tests.support.budget")


class Clock:
    """Processor time that only passes when a test says so, and a machine as slow as it says."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slowness = 1.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(costs, "processor_s", made)
    monkeypatch.setattr(costs, "slowness", lambda: made.slowness)
    return made


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Function that runs files of tests with nothing but the two plugins; ``spend`` is theirs to call."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers =\n    slow: takes long\n")

    def run(*arguments: str, **files: str) -> pytest.RunResult:
        head = "import pytest\nfrom tests.support import costs\n\ndef spend(s):\n    costs.processor_s.seconds += s\n"
        pytester.makepyfile(**{name: head + text for name, text in files.items()})
        return pytester.runpytest_inprocess(*PLUGINS, "-v", *arguments)

    return run


LIMIT = ("--processor-limit", "2")


class TestLimit:
    def test_an_unmarked_test_that_takes_more_fails_by_name(self, clock: Clock, run: Run) -> None:
        done = run(*LIMIT, test_a="def test_quick(): spend(1.9)\ndef test_long(): spend(2.1)\n")
        done.assert_outcomes(passed=2, errors=1)
        done.stdout.fnmatch_lines(["*test_a.py::test_long took 2.1 s of processor time, twice; 2 s are the most*"])

    def test_one_that_is_marked_slow_may_take_what_it_takes(self, clock: Clock, run: Run) -> None:
        run(*LIMIT, test_a="@pytest.mark.slow\ndef test_long(): spend(100)\n").assert_outcomes(passed=1)

    def test_without_a_limit_none_fails(self, clock: Clock, run: Run) -> None:
        run(test_a="def test_long(): spend(100)\n").assert_outcomes(passed=1)

    def test_what_comes_once_does_not_count(self, clock: Clock, run: Run) -> None:
        once = "seen = []\ndef test_imports():\n    spend(0 if seen else 30)\n    seen.append(1)\n"
        run(*LIMIT, test_a=once).assert_outcomes(passed=1)

    @pytest.mark.parametrize(("scope", "errors"), [("module", 0), ("session", 0), ("function", 1)])
    def test_what_several_tests_share_is_none_of_theirs(self, clock: Clock, run: Run, scope: str, errors: int) -> None:
        fixture = f"@pytest.fixture(scope={scope!r})\ndef server():\n    spend(30)\n    yield\n\n"
        done = run(*LIMIT, test_a=fixture + "def test_it(server): spend(1)\n")
        done.assert_outcomes(passed=1, errors=errors)

    @pytest.mark.parametrize(("slowness", "errors"), [(2.0, 0), (1.2, 1)])
    def test_the_limit_is_longer_on_a_slow_machine(self, clock: Clock, run: Run, slowness: float, errors: int) -> None:
        clock.slowness = slowness
        run(*LIMIT, test_a="def test_long(): spend(3)\n").assert_outcomes(passed=1, errors=errors)

    def test_a_failure_is_told_as_it_is_and_not_run_again(self, clock: Clock, run: Run) -> None:
        done = run(*LIMIT, test_a="def test_long():\n    spend(3)\n    print('once')\n    assert False\n")
        done.assert_outcomes(failed=1)
        assert done.stdout.str().count("once") == 2  # in the source that is shown, and what it printed

    def test_one_that_fails_when_it_is_run_again_fails(self, clock: Clock, run: Run) -> None:
        again = "seen = []\ndef test_long():\n    spend(3)\n    assert not seen\n    seen.append(1)\n"
        run(*LIMIT, test_a=again).assert_outcomes(failed=1)


def test_the_ten_that_take_most_are_shown(clock: Clock, run: Run) -> None:
    done = run(test_a="".join(f"def test_{number}(): spend({number})\n" for number in range(12)))
    shown = re.findall(r"^ *(\d+)\.00 s test_a\.py::test_(\d+)$", done.stdout.str(), re.MULTILINE)
    assert [(int(cost), int(name)) for cost, name in shown] == [(number, number) for number in range(11, 1, -1)]
    assert "processor time of 12 tests: 66 s" in done.stdout.str()


def test_probes_tell_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert costs.probe() > 0
    for taken, expected in ((costs.PROBE_S * 3, 3.0), (costs.PROBE_S / 3, 1.0)):
        monkeypatch.setattr(costs, "probe", lambda taken=taken: taken)
        assert costs.slowness() == pytest.approx(expected)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_what_processes_take_counts_while_they_run_and_when_they_have_ended() -> None:
    """A child of a child takes it."""
    inner = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    outer = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}])"
    before = costs.processor_s()
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the inner one has taken its time, and waits
        running = costs.processor_s() - before
        process.communicate(b"\n")
    assert running >= 0.49  # by ticks of a clock
    assert costs.processor_s() - before >= 0.49


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_of_two_runs_on_two_loops_one_is_slow_and_which_it_is_differs(
    is_coroutine: bool, request: pytest.FixtureRequest
) -> None:
    own = str(Path(__file__).with_name("conftest.py"))
    (conftest,) = (each for each in request.config.pluginmanager.get_plugins() if getattr(each, "__file__", "") == own)

    def item(case: int, kind: str, folder: str) -> Any:
        loop = {conftest.LOOP: loop_factories()[kind]} if is_coroutine else {conftest.KIND_OF_LOOP: kind}
        indices = {"case": case, next(iter(loop)): [*loop_factories()].index(kind)}
        spec = SimpleNamespace(params={"case": case} | loop, indices=indices)
        path, name = conftest.TESTS / folder / "test_a.py", f"test_it[{kind}-{case}]"
        return SimpleNamespace(path=path, name=name, callspec=spec, get_closest_marker=lambda name: None)

    def slow_ones(folder: str) -> list[list[str]]:
        is_second = conftest._is_on_its_second_loop
        return [[kind for kind in loop_factories() if is_second(item(case, kind, folder))] for case in range(20)]

    assert sorted(map(tuple, slow_ones("runtime")))[::19] == [(kind,) for kind in sorted(loop_factories())]
    assert slow_ones("nn") == [[]] * 20  # which run on one anyway


FILES = {f"test_{name}": "def test_one(): pass\ndef test_two(): pass\n" for name in "abcdef"}


class TestBudget:
    def order(self, run: Run, seed: str) -> list[str]:
        done = run("--seconds", "1000", "--seed", seed, **FILES)
        done.assert_outcomes(passed=12)
        assert "0 tests were not run" in done.stdout.str()
        return re.findall(r"^(test_\w)\.py::test_(\w+) PASSED", done.stdout.str(), re.MULTILINE)

    def test_a_seed_draws_the_order_of_the_files(self, run: Run) -> None:
        orders = [self.order(run, seed) for seed in ("x", "y")]
        assert self.order(run, "x") == orders[0] != orders[1]
        for order in orders:
            assert order[::2] == [(file, "one") for file, _ in order[::2]]
            assert order[1::2] == [(file, "two") for file, _ in order[::2]]

    def test_none_is_started_when_the_time_is_over(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [time.time()]
        monkeypatch.setattr(budget, "time", SimpleNamespace(time=lambda: now[0]))
        monkeypatch.setattr(costs, "processor_s", lambda: now.__setitem__(0, now[0] + 1) or now[0])  # one for each test
        done = run("--seconds", "9", **FILES)
        passed = done.parseoutcomes()["passed"]
        assert 0 < passed < 12
        assert f"{12 - passed} tests were not run: 9 s were over" in done.stdout.str()

    @pytest.mark.slow
    def test_workers_stop_at_the_same_time_and_their_counts_are_added_up(self, pytester: pytest.Pytester) -> None:
        pytest.importorskip("xdist")
        pytester.makepyfile(**FILES)
        root = str(Path(__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": root, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "xdist", *PLUGINS, "-n2", "--dist", "worksteal", "--seconds", "0"],
            cwd=pytester.path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert "12 tests were not run" in done.stdout, done.stdout + done.stderr
