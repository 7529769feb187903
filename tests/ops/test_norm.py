"""Normalization; PyTorch checks values and gradients in tests/oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.graph.gradient import trainable
from actorflow.ops.nn.lrn import ChannelWindowSum, LRNDown
from actorflow.ops.nn.norm import BatchNormDown, BatchNormInferenceDown
from actorflow.testing import check_gradient


def _drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(shapes)]


def test_batch_norm_and_the_running_statistics(compute) -> None:
    x, scale, shift, mean, variance = _drawn((4, 3, 5), (5,), (5,), (5,), (5,))
    y, found_mean, found_variance, new_mean, new_variance = compute(
        ops.BatchNorm(0.01, 0.3), x, scale, shift, mean, variance
    )
    rows = x.reshape(-1, 5)
    np.testing.assert_allclose(found_mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found_variance, rows.var(0), rtol=1e-12)
    np.testing.assert_allclose(new_mean, 0.7 * mean + 0.3 * rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(new_variance, 0.7 * variance + 0.3 * rows.var(0, ddof=1), rtol=1e-12)
    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 0.01) * scale + shift
    np.testing.assert_allclose(y.reshape(-1, 5), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_large_mean_does_not_spoil_the_variance(compute, dtype) -> None:
    """The sum of squares less the square of the sum would be nothing but rounding errors here."""
    offset = 256 if dtype == "float16" else 20_000
    x = (np.tile([-1.0, 1.0], 50_000) + offset).astype(dtype)[:, np.newaxis]
    wide = "float32" if dtype == "float16" else dtype
    ones, zeros = np.ones(1, dtype), np.zeros(1, dtype)
    y, _, variance, *_ = compute(ops.BatchNorm(0.0), x, ones, zeros, zeros.astype(wide), ones.astype(wide))
    assert variance.dtype == wide
    np.testing.assert_allclose(variance, 1, rtol=1e-4)
    np.testing.assert_allclose(np.abs(y.astype("f8")), 1, rtol=2e-3)
    y, _, variance = compute(
        ops.LayerNorm(epsilon=0.0), x.T, *np.stack([np.ones(100_000), np.zeros(100_000)]).astype(dtype)
    )
    np.testing.assert_allclose(variance, 1, rtol=1e-3)


@pytest.mark.parametrize("axes", [1, 2])
def test_layer_norm_gradient(axes) -> None:
    shape = (2, 3, 4)
    x, scale, shift = _drawn(shape, shape[-axes:], shape[-axes:])
    graph = af.Graph("g")
    blobs = [graph.variable(n, v.shape, "f8", v) for n, v in (("x", x), ("scale", scale), ("shift", shift))]
    y = ops.layer_norm(*blobs, axes=axes)
    target = graph.blob("t", shape, "f8")
    grads = af.gradient(ops.mse_loss(y, target), blobs)
    found = graph.run_sync({target: x[::-1]}, fetch=grads)

    def loss(x, scale, shift):
        over = tuple(range(-axes, 0))
        n = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + 1e-5)
        return np.mean((n * scale + shift - target_value) ** 2)

    target_value = x[::-1]
    for i, grad in enumerate(grads):
        values = [x, scale, shift]
        for index in list(np.ndindex(values[i].shape))[:4]:
            up, down = ([v.copy() for v in values] for _ in range(2))
            up[i][index] += 1e-6
            down[i][index] -= 1e-6
            slope = (loss(*up) - loss(*down)) / 2e-6
            np.testing.assert_allclose(found[grad][index], slope, rtol=1e-5, atol=1e-8)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(2, 4), max_size=3), st.sampled_from(["C", "F", "strided"]))
def test_layouts_do_not_matter(compute, laid_out, batch, layout) -> None:
    x, scale, shift, mean, variance = _drawn((2, *batch, 5), (5,), (5,), (5,), (5,))
    variance = np.abs(variance)
    for operation, arrays in [
        (ops.BatchNorm(), (x, scale, shift, mean, variance)),
        (ops.BatchNormInference(), (x, scale, shift, mean, variance)),
        (BatchNormDown(), (x, x, scale, mean, variance)),
        (BatchNormInferenceDown(), (x, x, scale, mean, variance)),
        (ops.LayerNorm(), (x, scale, shift)),
        (ops.LRN(0.5), (x,)),
    ]:
        for found, wanted in zip(
            compute(operation, *(laid_out(a, layout) for a in arrays)), compute(operation, *arrays), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_running_statistics_are_not_trained_and_move_when_y_is_computed() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 2), "f8")
    scale = graph.variable("scale", (2,), "f8", [1.0, 2.0])
    mean, variance = (graph.variable(name, (2,), "f8", [1.0, 1.0]) for name in ("mean", "variance"))
    y = ops.batch_norm(x, mean, variance, scale, training=True, momentum=0.5)
    loss = ops.mse_loss(y, x)
    assert trainable(loss) == (scale,)
    with pytest.raises(af.GraphError, match="only through inputs that their ops hold constant"):
        af.gradient(loss, mean)
    values = np.arange(8.0).reshape(4, 2)
    graph.run_sync({x: values}, fetch=[loss])
    np.testing.assert_allclose(mean.value, 0.5 + 0.5 * values.mean(0))
    np.testing.assert_allclose(variance.value, 0.5 + 0.5 * values.var(0, ddof=1))


def test_statistics_of_half_precision_are_float32() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 2), "float16")
    mean, variance = (graph.variable(name, (2,), "float32") for name in ("mean", "variance"))
    y = ops.batch_norm(x, mean, variance, training=True)
    assert y.dtype == np.float16
    with pytest.raises(af.DTypeError, match=r"running_mean must be float32\[2\], got float16\[2\]"):
        ops.batch_norm(x, graph.variable("half", (2,), "float16"), variance, training=True)


@pytest.mark.parametrize(
    ("shape", "statistic", "message"),
    [
        ((), (1,), r"x must have shape \(..., channels\)"),
        (
            (1, 3),
            (3,),
            r"BatchNorm: x must have at least 2 elements per channel .*, got float32\[1, 3\]",
        ),
        ((0, 3), (3,), r"x must have at least 2 elements per channel"),
        ((4, 3), (2,), r"running_mean must be float32\[3\], got float32\[2\]"),
    ],
)
def test_shapes_that_do_not_fit_are_errors(shape, statistic, message) -> None:
    graph = af.Graph("g")
    variables = [graph.variable(name, statistic) for name in ("mean", "variance")]
    with pytest.raises((af.ShapeError, IndexError), match=message):
        x = graph.blob("x", shape)
        channels = shape[-1:] or (1,)
        graph.apply(ops.BatchNorm(), x, *(ops.fill(graph, v, channels) for v in (1.0, 0.0)), *variables)


def test_training_needs_variables() -> None:
    graph = af.Graph("g")
    x, mean = graph.blob("x", (4, 3)), graph.blob("mean", (3,))
    with pytest.raises(af.GraphError, match="running_mean must be a variable in training"):
        ops.batch_norm(x, mean, mean, training=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: ops.layer_norm(x, axes=3), r"LayerNorm: axes must be from 1 to x's 2, got 3"),
        (lambda x: ops.layer_norm(x, axes=0), r"LayerNorm: axes must be from 1 to x's 2, got 0"),
        (lambda x: ops.layer_norm(x, epsilon=-1.0), "LayerNorm: epsilon must not be negative, got -1.0"),
        (lambda x: ops.layer_norm(x, x), r"scale must have the shape of x's last axes \(3,\), got float32\[2, 3\]"),
        (lambda x: ops.lrn(x, size=0), "LRN: size must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_errors(make, message) -> None:
    with pytest.raises(af.GraphError if "must not" in message or "size" in message else af.ShapeError, match=message):
        make(af.Graph("g").blob("x", (2, 3)))


# -- across channels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_lrn_is_its_formula(compute, size) -> None:
    (x,) = _drawn((3, 6))
    y, scale = compute(ops.LRN(0.4, 0.6, size, 2.0), x)
    for index in np.ndindex(*x.shape):
        window = [j for j in range(index[1] - size // 2, index[1] + (size - 1) // 2 + 1) if 0 <= j < 6]
        expected = 2.0 + 0.4 / size * sum(x[index[0], j] ** 2 for j in window)
        np.testing.assert_allclose(scale[index], expected, rtol=1e-12)
        np.testing.assert_allclose(y[index], x[index] / expected**0.6, rtol=1e-12)


@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_lrn_gradients(beta) -> None:
    x, g, y = _drawn((2, 5), (2, 5), (2, 5))
    check_gradient(ops.LRN(0.4, beta, 4, 2.0), x)
    check_gradient(ChannelWindowSum(4), x)
    check_gradient(LRNDown(0.4, beta, 4), g, x, y, np.abs(g) + 1)


def test_the_scale_of_lrn_has_a_gradient_too() -> None:
    graph = af.Graph("g")
    x = graph.variable("x", (2, 5), "f8", _drawn((2, 5))[0])
    _, scale = graph.apply(ops.LRN(0.4, 0.75, 4), x)
    alone = graph.apply(ChannelWindowSum(4), ops.square(x)) * 0.1 + 1.0
    found = [af.gradient(ops.sum(ops.square(s)), x) for s in (scale, alone)]
    result = graph.run_sync(fetch=found)
    np.testing.assert_allclose(result[found[0]], result[found[1]], rtol=1e-12)
