"""Models against the same networks in PyTorch: scores and gradients."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from tests.oracle import networks
from tests.oracle.networks import Network, tensors

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = pytest.mark.oracle


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("f4")


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4, least: float = 0.0) -> None:
    """Compare within a tolerance of the largest number, or of ``least`` if that is more."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(np.abs(expected).max(), least))


def trained(net: af.Composite) -> list[af.Variable]:
    return [v for v in net.variables if "running" not in v.name]


def check(net: af.Composite, network, shape: tuple[int, ...], dtype: str = "float64", least: float = 0.0) -> None:
    """Scores, loss and the gradient by each parameter."""
    graph = af.Graph("g")
    x, labels = graph.blob("x", shape, dtype), graph.blob("labels", shape[:1], "int64")
    scores = net(x)
    loss = ops.softmax_loss(scores, labels)
    parameters = trained(net)
    grads = af.gradient(loss, parameters)
    weights = tensors(torch, net.variables)
    feeds = {x: images(*shape).astype(dtype), labels: np.arange(shape[0]) % scores.shape[1]}
    result = graph.run_sync(feeds, fetch=[scores, loss, *grads])
    theirs = network(Network(torch, weights), torch.from_numpy(feeds[x]))
    expected = torch.nn.functional.cross_entropy(theirs, torch.from_numpy(feeds[labels]))
    expected.backward()
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    close(result[scores], theirs.detach().numpy(), tolerance)
    close(result[loss], expected.detach().numpy(), tolerance)
    by_name = dict(zip([v.name for v in net.variables], weights, strict=True))
    for variable, grad in zip(parameters, grads, strict=True):
        close(result[grad], networks.ours(by_name[variable.name].grad.numpy()), tolerance, least)


def test_lenet() -> None:
    check(nn.LeNet(10), networks.lenet, (3, 28, 28, 1))


def test_alexnet() -> None:
    check(nn.AlexNet(5, hidden=16, dropout=0.0), networks.alexnet, (2, 67, 67, 3))


def test_vgg() -> None:
    check(nn.VGG(5, size=13, width=4, hidden=16, dropout=0.0), networks.vgg13, (2, 40, 40, 3))


def test_nin() -> None:
    net = nn.NIN.cifar10(7, width=6, dropout=0.0)
    check(net, networks.nin, (2, 32, 32, 3))


def test_resnet() -> None:
    check(nn.ResNet(10, width=4, small_images=True), networks.resnet18, (4, 16, 16, 3))


def test_mobile_net() -> None:
    # What a norm adds before a 1x1 convolution and another norm has a gradient of 0, but for rounding.
    check(nn.MobileNetV3(5, size="small", dropout=0.0), networks.mobile_net, (3, 33, 32, 3), least=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_googlenet(training: bool) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (1, 224, 224, 3))
    net = nn.GoogLeNet(dropout=0.0)
    for head in net.auxiliary:
        head.layers[-2].rate = 0.0
    top = net(x, training=training)
    found = top if training else (top,)
    assert sum(v.value.size for v in net.variables) == (13_378_280 if training else 6_998_552)
    feed = images(*x.shape)
    result = graph.run_sync({x: feed}, fetch=list(found))
    with torch.no_grad():
        expected = networks.googlenet(
            Network(torch, tensors(torch, net.variables)), torch.from_numpy(feed), auxiliary=training
        )
    for y, reference in zip(found, expected, strict=True):
        close(result[y], reference.numpy())
