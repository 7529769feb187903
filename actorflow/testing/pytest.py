"""A plugin of pytest: fixtures for tests of services, on a clock that jumps or under many seeds.

pytest imports it in each of its runs where the package is installed, so it imports nothing else before a test asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from actorflow.testing import Simulated

_T = TypeVar("_T")
_SEED = "--simulate-seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which one seed is run again."""
    group = parser.getgroup("actorflow")
    group.addoption(_SEED, type=int, metavar="SEED", help="the only seed that the fixture `simulate` takes")


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., list[Simulated]]:
    """`actorflow.testing.simulate` under the seeds from 0 on, 100 or as many as ``seeds=`` says.

    It is given what that is, but for the seed, and returns a list of what that does. The first seed that fails ends the
    test, and a note says with which option pytest runs that one alone.
    """
    from actorflow.testing import simulate

    only: int | None = request.config.getoption(_SEED)

    def simulated(
        program: Callable[[], Coroutine[Any, Any, object]], *, seeds: int = 100, **how: Any
    ) -> list[Simulated]:
        found = []
        for seed in range(seeds) if only is None else [only]:
            try:
                found.append(simulate(program, seed=seed, **how))
            except BaseException as error:
                error.add_note(f"again: pytest '{request.node.nodeid}' {_SEED}={seed}")
                raise
        return found

    return simulated


@pytest.fixture
def virtual_time() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """A function that runs a coroutine on a loop of `actorflow.testing.virtual_time_loop`, and returns what it does.

    An async test of pytest-asyncio that asks for it runs on such a loop itself.
    """
    from actorflow.testing import virtual_time_loop

    def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            return runner.run(coroutine)

    return run


class _VirtualTime:
    """Says to pytest-asyncio which loop a test has."""

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_asyncio_loop_factories(self) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
        from actorflow.testing import virtual_time_loop

        return {"virtual_time": virtual_time_loop}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Answer pytest-asyncio for these tests alone: where there is an answer for one, it wants one for each."""
    if virtual_time.__name__ not in metafunc.fixturenames:
        return (yield)
    answer = _VirtualTime()
    metafunc.config.pluginmanager.register(answer)
    try:
        return (yield)
    finally:
        metafunc.config.pluginmanager.unregister(answer)
