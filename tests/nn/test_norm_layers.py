"""Layers that normalize: what they share, what they train; PyTorch checks their values in tests/oracle."""

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.graph.gradient import trainable


def image(dtype: str = "float32") -> tuple[af.Graph, af.Blob]:
    graph = af.Graph("g")
    return graph, graph.blob("x", (2, 3, 3, 4), dtype)


def test_batch_norm_shares_its_variables_and_trains_scale_and_shift() -> None:
    _, x = image()
    layer = nn.BatchNorm()
    top = layer(x)
    layer(x, training=False)
    names = [variable.name for variable in layer.variables]
    assert names == [f"batchnorm/{n}" for n in ("scale", "shift", "running_mean", "running_variance")]
    assert [v.name for v in trainable(ops.mse_loss(top, x))] == names[:2]
    assert [op.operation.kind for op in x.graph.ops if "Norm" in op.operation.kind] == [
        "BatchNorm",
        "BatchNormInference",
    ]


def test_only_the_first_build_in_training_moves_the_running_statistics() -> None:
    graph, x = image()
    layer = nn.BatchNorm(momentum=1.0)
    other = graph.blob("other", x.shape)
    first, second = layer(x), layer(other)
    values = {x: np.random.default_rng(0).random(x.shape, np.float32), other: np.full(x.shape, 7, "f4")}
    graph.run_sync(values, fetch=[first, second])
    mean, _ = layer.statistics
    np.testing.assert_allclose(mean.value, values[x].mean((0, 1, 2)), rtol=1e-5)


async def test_training_with_frames_in_flight_moves_the_statistics_once_a_frame() -> None:
    graph, x = image()
    layer = nn.BatchNorm(momentum=0.5)
    loss = ops.mse_loss(layer(x), x)
    train = nn.SGD(0.0).minimize(loss)
    expected = np.zeros(4)
    async with graph:
        frames = [np.full(x.shape, k, "f4") for k in range(1, 6)]
        async for _ in graph.stream([{x: frame} for frame in frames], fetch=[loss, train], in_flight=3):
            pass
    for k in range(1, 6):
        expected = 0.5 * expected + 0.5 * k
    np.testing.assert_allclose(layer.statistics[0].value, expected, rtol=1e-6)


def test_half_precision_keeps_its_statistics_in_float32() -> None:
    _, x = image("float16")
    layer = nn.BatchNorm()
    assert layer(x).dtype == np.float16
    assert {v.dtype.name for v in layer.statistics} == {"float32"}


def test_layers_without_scale_and_shift_have_no_trained_variables() -> None:
    _, x = image()
    layer = nn.LayerNorm(affine=False)
    assert layer(x).spec == x.spec
    assert layer.variables == ()
    norm = nn.BatchNorm(affine=False)
    norm(x)
    assert norm.variables == norm.statistics


def test_layer_norm_and_lrn() -> None:
    graph, x = image()
    layer = nn.LayerNorm(2)
    tops = [layer(x), nn.LRN(0.5, size=3)(x)]
    assert [v.shape for v in layer.variables] == [(3, 4), (3, 4)]
    value = np.random.default_rng(0).random(x.shape, np.float32)
    result = graph.run_sync({x: value}, fetch=tops)
    np.testing.assert_allclose(result[tops[0]].mean((2, 3)), 0, atol=1e-5)
    assert (np.abs(result[tops[1]]) <= np.abs(value)).all()


def test_group_instance_and_rms_norm() -> None:
    graph, x = image()
    layers = [nn.GroupNorm(2), nn.InstanceNorm(), nn.InstanceNorm(affine=True), nn.RMSNorm()]
    tops = [layer(x) for layer in layers]
    assert [len(layer.variables) for layer in layers] == [2, 0, 2, 1]
    value = np.random.default_rng(0).random(x.shape, np.float32)
    result = graph.run_sync({x: value}, fetch=tops)
    for top in tops[1:3]:
        np.testing.assert_allclose(result[top].mean((1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(result[tops[0]].reshape(2, 9, 2, 2).var((1, 3)), 1, rtol=1e-3)
    np.testing.assert_allclose(np.square(result[tops[3]]).mean(-1), 1, rtol=1e-3)


def test_attention_of_one_context_with_a_mask() -> None:
    graph = af.Graph("g")
    x, context = graph.blob("x", (2, 3, 8)), graph.blob("context", (2, 5, 6))
    layer = nn.MultiHeadAttention(4, 2, bias=False)
    y = layer(x, context, graph.constant(np.arange(5) < 2))
    assert [v.shape for v in layer.variables] == [(8, 8), (4, 6), (4, 6), (8, 8)]
    value = np.random.default_rng(0).random(context.shape, np.float32)
    feeds = {x: np.ones(x.shape, "f4"), context: value}
    first = graph.run_sync(feeds)[y].copy()
    value[:, 2:] = 7
    np.testing.assert_array_equal(graph.run_sync(feeds)[y], first)
    with pytest.raises(af.ShapeError, match=r"MultiHeadAttention takes x \(batch, queries, features\), context"):
        nn.MultiHeadAttention(3)(x)


def test_another_number_of_channels_is_an_error() -> None:
    graph, x = image()
    layer = nn.BatchNorm(affine=False)
    layer(x)
    with pytest.raises(af.ShapeError, match=r"'batchnorm/running_mean' was built with shape \(4,\), this build needs"):
        layer(graph.blob("wide", (2, 5)))
