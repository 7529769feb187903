"""Gradients by compositions; those of the operations that have such are checked with their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
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


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ops.layer_norm(x, epsilon=0.1),
        lambda x: ops.lrn(x, 0.5, size=3),
        lambda x: ops.softmax(x) + ops.log_softmax(x),
        lambda x: ops.lstm(ops.reshape(x, (4, 1, 3)), ops.concat([x] * 4, axis=0)[:12], ops.concat([x] * 3)[:12])[0],
    ],
    ids=["layer norm", "lrn", "softmax", "lstm"],
)
def test_arrays_and_blobs_have_the_same_second_derivatives(function) -> None:
    value = np.random.default_rng(0).standard_normal((4, 3))
    weights = np.random.default_rng(1).standard_normal((4, 3))

    def loss(x):
        return ops.sum(ops.square(function(x)))

    graph = af.Graph("g")
    x = graph.variable("x", (4, 3), "f8", value)
    first = af.gradient(loss(x), x)
    second = af.gradient(ops.sum(first * weights), x)
    result = graph.run_sync(fetch=[first, second])
    found = af.grad(lambda x: ops.sum(af.grad(loss)(x) * xp.asarray(weights)))(xp.asarray(value))
    np.testing.assert_allclose(np.asarray(found), result[second], rtol=1e-9, atol=1e-11)
