"""Random graphs spread over the CPU and two simulated accelerators, in every disturbance that the CPU alone meets.

The race detector looks at all of it: a race would be the error of an op.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.testing import inject
from tests.support.loads import GRAPHS, Subject, cancel_at_every_turn, fail_at_every_op, leaves_nothing
from tests.support.recipes import PLACES, Recipe, recipes


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """Keep what was there before out of the garbage collector's way."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@GRAPHS
@given(recipe=recipes(PLACES), delays=st.lists(st.tuples(st.integers(0, 8), st.sampled_from((0.0, 2e-4))), max_size=3))
async def test_equals_the_sequential_program(recipe: Recipe, delays: list[tuple[int, float]]) -> None:
    async def cases(subject: Subject) -> None:
        for op, delay_s in delays:
            inject(subject.graph, subject.ops[op % len(subject.ops)], delay_s=delay_s)
            await subject.rest()

    await leaves_nothing(recipe, cases)


@GRAPHS
@given(recipe=recipes(PLACES), frame=st.integers(0, 7), other=st.integers(0, 8), once=st.booleans())
async def test_a_failure_at_every_op(recipe: Recipe, frame: int, other: int, once: bool) -> None:
    await leaves_nothing(recipe, lambda subject: fail_at_every_op(subject, frame, other, once))


@pytest.mark.slow
@GRAPHS
@given(recipe=recipes(PLACES), victim=st.integers(0, 7), stride=st.integers(1, 4))
async def test_cancellation_at_every_turn(recipe: Recipe, victim: int, stride: int) -> None:
    await leaves_nothing(recipe, lambda subject: cancel_at_every_turn(subject, victim, stride))
