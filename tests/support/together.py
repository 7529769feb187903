"""The mark ``together``: many small cases in one test, as each test takes 5 ms beside what it does.

``@pytest.mark.together(names, values)`` is written as ``parametrize`` is: ``ids`` makes names of values, or lists them,
and ``pytest.param`` may name a case or mark it slow. All cases are run, at most ``at_once`` of them in one test, and
those that are slow in other ones. A failure says of which case it is, and several are raised as a group that names all.
Cases share the fixtures of their test, which must not remember anything. Several such marks make all combinations.
``--cases`` chooses among them by their names, which ``-k`` cannot.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

AT_ONCE = 100
#: What fails a case: an error, or that there was none.
FAILURES = (Exception, pytest.fail.Exception)
#: What ``pytest.param`` makes.
PARAM = type(pytest.param())


@dataclass(frozen=True)
class Case:
    """Arguments of a test, with a name for messages."""

    arguments: dict[str, Any]
    name: str
    is_slow: bool


class Part(tuple[Case, ...]):
    """Cases of one test: what it is given for each of their arguments."""

    __slots__ = ()


class Outcomes:
    """Outcomes of the cases of one test."""

    def __init__(self) -> None:
        self._failed: list[tuple[str, BaseException]] = []
        self._skipped: list[BaseException] = []
        self._passed = 0

    @contextmanager
    def of(self, case: Case) -> Iterator[None]:
        """Keep the failure of a case, and say of which case it is."""
        try:
            yield
        except pytest.skip.Exception as skipped:
            self._skipped.append(skipped)
        except BaseException as error:
            error.add_note(f"case {case.name}")
            if not isinstance(error, FAILURES) or isinstance(error, pytest.exit.Exception):
                raise
            self._failed.append((case.name, error))
        else:
            self._passed += 1

    def end(self) -> None:
        """Raise what failed, or that all were skipped."""
        if len(self._failed) > 1:
            names, errors = zip(*self._failed, strict=True)
            raise BaseExceptionGroup(f"{len(names)} cases: {', '.join(names)}", errors)
        for _, error in self._failed:
            raise error
        if self._skipped and not self._passed:
            raise self._skipped[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run only the cases of tests marked together in whose names this regular expression is found"
    parser.addoption("--cases", type=re.compile, default=None, metavar="EXPRESSION", help=text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make parts of the cases of a test."""
    marks = [*metafunc.definition.iter_markers("together")]
    if marks:
        cases = [_combined(each) for each in itertools.product(*(_cases(*mark.args, **mark.kwargs) for mark in marks))]
        if (wanted := metafunc.config.getoption("cases")) is not None:
            some = [case.name for case in cases[:2]]
            cases = [case for case in cases if wanted.search(case.name)]
            if not cases:
                raise pytest.UsageError(f"no case of {metafunc.definition.name} is like {wanted.pattern!r}: {some}")
        at_once = min(mark.kwargs.get("at_once", AT_ONCE) for mark in marks)
        names = [name for mark in marks for name in _names(mark.args[0])]
        metafunc.parametrize(names, [*_parts(cases, at_once, len(names))])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with each of its cases."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    part = next((value for value in arguments.values() if isinstance(value, Part)), None)
    if part is None:
        return None
    outcomes = Outcomes()
    for case in part:
        with outcomes.of(case):
            pyfuncitem.obj(**arguments | case.arguments)
    outcomes.end()
    return True


def _names(names: str | Sequence[str]) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]


def _cases(names: str | Sequence[str], values: Any, *, ids: Any = None, at_once: int = AT_ONCE) -> Iterator[Case]:
    """The cases of one mark."""
    names = _names(names)
    for index, value in enumerate(values):
        is_param = isinstance(value, PARAM)
        given = value.values if is_param else value if len(names) > 1 else (value,)
        if is_param and value.id is not None:
            name = value.id
        elif ids is None or callable(ids):
            name = "-".join(_text(ids(each) if ids else each) for each in given)
        else:
            name = str([*ids][index])
        marks = {mark.name for mark in value.marks} if is_param else set()
        assert marks <= {"slow"}, f"a case may be marked slow, not {marks}"
        yield Case(dict(zip(names, given, strict=True)), name, bool(marks))


def _text(value: Any) -> str:
    name = getattr(value, "__name__", None)
    with suppress(Exception):  # some tests are about objects that have no text
        return (name if isinstance(name, str) else str(value))[:60]
    return type(value).__name__


def _combined(cases: Sequence[Case]) -> Case:
    arguments = {name: value for case in cases for name, value in case.arguments.items()}
    return Case(arguments, "-".join(case.name for case in cases), any(case.is_slow for case in cases))


def _parts(cases: Sequence[Case], at_once: int, count: int) -> Iterator[Any]:
    """Parameters of the tests, about as many cases in each."""
    for is_slow in (False, True):
        chosen = [case for case in cases if case.is_slow == is_slow]
        parts = -(-len(chosen) // at_once)
        for i in range(parts):
            part = Part(chosen[len(chosen) * i // parts : len(chosen) * (i + 1) // parts])
            name = f"slow{i}" if is_slow else str(i) if parts > 1 else pytest.HIDDEN_PARAM
            yield pytest.param(*[part] * count, id=name, marks=[pytest.mark.slow] * is_slow)
