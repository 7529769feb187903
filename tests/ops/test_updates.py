"""The updates of the optimizers, and gradients limited by their norm."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.updates import NormFactor

ml_dtypes = pytest.importorskip("ml_dtypes")


def test_a_step_of_adam_on_a_gradient_of_nothing_is_nothing(compute) -> None:
    x, zero = np.ones(3), np.zeros(3)
    weight, *_ = compute(ops.AdamUpdate(), x, zero, zero, zero, np.array(0.1), np.array(0))
    np.testing.assert_array_equal(weight, x)


@pytest.mark.parametrize(
    ("settings", "count"), [({}, 4), ({"momentum": 0.5}, 5), ({"momentum": 0.5, "centered": True}, 6)]
)
def test_rmsprop_takes_the_states_it_needs(settings, count) -> None:
    operation = ops.RmsPropUpdate(**settings)
    operation.check_arity(count)
    with pytest.raises(af.GraphError, match=rf"takes {count} inputs \(weight, grad, square, rate.*\), got {count + 1}"):
        operation.check_arity(count + 1)


@pytest.mark.together(
    ("squares", "factor"),
    [
        ([9.0, 16.0], 0.2 / (1 + 2e-7)),
        ([0.25], 1.0),
        ([0.0, 0.0], 1.0),
        ([np.inf], 0.0),
        ([1.0, np.nan], np.nan),
    ],
)
def test_the_factor_is_at_most_1(compute, squares, factor) -> None:
    (found,) = compute(NormFactor(1.0), *map(np.asarray, squares))
    np.testing.assert_allclose(found, factor, rtol=1e-12)


def test_a_norm_of_0_has_gradients_of_any_order() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,), "float64")
    (clipped,) = ops.clip_by_global_norm([x], 1.0)
    first = af.gradient(ops.sum(ops.multiply(clipped, clipped)), x)
    second = af.gradient(ops.sum(first), x)
    result = graph.run_sync({x: np.zeros(3)}, fetch=[first, second])
    np.testing.assert_array_equal(result[first], np.zeros(3))
    np.testing.assert_array_equal(result[second], np.full(3, 2.0))


@pytest.mark.parametrize("place", ["cpu", "sim:0"])
def test_all_gradients_have_one_norm(place) -> None:
    graph = af.Graph("g")
    with graph.at(place):
        a, b = graph.blob("a", (2,), "float64"), graph.blob("b", (1, 2), "float32")
    clipped = ops.clip_by_global_norm([a, b], 2.5)
    assert [blob.spec for blob in clipped] == [a.spec, b.spec]
    assert {blob.place for blob in clipped} == {a.place}
    result = graph.run_sync({a: np.array([3.0, 0.0]), b: np.array([[0.0, 4.0]], "float32")}, fetch=clipped)
    np.testing.assert_allclose(af.to_numpy(result[clipped[0]]), [1.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(af.to_numpy(result[clipped[1]]), [[0.0, 2.0]], rtol=1e-6)


def test_gradients_on_several_places_meet_on_the_cpu() -> None:
    graph = af.Graph("g")
    a, b = graph.blob("a", (2,), place="cpu"), graph.blob("b", (2,), place="sim:0")
    clipped = ops.clip_by_global_norm([a, b], 5.0)
    assert [blob.place for blob in clipped] == [a.place, b.place]
    result = graph.run_sync({a: [6.0, 0.0], b: [0.0, 8.0]}, fetch=clipped)
    np.testing.assert_allclose([af.to_numpy(result[blob]) for blob in clipped], [[3, 0], [0, 4]], rtol=1e-6)
