"""Gradients by compositions; those of the operations that have such are checked with their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.composition import composed_gradient
from actorflow.testing import check_gradient


@dataclass(frozen=True)
class Halves(ops.Operation):
    """``x ** 3 / 2`` and ``x * y``, where the first is computed in float32 for float16."""

    arguments = ("x", "y")

    def infer(self, *inputs):
        return inputs

    def compute(self, x, y):
        return x**3 / 2, x * y

    def gradient(self, op, grads, wanted):
        def formula(x, y):
            wide = ops.cast(x, "float32") if x.dtype == "float16" else x
            return ops.cast(wide * wide * wide * 0.5, x.dtype), x * y

        return composed_gradient(formula, op, grads, wanted)


def test_gradients_by_the_composition() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 3, 4))
    check_gradient(Halves(), x, y)
    check_gradient(Halves(), x, y, wrt=[1])


def test_only_what_the_gradient_needs_is_applied() -> None:
    graph = af.Graph("g")
    x, y = graph.blob("x", (3,)), graph.blob("y", (3,))
    _, product = graph.apply(Halves(), x, y)
    before = set(graph.ops)
    af.gradient(ops.sum(product), y)
    kinds = [op.operation.kind for op in graph.ops if op not in before]
    assert kinds.count("Multiply") == 1
    assert "Cast" not in kinds


def test_constants_have_the_dtype_of_what_is_beside_them() -> None:
    graph = af.Graph("g")
    x, y = (graph.variable(name, (3,), "float16", np.array([1, 2, 3], "f2")) for name in "xy")
    cube, _ = graph.apply(Halves(), x, y)
    grad = af.gradient(ops.sum(cube), x)
    assert grad.dtype == np.float16
    np.testing.assert_array_equal(graph.run_sync(fetch=grad)[grad], [1.5, 6, 13.5])
