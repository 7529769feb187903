"""Losses of labels and of pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.graph.gradient import trainable
from actorflow.ops.nn.loss import SoftmaxLossDown
from tests.support.layouts import LAYOUTS

dtypes = st.sampled_from(["float32", "float64"])
layouts = st.sampled_from(LAYOUTS)


@pytest.mark.parametrize("operation", [ops.SoftmaxLoss(), ops.Accuracy()])
def test_an_empty_batch_has_no_mean(compute, operation) -> None:
    assert np.isnan(compute(operation, np.ones((0, 3), np.float32), np.ones(0, int))[0])


def test_an_empty_batch_has_an_empty_gradient(compute) -> None:
    assert compute(SoftmaxLossDown(), np.array(1.0), np.ones((0, 3)), np.ones(0, int))[0].shape == (0, 3)


@pytest.mark.parametrize("operation", [ops.SoftmaxLoss(), ops.Accuracy()])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_label_out_of_range_fails_and_is_named(compute, operation, wrong) -> None:
    with pytest.raises(ValueError, match=rf"labels must be from 0 to 2, got {wrong} at \(1,\)"):
        compute(operation, np.ones((2, 3)), np.array([0, wrong]))


async def test_a_label_out_of_range_fails_the_frame_and_the_op_is_named() -> None:
    graph = af.Graph("g")
    x, labels = graph.blob("x", (1, 3)), graph.blob("labels", (1,), "int64")
    loss = ops.softmax_loss(x, labels)
    async with graph:
        with pytest.raises(af.OpError, match=r"softmaxloss.*labels must be from 0 to 2, got 7"):
            await graph.run({x: np.ones((1, 3), np.float32), labels: np.array([7])})
        result = await graph.run({x: np.ones((1, 3), np.float32), labels: np.array([2])})
    assert math.isclose(result[loss], math.log(3), rel_tol=1e-6)


@pytest.mark.parametrize("x", [[np.nan, np.nan, np.nan], [0.0, np.nan, 1.0], [1.0, 0.0, np.nan]])
def test_a_prediction_that_is_not_a_number_is_never_right(compute, x) -> None:
    for label in range(3):
        assert compute(ops.Accuracy(), np.array([x]), np.array([label]))[0] == 0
        if np.isnan(x[label]):
            assert compute(ops.Accuracy(3), np.array([x]), np.array([label]))[0] == 0


def test_an_ignored_label_may_be_no_class_and_its_scores_anything(compute) -> None:
    x = np.array([[np.inf, 0.0], [1.0, 2.0]])
    labels = np.array([-100, 1])
    with np.errstate(invalid="ignore"):
        (loss,) = compute(ops.SoftmaxLoss(ignore=-100), x, labels)
    np.testing.assert_allclose(loss, math.log(1 + math.exp(-1)))
    with pytest.raises(ValueError, match=r"labels must be from 0 to 1, got -100 at \(0,\)"):
        compute(ops.SoftmaxLoss(), x, labels)


def test_the_mean_of_ignored_samples_is_not_a_number(compute) -> None:
    x, labels = np.ones((2, 3)), np.zeros(2, int)
    assert np.isnan(compute(ops.SoftmaxLoss(ignore=0), x, labels)[0])
    assert compute(ops.SoftmaxLoss("sum", ignore=0), x, labels)[0] == 0


def test_weights_of_classes_are_not_trained() -> None:
    graph = af.Graph("g")
    x, weights = graph.variable("x", (2, 3)), graph.variable("weights", (3,), init=np.ones(3, "f4"))
    loss = ops.softmax_loss(x, graph.blob("labels", (2,), "int64"), weights)
    assert trainable(loss) == (x,)


KINDS = [
    ops.MseLoss,
    ops.L1Loss,
    ops.HuberLoss,
    ops.HingeLoss,
    ops.BinaryCrossEntropyWithLogits,
    ops.BinaryCrossEntropy,
]


@pytest.mark.together("kind", KINDS)
@pytest.mark.together("layout", LAYOUTS)
@pytest.mark.together("shape", [(7, 3), (90_000,), (3, 200, 90)])
def test_blocks_and_layouts_do_not_matter(compute, laid_out, kind, layout, shape) -> None:
    random = np.random.default_rng(0)
    x, target = (0.1 + 0.8 * random.random(shape) for _ in range(2))
    each = compute(kind("none"), laid_out(x, layout), laid_out(target, layout))[0]
    few = tuple(slice(0, 3) for _ in shape)
    np.testing.assert_array_equal(each[few], compute(kind("none"), x[few], target[few])[0])
    total = compute(kind("sum"), laid_out(x, layout), laid_out(target, layout))[0]
    np.testing.assert_allclose(total, each.sum(), rtol=1e-12)
    np.testing.assert_allclose(compute(kind(), x, target)[0], each.mean(), rtol=1e-12)


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, -0.0, 1e-30, -88.5, 104.0, -745.5]), max_size=40),
    st.sampled_from([0.0, 0.25, 1.0]),
    dtypes,
    layouts,
)
def test_logistic_losses_are_precise_for_scores_of_any_size(compute, laid_out, scores, target, dtype, layout) -> None:
    x = np.array([*scores, 0.0], dtype)
    (found,) = compute(ops.BinaryCrossEntropyWithLogits("none"), laid_out(x, layout), np.full_like(x, target))
    wide = x.astype(np.longdouble)
    large = np.maximum(wide, 0) - wide * target  # what is left of it is as precise as the dtype
    expected = large + np.log1p(np.exp(-np.abs(wide)))
    few_ulps = 8 * np.finfo(dtype).eps
    assert (np.abs(found - expected) <= few_ulps * np.maximum(expected, np.abs(wide)) + np.finfo(dtype).tiny).all()


def test_logistic_losses_of_infinities_are_those_of_the_formula(compute) -> None:
    x, target = np.array([np.inf, -np.inf, np.inf, np.nan]), np.array([0.5, 0.5, 1.0, 0.5])
    with np.errstate(invalid="ignore"):
        (found,) = compute(ops.BinaryCrossEntropyWithLogits("none"), x, target)
    np.testing.assert_array_equal(found, [np.nan, np.inf, np.nan, np.nan])


@pytest.mark.together("kind", KINDS)
def test_no_element_has_no_mean_and_the_sum_0(compute, kind) -> None:
    empty = np.ones((0, 3))
    assert np.isnan(compute(kind(), empty, empty)[0])
    assert compute(kind("sum"), empty, empty)[0] == 0
    graph = af.Graph("g")
    x, target = graph.variable("x", (0, 3)), graph.blob("target", (0, 3))
    grad = af.gradient(graph.apply(kind(), x, target), x)
    assert graph.run_sync({target: np.ones((0, 3), "f4")}, fetch=grad)[grad].shape == (0, 3)


@pytest.mark.together("kind", KINDS)
@pytest.mark.together("name", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(compute, kind, name) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    x, target = np.full(5000, 0.25).astype(dtype), np.full(5000, 0.75).astype(dtype)
    (found,) = compute(kind(), x, target)
    assert found.dtype == dtype
    expected = compute(kind(), np.array([0.25]), np.array([0.75]))[0]
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=0.01)
