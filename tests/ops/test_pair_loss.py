"""Losses of elements and targets; PyTorch checks the values in tests/oracle."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.loss import MseLossDown
from actorflow.testing import check_gradient

KINDS = [
    ops.MseLoss,
    ops.L1Loss,
    ops.HuberLoss,
    ops.HingeLoss,
    ops.BinaryCrossEntropyWithLogits,
    ops.BinaryCrossEntropy,
]
FORMS = [
    *(ops.mse_loss, ops.l1_loss, ops.huber_loss, ops.hinge_loss),
    *(ops.binary_cross_entropy_with_logits, ops.binary_cross_entropy),
]
X = np.array([[0.2, 0.7, 0.45], [0.9, 0.11, 0.6]])
TARGET = np.array([[0.6, 0.1, 0.8], [0.25, 0.55, 0.3]])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_x_and_target(kind, reduction) -> None:
    check_gradient(kind(reduction, 0.7), X, TARGET)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(kind, reduction) -> None:
    g = np.array(1.3) if reduction == "mean" else TARGET + 1
    wrt = [0] if kind is ops.L1Loss else [0, 2] if kind is ops.HingeLoss else [0, 1, 2]
    check_gradient(kind(reduction, 0.7).down, g, X, TARGET, wrt=wrt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize("shape", [(7, 3), (90_000,), (3, 200, 90)])
def test_blocks_and_layouts_do_not_matter(compute, laid_out, kind, layout, shape) -> None:
    random = np.random.default_rng(0)
    x, target = (0.1 + 0.8 * random.random(shape) for _ in range(2))
    each = compute(kind("none"), laid_out(x, layout), laid_out(target, layout))[0]
    few = tuple(slice(0, 3) for _ in shape)
    np.testing.assert_array_equal(each[few], compute(kind("none"), x[few], target[few])[0])
    total = compute(kind("sum"), laid_out(x, layout), laid_out(target, layout))[0]
    np.testing.assert_allclose(total, each.sum(), rtol=1e-12)
    np.testing.assert_allclose(compute(kind(), x, target)[0], each.mean(), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_element_has_no_mean_and_the_sum_0(compute, kind) -> None:
    empty = np.ones((0, 3))
    assert np.isnan(compute(kind(), empty, empty)[0])
    assert compute(kind("sum"), empty, empty)[0] == 0
    assert compute(kind().down, np.array(1.0), empty, empty)[0].shape == (0, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(compute, kind, name) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    x, target = np.full(5000, 0.25).astype(dtype), np.full(5000, 0.75).astype(dtype)
    (found,) = compute(kind(), x, target)
    assert found.dtype == dtype
    expected = compute(kind(), np.array([0.25]), np.array([0.75]))[0]
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=0.01)


@pytest.mark.parametrize("form", FORMS)
def test_inputs_that_do_not_fit_are_errors(form) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 3))
    with pytest.raises(af.ShapeError, match=r"target must have x's shape \(2, 3\), got float32\[3\]"):
        form(x, graph.blob("short", (3,)))
    with pytest.raises(af.DTypeError, match="target must have x's dtype float32, got int64"):
        form(x, graph.blob("whole", (2, 3), "int64"))
    with pytest.raises(af.GraphError, match="reduction must be one of mean, sum, none, got 'max'"):
        form(x, graph.blob("target", (2, 3)), reduction="max")


def test_delta_must_be_positive() -> None:
    graph = af.Graph("g")
    with pytest.raises(af.GraphError, match="HuberLoss: delta must be positive, got 0"):
        ops.huber_loss(graph.blob("x", (2,)), graph.blob("t", (2,)), 0)


def test_gradient_operations_check_g(compute) -> None:
    with pytest.raises(af.ShapeError, match=r"MseLossDown: g must have shape \(\), got float64\[2\]"):
        compute(MseLossDown(), np.ones(2), np.ones(2), np.ones(2))
    with pytest.raises(af.ShapeError, match=r"MseLossDown: g must have shape \(2,\), got float64\[\]"):
        compute(MseLossDown("none"), np.array(1.0), np.ones(2), np.ones(2))
