"""Random graphs spread over the CPU and two simulated accelerators, in every disturbance that the CPU alone meets.

The race detector looks at all of it: a race would be the error of an op. Captured graphs are run the same way.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.testing import inject
from tests.support.loads import GRAPHS, Subject, cancel_at_every_turn, fail_at_every_op, leaves_nothing
from tests.support.recipes import PLACES, Recipe, recipes

CAPTURE = pytest.mark.parametrize("capture", [False, True], ids=["plain", "captured"])


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """Keep what was there before out of the garbage collector's way."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def holds(recipe: Recipe, capture: bool, cases: Callable[[Subject], Coroutine[Any, Any, None]]) -> None:
    if capture:  # where capturing is possible
        recipe = replace(recipe, slack=None, sequential=False)
    with patch.object(af, "Graph", partial(af.Graph, capture=capture)):
        await leaves_nothing(recipe, cases)


@CAPTURE
@GRAPHS
@given(
    recipe=recipes(PLACES),
    delays=st.lists(st.tuples(st.integers(0, 8), st.sampled_from((0.0, 2e-4))), max_size=3),
    rounds=st.integers(2, 5),
)
async def test_equals_the_sequential_program(
    capture: bool, recipe: Recipe, delays: list[tuple[int, float]], rounds: int
) -> None:
    async def cases(subject: Subject) -> None:
        if capture:  # an injected delay ends capturing
            for _ in range(rounds):
                await subject.rest()
            return
        for op, delay_s in delays:
            inject(subject.graph, subject.ops[op % len(subject.ops)], delay_s=delay_s)
            await subject.rest()

    await holds(recipe, capture, cases)


@CAPTURE
@GRAPHS
@given(recipe=recipes(PLACES), frame=st.integers(0, 7), other=st.integers(0, 8), once=st.booleans())
async def test_a_failure_at_every_op(capture: bool, recipe: Recipe, frame: int, other: int, once: bool) -> None:
    await holds(recipe, capture, lambda subject: fail_at_every_op(subject, frame, other, once))


@pytest.mark.slow
@CAPTURE
@GRAPHS
@given(recipe=recipes(PLACES), victim=st.integers(0, 7), stride=st.integers(1, 4))
async def test_cancellation_at_every_turn(capture: bool, recipe: Recipe, victim: int, stride: int) -> None:
    await holds(recipe, capture, lambda subject: cancel_at_every_turn(subject, victim, stride))
