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
from actorflow.ops.nn.loss import NllLossDown, SoftmaxLossDown
from actorflow.testing import check_gradient

batches = st.lists(st.integers(1, 4), max_size=2).map(tuple)
dtypes = st.sampled_from(["float32", "float64"])
layouts = st.sampled_from(["C", "F", "strided"])
label_dtypes = st.sampled_from(["int64", "int32", "uint8"])


@settings(deadline=None)
@given(batches, st.integers(1, 5), dtypes, layouts, label_dtypes)
def test_softmax_loss_and_its_gradient(
    compute, laid_out, tolerance, batch, classes, dtype, layout, labels_dtype
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((*batch, classes)).astype(dtype)
    labels = random.integers(0, classes, batch).astype(labels_dtype)
    loss, dx, count = 0.0, np.zeros_like(x), math.prod(batch)
    for index in np.ndindex(*batch):
        powers = [math.exp(v) for v in x[index]]
        loss -= math.log(powers[labels[index]] / sum(powers)) / count
        for c in range(classes):
            dx[(*index, c)] = 2.0 * (powers[c] / sum(powers) - (c == labels[index])) / count
    x, labels = laid_out(x, layout), laid_out(labels, layout)
    np.testing.assert_allclose(compute(ops.SoftmaxLoss(), x, labels)[0], loss, **tolerance(dtype))
    g = np.array(2.0, dtype)
    np.testing.assert_allclose(compute(SoftmaxLossDown(), g, x, labels)[0], dx, **tolerance(dtype))


def test_softmax_loss_gradient() -> None:
    check_gradient(ops.SoftmaxLoss(), np.random.default_rng(0).standard_normal((3, 4)), np.array([0, 3, 1]))


def test_softmax_loss_of_large_scores_does_not_overflow(compute) -> None:
    x = np.array([[1e4, 0.0], [1e4, 0.0]], np.float32)
    np.testing.assert_array_equal(compute(ops.SoftmaxLoss(), x, np.array([0, 1]))[0], 5e3)


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


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.data(), dtypes, layouts)
def test_accuracy(compute, laid_out, batch, classes, data, dtype, layout) -> None:
    top = data.draw(st.integers(1, classes))
    random = np.random.default_rng(0)
    x = random.integers(-2, 3, (batch, classes)).astype(dtype)  # with ties
    labels = random.integers(0, classes, batch)
    right = sum(labels[n] in sorted(range(classes), key=lambda c: (-x[n, c], c))[:top] for n in range(batch))
    (share,) = compute(ops.Accuracy(top), laid_out(x, layout), labels)
    assert share.dtype == np.float32
    assert math.isclose(share, right / batch, rel_tol=1e-6)


@pytest.mark.parametrize("x", [[np.nan, np.nan, np.nan], [0.0, np.nan, 1.0], [1.0, 0.0, np.nan]])
def test_a_prediction_that_is_not_a_number_is_never_right(compute, x) -> None:
    for label in range(3):
        assert compute(ops.Accuracy(), np.array([x]), np.array([label]))[0] == 0
        if np.isnan(x[label]):
            assert compute(ops.Accuracy(3), np.array([x]), np.array([label]))[0] == 0


@pytest.mark.parametrize(
    ("x", "labels", "dtype", "error", "message"),
    [
        ((2, 3), (3,), "int64", af.ShapeError, r"labels must have x's shape without classes \(2,\), got int64\[3\]"),
        ((2, 3), (2,), "float32", af.DTypeError, r"labels must be integers, got float32\[2\]"),
        ((2, 0), (2,), "int64", af.ShapeError, r"x must have shape \(..., classes\) with at least 1 class"),
    ],
)
@pytest.mark.parametrize("form", [ops.softmax_loss, ops.accuracy])
def test_inputs_that_do_not_fit_are_errors_that_name_the_argument(form, x, labels, dtype, error, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(error, match=message):
        form(graph.blob("x", x), graph.blob("labels", labels, dtype))


@pytest.mark.parametrize("top", [0, 4])
def test_top_must_be_a_number_of_classes(top) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.GraphError, match=f"top must be from 1 to x's 3 classes, got {top}"):
        ops.accuracy(graph.blob("x", (2, 3)), graph.blob("labels", (2,), "int64"), top)


def test_the_gradient_of_the_loss_must_be_a_scalar(compute) -> None:
    with pytest.raises(af.ShapeError, match=r"SoftmaxLossDown: g must have shape \(\), got float64\[1\]"):
        compute(SoftmaxLossDown(), np.ones(1), np.ones((2, 3)), np.zeros(2, int))


SCORES = np.random.default_rng(0).standard_normal((2, 3, 4))
CLASSES = np.array([[0, 3, 1], [2, 2, 0]])
WEIGHTS = np.array([0.5, 1.0, 2.0, 0.0])
SETTINGS = [("mean", 1.0, None), ("sum", 0.5, 2), ("none", 2.0, None), ("mean", 0.3, 0)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", [ops.SoftmaxLoss, ops.NllLoss])
def test_gradients_with_weights_and_ignored_labels(kind, settings, weighted) -> None:
    check_gradient(kind(*settings), SCORES, CLASSES, *([WEIGHTS] if weighted else []), wrt=[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_of_gradients(settings, weighted) -> None:
    more = [WEIGHTS] if weighted else []
    g = SCORES[..., 0] if settings[0] == "none" else np.array(1.3)
    check_gradient(SoftmaxLossDown(*settings), g, SCORES, CLASSES, *more, wrt=[0, 1])
    check_gradient(NllLossDown(*settings, classes=4), g, CLASSES, *more, wrt=[0])


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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x, t, w: ops.softmax_loss(x, t, reduction="max"), af.GraphError, "reduction must be one of mean, sum"),
        (lambda x, t, w: ops.nll_loss(x, t, x), af.ShapeError, r"weights must have a value for each of 3 classes, got"),
        (lambda x, t, w: ops.nll_loss(x, t, w), af.DTypeError, r"weights must have dtype float32, got float64\[3\]"),
    ],
)
def test_options_that_do_not_fit_are_errors(make, error, message) -> None:
    graph = af.Graph("g")
    x, labels, weights = graph.blob("x", (2, 3)), graph.blob("t", (2,), "int64"), graph.blob("w", (3,), "float64")
    with pytest.raises(error, match=message):
        make(x, labels, weights)


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
def test_gradients_of_gradients_of_pairs(kind, reduction) -> None:
    graph = af.Graph("g")
    blobs = [graph.blob(name, X.shape, "f8") for name in ("x", "target")]
    weights = np.random.default_rng(0).standard_normal((2, *X.shape))
    loss = ops.sum(ops.power(graph.apply(kind(reduction, 0.7), *blobs), 3.0))
    first = af.gradient(loss, blobs)
    total = ops.add(*(ops.sum(g * w) for g, w in zip(first, weights, strict=True)))
    second = af.gradient(total, blobs)

    def value(*arrays: np.ndarray) -> float:
        return graph.run_sync(dict(zip(blobs, arrays, strict=True)), fetch=[total])[total].item()

    found = graph.run_sync(dict(zip(blobs, (X, TARGET), strict=True)), fetch=second)
    for i, grad in enumerate(second):
        for at in np.ndindex(X.shape):
            change = np.zeros((2, *X.shape))
            change[(i, *at)] = 1e-5
            slope = (value(X + change[0], TARGET + change[1]) - value(X - change[0], TARGET - change[1])) / 2e-5
            np.testing.assert_allclose(found[grad][at], slope, rtol=1e-4, atol=1e-7)


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


@pytest.mark.parametrize("kind", KINDS)
def test_no_element_has_no_mean_and_the_sum_0(compute, kind) -> None:
    empty = np.ones((0, 3))
    assert np.isnan(compute(kind(), empty, empty)[0])
    assert compute(kind("sum"), empty, empty)[0] == 0
    graph = af.Graph("g")
    x, target = graph.variable("x", (0, 3)), graph.blob("target", (0, 3))
    grad = af.gradient(graph.apply(kind(), x, target), x)
    assert graph.run_sync({target: np.ones((0, 3), "f4")}, fetch=grad)[grad].shape == (0, 3)


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
