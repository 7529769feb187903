"""Random programs of branches and loops give what Python gives, and their gradients are those of finite differences."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.runtime.call import reached
from tests.support.effort import slow
from tests.support.flow_programs import BODIES, SHAPE, Eager, Graphs, Program

COUNT = 3000 if os.environ.get("ACTORFLOW_FULL_TESTS") else 40
#: A step of finite differences, and how far from the gradient they may be.
STEP, TOLERANCE = 1e-6, 1e-5


def drawn(seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, SHAPE), rng.uniform(-1, 1, SHAPE)


@pytest.mark.any_loop
@pytest.mark.together("seed", slow(range(COUNT), but=range(24)), at_once=3)
async def test_values_and_gradients(seed: int) -> None:
    calls = seed % 8 == 7
    program = Program(seed, random.Random(seed).randint(1, 3), (*BODIES, "call") if calls else BODIES)
    given = drawn(seed)
    expected = program(Eager, *given)
    async with af.Graph("random") as graph:
        x = graph.blob("x", SHAPE, "float64")
        w = graph.variable("w", SHAPE, "float64", init=given[1])
        y = program(Graphs, x, w)
        loss = af.ops.sum(y * y)
        dx, dw = af.gradient(loss, [x, w]) if seed % 2 else (None, None)
        fetch = [y] if dx is None else [y, dx, dw]
        for _ in range(2):
            result = await graph.run({x: given[0]}, fetch=fetch)
            np.testing.assert_allclose(result[y], expected, rtol=1e-12, atol=1e-12)
        if not calls:
            arrays = program(Graphs, *map(xp.asarray, given))
            np.testing.assert_allclose(arrays.to_numpy(), expected, rtol=1e-12, atol=1e-12)
        for other in {*reached(graph)} - {graph}:
            await other.aclose()
        if dx is not None:
            _check_gradients(program, given, [result[dx], result[dw]])


def _check_gradients(program: Program, given: Any, found: list[Any]) -> None:
    def loss(values: list[Any]) -> Any:
        y = program(Eager, *values)
        return np.sum(y * y)

    for which, gradient in enumerate(found):
        for i in range(SHAPE[0]):
            sides = []
            for sign in (1, -1):
                values = [value.copy() for value in given]
                values[which][i] += sign * STEP
                sides.append(loss(values))
            slope = (sides[0] - sides[1]) / (2 * STEP)
            middle = loss(list(given))
            if abs(sides[0] + sides[1] - 2 * middle) > 1e-6 * max(1, abs(middle)):
                continue  # a condition has changed between the two sides
            np.testing.assert_allclose(gradient[i], slope, rtol=TOLERANCE, atol=TOLERANCE)
