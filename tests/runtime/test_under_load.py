"""Random graphs under load: overlap, delays, failures, cancellations and timeouts, against a plain sequential program.

The graphs, and what is checked after each case, are in `tests.support.loads`.
"""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.testing import inject, virtual_time_loop
from tests.support.loads import GRAPHS, Subject, cancel_at_every_turn, fail_at_every_op, leaves_nothing
from tests.support.recipes import Recipe, recipes


@pytest.fixture(scope="module", autouse=True)
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Say how many cases there were; keep what was there before out of the garbage collector's way."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"\ntest_under_load: {Subject.cases} cases")


@GRAPHS
@given(recipe=recipes(), delays=st.lists(st.tuples(st.integers(0, 8), st.sampled_from((0.0, 2e-4))), max_size=3))
async def test_delays_change_no_result(recipe: Recipe, delays: list[tuple[int, float]]) -> None:
    async def cases(subject: Subject) -> None:
        for op, delay_s in delays:
            inject(subject.graph, subject.ops[op % len(subject.ops)], delay_s=delay_s)
            await subject.rest()

    await leaves_nothing(recipe, cases)


@GRAPHS
@given(recipe=recipes(), frame=st.integers(0, 7), other=st.integers(0, 8), once=st.booleans())
async def test_a_failure_at_every_op(recipe: Recipe, frame: int, other: int, once: bool) -> None:
    await leaves_nothing(recipe, lambda subject: fail_at_every_op(subject, frame, other, once))


@GRAPHS
@given(recipe=recipes(), victim=st.integers(0, 7), stride=st.integers(16, 64), again=st.integers(0, 3))
async def test_cancellation_at_some_turns(recipe: Recipe, victim: int, stride: int, again: int) -> None:
    await leaves_nothing(recipe, lambda subject: cancel_at_every_turn(subject, victim, stride, again))


@pytest.mark.slow
@GRAPHS
@given(recipe=recipes(), victim=st.integers(0, 7), stride=st.integers(1, 4), again=st.integers(0, 3))
async def test_cancellation_at_every_turn(recipe: Recipe, victim: int, stride: int, again: int) -> None:
    await leaves_nothing(recipe, lambda subject: cancel_at_every_turn(subject, victim, stride, again))


@GRAPHS
@given(recipe=recipes(), timeout_s=st.sampled_from((0.5, 1.5, 2.5, 4.0)), op=st.integers(0, 8))
def test_timeouts(recipe: Recipe, timeout_s: float, op: int) -> None:
    """On the virtual clock: two ops that take one and two seconds, and a limit that some frames pass."""

    async def cases(subject: Subject) -> None:
        count = len(subject.ops)
        for index in range(count):
            outcomes: dict[int, Any] = {}
            with (
                inject(subject.graph, subject.ops[index], delay_s=1),
                inject(subject.graph, subject.ops[op % count], delay_s=2),
            ):
                await subject.drive(outcomes, **({} if recipe.streams else {"timeout": timeout_s}))
            await subject.check(outcomes, None)

    if not recipe.sequential:  # which blocks the loop, and no clock jumps
        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            runner.run(leaves_nothing(recipe, cases, limit_s=1e6))
