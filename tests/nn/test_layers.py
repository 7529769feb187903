"""Layers: what they build, what they share, what they refuse."""

from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops


def image(size: int = 6, channels: int = 2, batch: int = 2) -> tuple[af.Graph, af.Blob]:
    graph = af.Graph("g")
    return graph, graph.blob("x", (batch, size, size, channels))


def test_conv_is_convolution_bias_and_activation() -> None:
    graph, x = image()
    layer = nn.Conv(3, (3, 2), stride=2, pad=(1, 0), activation="relu", bias_init=nn.init.constant(0.1))
    y = layer(x)
    weight, bias = layer.variables
    assert (weight.name, weight.shape, bias.name, bias.shape) == ("conv/weight", (3, 2, 2, 3), "conv/bias", (3,))
    expected = ops.relu(ops.bias(ops.conv(x, weight, 2, (1, 0)), bias))
    result = graph.run_sync({x: np.random.default_rng(0).standard_normal(x.shape).astype("f4")}, fetch=[y, expected])
    np.testing.assert_array_equal(result[y], result[expected])
    assert bias.value.tolist() == [np.float32(0.1)] * 3


def test_inner_product_flattens_and_adds_a_bias() -> None:
    graph, x = image()
    layer = nn.InnerProduct(5)
    y = layer(x)
    assert y.shape == (2, 5)
    weight, bias = layer.variables
    assert (weight.shape, bias.shape) == ((5, 72), (5,))
    value = np.random.default_rng(0).standard_normal(x.shape).astype("f4")
    np.testing.assert_allclose(
        graph.run_sync({x: value}, fetch=[y])[y], value.reshape(2, 72) @ weight.value.T, rtol=1e-4, atol=1e-5
    )


@pytest.mark.together("shape", [(3,), (2, 3), ("batch", "time", 3), (2, 4, 4, 3), ("batch", 2, 2, 2, 3)])
def test_a_linear_layer_works_on_the_last_axis(shape: tuple[Any, ...]) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", shape)
    layer = nn.Linear(5, activation="tanh", name="each")
    y = layer(x)
    assert y.shape == (*x.shape[:-1], 5)
    weight, bias = layer.variables
    assert (weight.name, weight.shape, bias.name, bias.shape) == ("each/weight", (5, 3), "each/bias", (5,))
    value = np.random.default_rng(0).standard_normal([6 if isinstance(n, str) else n for n in shape]).astype("f4")
    np.testing.assert_allclose(graph.run_sync({x: value})[y], np.tanh(value @ weight.value.T), rtol=1e-4, atol=1e-5)


def test_linear_and_inner_product_are_one_of_rows() -> None:
    found = []
    for kind in (nn.InnerProduct, nn.Linear):
        graph = af.Graph("g")
        layer = kind(4, name="fc")
        layer(graph.blob("x", ("batch", 3)))
        found.append([(v.name, v.value.tolist()) for v in layer.variables])
    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [(3,), (), ("batch", "time", 3), (2, 2, 2, 2, 3)])
def test_an_inner_product_takes_rows_and_images_alone(shape: tuple[Any, ...]) -> None:
    x = af.Graph("g").blob("x", shape)
    with pytest.raises(af.ShapeError, match=r"x must have shape .*af\.nn\.Linear\(7\) works on the last axis"):
        nn.InnerProduct(7)(x)
    assert not x.graph.variables


def test_an_inner_product_behind_a_flatten_takes_anything() -> None:
    y = (nn.Flatten() >> nn.InnerProduct(7))(af.Graph("g").blob("x", ("batch", 2, 2, 2, 3)))
    assert y.shape[1:] == (7,)


def test_a_linear_layer_needs_an_axis() -> None:
    with pytest.raises(af.ShapeError, match=r"Linear: x must have shape \(\.\.\., features\), got float32\[\]"):
        nn.Linear(2)(af.Graph("g").blob("x", ()))


def test_a_layer_without_bias_has_one_variable() -> None:
    _, x = image()
    layer = nn.Conv(3, 1, bias=False)
    layer(x)
    assert [variable.name for variable in layer.variables] == ["conv/weight"]


def test_building_again_shares_the_variables() -> None:
    graph, x = image()
    layer = nn.NINBlock(3, (4, 5), pad=1)
    first = layer(x)
    before = graph.variables
    second = layer(graph.blob("other", (7, 3, 3, 2)), training=False)
    assert (first.shape, second.shape) == ((2, 6, 6, 5), (7, 3, 3, 5))
    assert graph.variables == before
    assert [v.shape for v in layer.variables] == [(3, 3, 2, 4), (4,), (1, 1, 4, 5), (5,)]
    with pytest.raises(af.ShapeError, match=r"variable 'ninblock/conv0/weight' was built with shape \(3, 3, 2, 4\)"):
        layer(graph.blob("wide", (1, 4, 4, 3)))


def test_every_convolution_of_a_nin_block_has_a_relu() -> None:
    graph, x = image()
    nn.NINBlock((3, 3), (4, 5, 6))(x)
    assert [op.operation.kind for op in graph.ops] == ["Conv", "Bias", "Relu"] * 3


@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh", "softmax"])
def test_activation(kind) -> None:
    graph, x = image()
    y = nn.Activation(kind)(x)
    assert [op.operation.kind for op in graph.ops] == [kind.capitalize()]
    assert y.spec == x.spec


def test_convolutions_take_images_of_any_rank_and_groups() -> None:
    graph = af.Graph("g")
    for size in ((9,), (9, 8), (5, 6, 7)):
        x = graph.blob(f"x{len(size)}", (2, *size, 4))
        layer = nn.Conv(6, 3, 2, 1, groups=2)
        assert layer(x).shape == (2, *((n - 1) // 2 + 1 for n in size), 6)
        assert layer.variables[0].shape == (*(3 for _ in size), 2, 6)
        assert nn.Conv(4, 3, dilation=2, groups=4, pad=2)(x).shape == x.shape


def test_conv_transpose_is_the_transpose_and_bias() -> None:
    graph, x = image()
    layer = nn.ConvTranspose(4, 3, 2, 1, 1, groups=2, bias_init=nn.init.constant(0.5))
    y = layer(x)
    weight, bias = layer.variables
    assert (weight.shape, bias.shape, y.shape) == ((3, 3, 2, 2), (4,), (2, 12, 12, 4))
    expected = ops.bias(ops.conv_transpose(x, weight, 2, 1, groups=2, output_pad=1), bias)
    result = graph.run_sync({x: np.random.default_rng(0).standard_normal(x.shape).astype("f4")}, fetch=[y, expected])
    np.testing.assert_array_equal(result[y], result[expected])


def test_pool_and_global_average() -> None:
    graph, x = image()
    assert nn.Pool("max", 3, 2)(x).shape == (2, 3, 3, 2)
    assert nn.Pool("max", 3, 2, ceil=False)(x).shape == (2, 2, 2, 2)
    assert nn.Pool("average", 2, pad=1)(x).shape == (2, 4, 4, 2)
    assert nn.GlobalAverage()(x).shape == (2, 2)
    assert nn.GlobalMax()(x).shape == (2, 2)
    assert [op.operation.kind for op in graph.ops] == [
        *("MaxPool", "MaxPool", "AveragePool", "GlobalAverage", "MaxPool", "Reshape")
    ]


@pytest.mark.parametrize("axis", [1, -1])
def test_softmax_adds_up_to_1_along_its_axis(axis) -> None:
    graph, x = image()
    y = nn.Softmax(axis)(x)
    result = graph.run_sync({x: np.random.default_rng(0).standard_normal(x.shape).astype("f4")})
    np.testing.assert_allclose(result[y].sum(axis), np.ones_like(result[y].sum(axis)), rtol=1e-6)


def test_flatten_and_softmax_loss() -> None:
    graph, x = image()
    labels = graph.blob("labels", (2,), "int64")
    flat = nn.Flatten()(x)
    assert flat.shape == (2, 72)
    assert nn.SoftmaxLoss()(flat, labels).shape == ()


def test_dropout_drops_in_training_only() -> None:
    graph, x = image()
    layer = nn.Dropout(0.5, seed=1)
    assert layer(x, training=False) is x
    assert nn.Dropout(0.0)(x) is x
    dropped, again = layer(x), layer(x)
    result = graph.run_sync({x: np.ones(x.shape, "f4")}, fetch=[dropped, again])
    assert set(np.unique(result[dropped])) == {0.0, 2.0}
    assert (result[dropped] != result[again]).any()


def test_dropout_draws_the_same_in_the_same_graph_made_twice() -> None:
    drawn = []
    for _ in range(2):
        graph, x = image()
        y = nn.Dropout(0.5, seed=1)(x)
        drawn.append(graph.run_sync({x: np.ones(x.shape, "f4")}, fetch=[y])[y].copy())
    np.testing.assert_array_equal(*drawn)


def test_layers_chain() -> None:
    _, x = image()
    network = nn.Conv(3, 3) >> nn.Activation("tanh") >> nn.Flatten() >> nn.InnerProduct(4)
    [x] >> network
    assert network.top[0].shape == (2, 4)
    assert len(network.variables) == 4


def test_nin_fits_digits_and_fashion_mnist() -> None:
    for size in (8, 28):
        graph, x = image(size, 1)
        net = nn.NIN(10, (4, 6, 8), seed=1)
        assert net(x).shape == (2, 10)
        assert [v.shape[-1] for v in net.variables if len(v.shape) == 4] == [4, 4, 6, 6, 8, 8, 10]
        kinds = [op.operation.kind for op in graph.ops]
        assert (kinds.count("Dropout"), kinds.count("MaxPool")) == (2, 2)


def test_every_layer_of_nin_has_a_gradient_that_differs_from_zero() -> None:
    graph, x = image(8, 1, batch=4)
    labels = graph.blob("labels", (4,), "int64")
    net = nn.NIN(3, (4, 4), dropout=0.2)
    loss = nn.SoftmaxLoss()(net(x), labels)
    grads = af.gradient(loss, net.variables)
    value = np.random.default_rng(0).standard_normal(x.shape).astype("f4")
    result = graph.run_sync({x: value, labels: np.array([0, 1, 2, 0])}, fetch=grads)
    for variable, grad in zip(net.variables, grads, strict=True):
        assert result[grad].shape == variable.shape
        assert np.abs(result[grad]).max() > 0


def test_a_wrong_bottom_is_an_error() -> None:
    graph, x = image()
    with pytest.raises(af.GraphError, match=r"SoftmaxLoss takes 2 bottom blobs \(x, labels\), got 1"):
        nn.SoftmaxLoss()(x)
    with pytest.raises(af.GraphError, match=r"NIN takes 1 bottom blob \(x\), got 2"):
        nn.NIN(10)(x, x)
    with pytest.raises(af.ShapeError, match=r"Conv: x must have shape \(batch, 1 to 3 spatial axes, channels\)"):
        nn.Conv(3, 1)(graph.blob("flat", (2, 3)))
    with pytest.raises(af.ShapeError, match=r"Conv: x's channels must be a multiple of groups, 3, got float32\["):
        nn.Conv(3, 1, groups=3)(x)
    with pytest.raises(af.GraphError, match=r"Conv: kernel must be a number, or one for each of 2 spatial axes"):
        nn.Conv(3, (1, 1, 1))(x)


def test_a_layer_of_ones_own_says_what_it_is_made_of_by_forward() -> None:
    class Doubled(nn.Layer):
        def forward(self, x: af.Blob, training: bool) -> af.Blob:
            return ops.scale(x, 2.0)

    class Empty(nn.Layer):
        pass

    graph = af.Graph("own")
    x = graph.blob("x", (2, 3))
    chain = [x] >> Doubled() >> nn.Flatten()
    assert graph.run_sync({x: np.ones((2, 3), "f")})[chain.top[0]].tolist() == [[2.0] * 3] * 2
    with pytest.raises(af.GraphError, match=r"Empty does not say what it is made of: define forward\(\)"):
        Empty()(x)
    with pytest.raises(af.GraphError, match=r"Doubled takes 1 bottom blob \(x\), got 2"):
        Doubled()(x, x)
