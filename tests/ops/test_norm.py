"""Normalization; PyTorch checks values and gradients in tests/oracle."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.graph.gradient import trainable
from actorflow.ops.nn.lrn import ChannelWindowSum
from tests.support.numbers import drawn


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


def test_training_needs_variables() -> None:
    graph = af.Graph("g")
    x, mean = graph.blob("x", (4, 3)), graph.blob("mean", (3,))
    with pytest.raises(af.GraphError, match="running_mean must be a variable in training"):
        ops.batch_norm(x, mean, mean, training=True)


# -- across channels ------------------------------------------------------------------------------------------------


def test_the_scale_of_lrn_has_a_gradient_too() -> None:
    graph = af.Graph("g")
    x = graph.variable("x", (2, 5), "f8", drawn((2, 5))[0])
    _, scale = graph.apply(ops.LRN(0.4, 0.75, 4), x)
    alone = graph.apply(ChannelWindowSum(4), ops.square(x)) * 0.1 + 1.0
    found = [af.gradient(ops.sum(ops.square(s)), x) for s in (scale, alone)]
    result = graph.run_sync(fetch=found)
    np.testing.assert_allclose(result[found[0]], result[found[1]], rtol=1e-12)
