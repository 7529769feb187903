"""Random expressions of blobs and of lazy arrays: values, gradients, and gradients of gradients."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from tests.support import forms
from tests.support.effort import FULL, slow

EXPRESSIONS, BLOCK = (3_000, 50) if FULL else (60, 5)
MOST_ELEMENTS, LARGEST = 60, 4.0
SHAPES = ((), (3,), (4,), (3, 4), (2, 3), (3, 1), (2, 3, 4), (2, 1, 4), (1,))


class Step(NamedTuple):
    """An operation on earlier values, by their numbers; the inputs of the expression are the first ones."""

    text: str
    form: forms.Form
    inputs: tuple[int, ...]


class Expression:
    """An expression that a seed gives, with its inputs, and values of all steps.

    Compared are the results that no step reads, so that what leads to them may be fused; every other time all.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.inputs = [rng.standard_normal(SHAPES[i]) for i in rng.integers(len(SHAPES), size=2)]
        self.steps: list[Step] = []
        self.values = [*self.inputs]
        wanted = int(rng.integers(3, 10))
        while len(self.steps) < wanted:
            self._grow()
        used = {i for step in self.steps for i in step.inputs}
        self.sinks = [i for i in range(len(self.values)) if i not in used and i >= len(self.inputs)]
        self.compared = self.sinks if seed % 2 else [*range(len(self.inputs), len(self.values))]
        self.weights = [rng.standard_normal(self.values[i].shape) for i in self.sinks]
        self.directions = [rng.standard_normal(x.shape) for x in self.inputs]

    def _grow(self) -> None:
        """Add a random step, if it is defined, smooth and not large."""
        rng, values = self.rng, self.values
        at = int(max(rng.integers(len(values), size=2)))
        x = values[at]
        table, inputs = forms.drawn(rng, x.shape), [at]
        name = [*table][rng.integers(len(table))]
        if table is forms.TWO:
            fitting = [i for i, y in enumerate(values) if _fits(x.shape, y.shape)]
            inputs.insert(int(rng.integers(2)), fitting[rng.integers(len(fitting))])
        step = Step(name, table[name], tuple(inputs))
        value = step.form(*[xp.asarray(values[i]) for i in inputs]).to_numpy()
        if 0 < value.size <= MOST_ELEMENTS and np.isfinite(value).all():
            self._add(step, value)
            if (largest := np.abs(value).max()) > LARGEST:
                factor = float(1.0 / largest)
                self._add(Step("scaled", lambda x: x * factor, (len(values) - 1,)), value * factor)

    def _add(self, step: Step, value: Any) -> None:
        self.steps.append(step)
        self.values.append(np.asarray(value))

    def evaluate(self, inputs: Any) -> list[Any]:
        """Values of all steps, after those of the inputs."""
        values = [*inputs]
        for step in self.steps:
            values.append(step.form(*[values[i] for i in step.inputs]))
        return values

    def loss(self, values: list[Any]) -> Any:
        """A number that depends on all results, and on all inputs by more than a straight line."""
        terms = [(values[i] * weight).sum() for i, weight in zip(self.sinks, self.weights, strict=True)]
        for value in values[: len(self.inputs)]:
            terms.append((value * value * value).sum())
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def along(self, step: float) -> float:
        """The loss for inputs that are moved along the directions."""
        moved = [xp.asarray(x + step * d) for x, d in zip(self.inputs, self.directions, strict=True)]
        return float(self.loss(self.evaluate(moved)))

    def projected(self, parts: Any) -> Any:
        """The sum of gradients times the directions."""
        first, *rest = [(part * d).sum() for part, d in zip(parts, self.directions, strict=True)]
        for each in rest:
            first = first + each
        return first

    def __str__(self) -> str:
        inputs = [f"{i} = input {x.shape}" for i, x in enumerate(self.inputs)]
        return "; ".join(
            [*inputs, *[f"{i} = {s.text} of {s.inputs}" for i, s in enumerate(self.steps, len(self.inputs))]]
        )


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= MOST_ELEMENTS
    except ValueError:
        return False


class Found(NamedTuple):
    """Values of steps, the gradients of the loss, and the gradients of these along the directions."""

    values: list[np.ndarray]
    first: list[np.ndarray]
    second: list[np.ndarray]


def by_graph(expression: Expression) -> Found:
    graph = af.Graph("expression")
    blobs = [graph.blob(f"x{i}", x.shape, "float64") for i, x in enumerate(expression.inputs)]
    values = expression.evaluate(blobs)
    first = af.gradient(expression.loss(values), blobs)
    second = af.gradient(expression.projected(first), blobs)
    computed = [values[i] for i in expression.compared]
    result = graph.run_sync(dict(zip(blobs, expression.inputs, strict=True)), fetch=[*computed, *first, *second])
    return Found([result[y] for y in computed], [result[y] for y in first], [result[y] for y in second])


def by_arrays(expression: Expression) -> Found:
    inputs = [xp.asarray(x) for x in expression.inputs]
    every = tuple(range(len(inputs)))
    first = af.grad(lambda *xs: expression.loss(expression.evaluate(xs)), every)
    second = af.grad(lambda *xs: expression.projected(first(*xs)), every)
    values = expression.evaluate(inputs)
    groups = ([values[i] for i in expression.compared], first(*inputs), second(*inputs))
    del values
    return Found(*[[x.to_numpy() for x in group] for group in groups])


def differences(phi: Callable[[float], float]) -> tuple[float | None, float | None]:
    """The first two derivatives at 0, by central differences; None where no two steps agree, as near corners."""
    found: list[tuple[float, float]] = []
    for h in (1e-4, 4e-4, 1e-3, 4e-3, 1e-2):
        a, b, c, d, e = (phi(i * h) for i in (-2, -1, 0, 1, 2))
        found.append(((a - 8 * b + 8 * d - e) / (12 * h), (-a + 16 * b - 30 * c + 16 * d - e) / (12 * h * h)))
    best: list[float | None] = []
    for estimates, tolerance in zip(zip(*found, strict=True), (1e-6, 1e-4), strict=True):
        best.append(next((p for p, q in pairwise(estimates) if abs(p - q) <= tolerance * (1.0 + abs(p))), None))
    return best[0], best[1]


def check(seed: int) -> int:
    """Check one expression; returns how many of its two derivatives had no difference quotient to compare with."""
    expression = Expression(seed)
    try:
        found = by_graph(expression)
        for i, value in zip(expression.compared, found.values, strict=True):
            expected = expression.values[i]
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9, strict=True, err_msg=f"value {i}")
        for part, mine, its in zip(Found._fields, found, by_arrays(expression), strict=True):
            for position, (a, b) in enumerate(zip(mine, its, strict=True)):
                np.testing.assert_allclose(b, a, rtol=1e-7, atol=1e-7, strict=True, err_msg=f"{part} {position}")
        skipped = 0
        for name, parts, expected, tolerance in zip(
            ("first", "second"), (found.first, found.second), differences(expression.along), (1e-5, 1e-3), strict=True
        ):
            if expected is None:
                skipped += 1
                continue
            mine = float(expression.projected(parts))
            np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance, err_msg=f"{name} derivative")
    except Exception as error:
        error.add_note(f"seed {seed}: {expression}")
        raise
    return skipped


@pytest.mark.parametrize("first", slow(range(0, EXPRESSIONS, BLOCK), but={0, 10, 20}))
def test_graphs_and_arrays_agree(first: int) -> None:
    skipped = sum([check(seed) for seed in range(first, first + BLOCK)])
    assert skipped <= BLOCK / 2  # of twice as many
