"""Models: their parameters, what training and inference build, that all of it learns, what they refuse."""

import math

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from tests.support.effort import slow


def built(net: af.Composite, *shape: int, training: bool = True) -> tuple[int, list[tuple[int, ...]]]:
    """Trained parameters, and the shapes of the top."""
    net(af.Graph("g").blob("x", shape), training=training)
    sizes = [math.prod(v.shape) for v in net.variables if "running" not in v.name]
    return sum(sizes), [blob.shape for blob in net.top]


@pytest.mark.together(
    ("net", "shape", "parameters"),
    [
        (lambda: nn.MLP(10), (2, 28, 28, 1), 203_530),
        (lambda: nn.MLP(10, ()), (2, 28, 28, 1), 7_850),
        (lambda: nn.LeNet(10), (2, 28, 28, 1), 431_080),
        (lambda: nn.NIN.cifar10(), (2, 32, 32, 3), 966_986),
        (lambda: nn.AlexNet(10), (2, 227, 227, 3), 60_965_224 - 990 * 4097),
        (lambda: nn.VGG(10, size=11), (2, 224, 224, 3), 132_863_336 - 990 * 4097),
        (lambda: nn.VGG(10, size=13), (2, 224, 224, 3), 133_047_848 - 990 * 4097),
        (lambda: nn.VGG(10), (2, 224, 224, 3), 138_357_544 - 990 * 4097),
        (lambda: nn.VGG(10, size=19), (2, 224, 224, 3), 143_667_240 - 990 * 4097),
        (lambda: nn.GoogLeNet(10, auxiliary=False), (2, 47, 47, 3), 6_998_552 - 990 * 1025),
        (lambda: nn.ResNet(10), (2, 64, 64, 3), 11_689_512 - 990 * 513),
        (lambda: nn.ResNet(10, size=34), (2, 64, 64, 3), 21_797_672 - 990 * 513),
        (lambda: nn.ResNet(10, size=50), (2, 64, 64, 3), 25_557_032 - 990 * 2049),
        (lambda: nn.ResNet(10, size=101), (2, 64, 64, 3), 44_549_160 - 990 * 2049),
        (lambda: nn.ResNet(10, size=152), (2, 64, 64, 3), 60_192_808 - 990 * 2049),
        (lambda: nn.MobileNetV3(10), (2, 64, 64, 3), 5_483_032 - 990 * 1281),
        (lambda: nn.MobileNetV3(10, size="small"), (2, 64, 64, 3), 2_542_856 - 990 * 1025),
    ],
    at_once=17,
)
def test_parameters(net, shape, parameters) -> None:
    assert built(net(), *shape) == (parameters, [(2, 10)])


def test_googlenet_has_auxiliary_heads_in_training_alone() -> None:
    assert built(nn.GoogLeNet(), 1, 224, 224, 3) == (13_378_280, [(1, 1000)] * 3)
    assert built(nn.GoogLeNet(), 1, 224, 224, 3, training=False) == (6_998_552, [(1, 1000)])
    assert built(nn.GoogLeNet(), 1, 130, 130, 3)[1] == [(1, 1000)] * 3
    net = nn.GoogLeNet(auxiliary=False)
    assert built(net, 1, 224, 224, 3) == (6_998_552, [(1, 1000)])
    assert len(net.variables) == 116


def test_the_loss_of_googlenet() -> None:
    graph = af.Graph("g")
    scores = [graph.blob(f"scores{i}", (4, 3)) for i in range(3)]
    labels = graph.blob("labels", (4,), "int64")
    net = nn.GoogLeNet(3)
    terms = [ops.softmax_loss(y, labels) for y in scores]
    fetch = [net.loss(scores, labels), net.loss(scores[0], labels), net.loss(scores, labels, weight=1.0), *terms]
    random = np.random.default_rng(0)
    feeds = {y: random.standard_normal((4, 3)).astype("f4") for y in scores}
    result = graph.run_sync({**feeds, labels: np.array([0, 1, 2, 0])}, fetch=fetch)
    both, main, full, *single = (float(result[y]) for y in fetch)
    assert both == pytest.approx(single[0] + 0.3 * (single[1] + single[2]), rel=1e-6)
    assert main == single[0]
    assert full == pytest.approx(sum(single), rel=1e-6)


def test_inception_joins_its_branches() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 5, 6, 7))
    block = nn.Inception(2, 3, 4, 5, 6, 8)
    y = block(x)
    assert y.shape == (2, 5, 6, 2 + 3 + 4 + 8)
    assert [v.shape for v in block.variables if len(v.shape) == 4] == [
        (1, 1, 7, 2),
        (1, 1, 7, 5),
        (3, 3, 5, 3),
        (1, 1, 7, 6),
        (5, 5, 6, 4),
        (1, 1, 7, 8),
    ]
    value = np.random.default_rng(0).standard_normal(x.shape).astype("f4")
    weight = block.variables[0].value[0, 0]
    found = graph.run_sync({x: value}, fetch=[y])[y]
    np.testing.assert_allclose(found[..., :2], np.maximum(value @ weight, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (lambda: nn.MLP(3, (8, 8), activation="tanh", dropout=0.1), (6, 4, 4, 1)),
        (lambda: nn.LeNet(3, (4, 4, 8)), (6, 16, 16, 1)),
        (lambda: nn.NIN(3, (8, 8), dropout=0.1), (6, 8, 8, 1)),
        (lambda: nn.VGG(3, size=11, width=4, hidden=16, dropout=0.0), (6, 32, 32, 2)),
        (lambda: nn.ResNet(3, width=4, small_images=True), (6, 8, 8, 2)),
        *slow(
            [
                (lambda: nn.ResNet(3, size=50, width=2, small_images=True), (6, 8, 8, 2)),
                (lambda: nn.MobileNetV3(3, size="small", dropout=0.0), (6, 32, 32, 2)),
            ]
        ),
    ],
)
def test_a_model_learns(net, shape) -> None:
    graph = af.Graph("g")
    x, labels = graph.blob("x", shape), graph.blob("labels", shape[:1], "int64")
    model = net()
    loss = ops.softmax_loss(model(x), labels)
    train = nn.Adam(0.01).minimize(loss)
    feeds = {x: np.random.default_rng(0).standard_normal(shape).astype("f4"), labels: np.arange(shape[0]) % 3}
    found = [float(graph.run_sync(feeds, fetch=[loss, train])[loss]) for _ in range(30)]
    assert found[-1] < found[0] / 2


def test_the_language_model_goes_on_from_its_state() -> None:
    graph = af.Graph("g")
    tokens = graph.blob("tokens", (6, 2), "int64")
    model = nn.LSTMLanguageModel(11, features=5, hidden=4, layers=2, dtype="float64")
    whole = model(tokens, training=False)
    halves = ops.split(tokens, 2, axis=0)
    first, *state = model(halves[0], training=False)
    second, *last = model(halves[1], *state, training=False)
    assert [y.shape for y in whole] == [(6, 2, 11), (2, 2, 4), (2, 2, 4)]
    assert whole[0].dtype == "float64"
    feed = np.random.default_rng(0).integers(0, 11, (6, 2))
    result = graph.run_sync({tokens: feed}, fetch=[*whole, first, second, *last])
    np.testing.assert_allclose(np.concatenate([result[first], result[second]]), result[whole[0]], rtol=1e-12)
    for found, expected in zip(last, whole[1:], strict=True):
        np.testing.assert_allclose(result[found], result[expected], rtol=1e-12)


def test_embedding() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 3), "int32")
    layer = nn.Embedding(4, 5, dtype="float64")
    y = layer(x)
    assert (y.shape, y.dtype) == ((2, 3, 5), np.dtype("float64"))
    feed = np.array([[0, 3, 1], [2, 2, 0]], np.int32)
    np.testing.assert_array_equal(graph.run_sync({x: feed}, fetch=[y])[y], layer.variables[0].value[feed])


def test_a_wrong_bottom_is_an_error() -> None:
    graph = af.Graph("g")
    x, flat = graph.blob("x", (2, 64, 64, 3)), graph.blob("flat", (5,), "int64")
    with pytest.raises(af.GraphError, match=r"GoogLeNet takes 1 bottom blob \(x\), got 2"):
        nn.GoogLeNet()(x, x)
    with pytest.raises(af.GraphError, match=r"LSTMLanguageModel takes 1 or 3 bottom blobs .*, got 2"):
        nn.LSTMLanguageModel(3)(x, x)
    with pytest.raises(af.ShapeError, match=r"LSTMLanguageModel: tokens must have shape \(steps, batch\), got int64"):
        nn.LSTMLanguageModel(3)(flat)
    with pytest.raises(af.ShapeError, match="is larger than the image"):
        nn.GoogLeNet()(x)
