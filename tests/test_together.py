"""Cases that are one test: all are run, each failure names its own, and what is slow stays apart."""

import asyncio
from collections.abc import Callable

import pytest

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
SEEN: list[float] = []


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Function that runs a file of tests without plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers =\n    slow: takes long\n    together: cases\n")

    def run(text: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(f"import pytest\n\n{text}")
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "tests.support.together", "-v", *arguments)

    return run


def test_all_cases_are_run_and_a_failure_names_its_own(run: Run) -> None:
    done = run("@pytest.mark.together('x', [1, 0, 2])\ndef test_it(x):\n    print('tried', x)\n    assert 2 / x\n")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["*test_it FAILED*", "E  *ZeroDivisionError*", "E  *case 0", "tried 1", "tried 0", "tried 2"]
    )


def test_several_failures_are_all_named(run: Run) -> None:
    done = run(
        "@pytest.mark.together('x', [1, 0, 'text', 0], ids=['one', 'none', 'text', 'none'])\n"
        "def test_it(x):\n    with pytest.raises(ZeroDivisionError):\n        1 // x\n    assert x == 0\n"
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["*ExceptionGroup: 2 cases: one, text*", "*DID NOT RAISE*", "*case one", "*TypeError*", "*case text"]
    )


def test_two_make_all_combinations_beside_parameters_and_fixtures(run: Run) -> None:
    done = run(
        "@pytest.fixture\ndef seen():\n    cases = []\n    yield cases\n    print('seen', *cases)\n\n"
        "@pytest.mark.together('a', 'xy')\n@pytest.mark.parametrize('n', [7, 8])\n"
        "@pytest.mark.together('b, c', [(1, 2), (3, 4)])\n"
        "def test_it(seen, a, b, n, c):\n    seen.append(f'{a}{b}{c}{n}')\n",
        "-s",
    )
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*test_it[[]7[]]*seen x127 y127 x347 y347", "*test_it[[]8[]]*seen x128 y128 x348 y348"])


def test_parts_and_slow_cases_are_tests_of_their_own(run: Run) -> None:
    text = (
        "class TestIt:\n    @pytest.mark.together(\n        'x',"
        " [1, 2, 3, pytest.param(5, id='five', marks=pytest.mark.slow)], at_once=2)\n"
        "    def test_it(self, x):\n        assert x != 5\n"
    )
    run(text, "-m", "not slow").assert_outcomes(passed=2, deselected=1)
    done = run(text, "-m", "slow")
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(["*test_it[[]slow0[]] FAILED*", "E  *case five"])


def test_cases_are_chosen_by_name(run: Run) -> None:
    text = "@pytest.mark.together('x', [1, 21, 3])\ndef test_it(x):\n    assert x == 3\n"
    chosen = run(text, "--cases", "1$")
    chosen.assert_outcomes(failed=1)
    chosen.stdout.fnmatch_lines(["*ExceptionGroup: 2 cases: 1, 21*"])
    run(text, "--cases", "4").stdout.fnmatch_lines(["*no case of test_it is like '4': *'1', '21'*"])


def test_it_is_skipped_where_all_cases_are(run: Run) -> None:
    text = "@pytest.mark.together('x', [1, 2])\ndef test_it(x):\n    if x < {}:\n        pytest.skip('small')\n"
    run(text.format(2)).assert_outcomes(passed=1)
    run(text.format(3)).assert_outcomes(skipped=1)


def test_what_ends_programs_ends_the_test_and_names_the_case(run: Run) -> None:
    test = "def test_it(x):\n    print('tried', x)\n    raise SystemExit\n"
    done = run(f"@pytest.mark.together('x', [1, 2])\n{test}")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["E  *SystemExit*", "E  *case 1", "tried 1"])
    done.stdout.no_fnmatch_line("tried 2")


@pytest.mark.any_loop
@pytest.mark.together("seconds", [0, 1e-6])
async def test_a_coroutine_is_awaited_for_each_case(seconds: float) -> None:
    await asyncio.sleep(seconds)
    SEEN.append(seconds)


def test_both_were_awaited() -> None:
    assert SEEN == [0, 1e-6]
