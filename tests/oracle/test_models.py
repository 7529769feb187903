"""Models against the same networks in PyTorch: scores, gradients, and how a training begins.

`ACTORFLOW_CIFAR10` names CIFAR-10: a directory as `af.data.cifar10` reads it, or a tar archive of a folder of images
per class.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path

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


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def trained(net: af.Composite) -> list[af.Variable]:
    return [v for v in net.variables if "running" not in v.name]


def check(net: af.Composite, network, shape: tuple[int, ...], dtype: str = "float64") -> None:
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
        close(result[grad], networks.ours(by_name[variable.name].grad.numpy()), tolerance)


def test_lenet() -> None:
    check(nn.LeNet(10), networks.lenet, (3, 28, 28, 1))


def test_alexnet() -> None:
    check(nn.AlexNet(5, hidden=16, dropout=0.0), networks.alexnet, (2, 67, 67, 3))


def test_nin() -> None:
    net = nn.NIN.cifar10(7, width=6, dropout=0.0)
    check(net, networks.nin, (2, 32, 32, 3))


def test_resnet() -> None:
    check(nn.ResNet(10, width=4, small_images=True), networks.resnet18, (4, 16, 16, 3))


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


def cifar(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Some images of each class and their labels, standardized."""
    given = os.environ.get("ACTORFLOW_CIFAR10")
    if given is None:
        pytest.skip("ACTORFLOW_CIFAR10 does not name CIFAR-10")
    path = Path(given)
    if path.is_dir():
        train = af.data.cifar10(path).standardized().train
        return train.images[:count], train.labels[:count]
    image = pytest.importorskip("PIL.Image")
    seen: Counter[str] = Counter()
    found, labels = [], []
    with tarfile.open(path) as archive:
        for member in archive:
            parts = Path(member.name).parts
            if not member.isfile() or "train" not in parts or seen[parts[-2]] == count // 10:
                continue
            seen[parts[-2]] += 1
            file = archive.extractfile(member)
            assert file is not None
            with image.open(file) as opened:
                found.append(np.asarray(opened.convert("RGB"), np.float32))
            labels.append(af.data.CIFAR10_CLASSES.index(parts[-2]))
    pixels, order = np.stack(found), np.random.default_rng(0).permutation(len(found))
    return ((pixels - pixels.mean()) / pixels.std())[order], np.asarray(labels)[order]


def synthetic(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise around a picture of each class."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count)
    pictures = random.standard_normal((10, 32, 32, 3), np.float32)
    return 0.5 * pictures[labels] + random.standard_normal((count, 32, 32, 3), np.float32), labels


@pytest.mark.parametrize("source", [synthetic, cifar])
def test_the_loss_of_nin_over_30_steps(source) -> None:
    steps, batch = 30, 16
    data, labels = source(steps * batch)
    data = data.astype(np.float64)
    assert len(data) == steps * batch
    # In float64: in float32 rounding alone, through relu and maximum, parts two runs. Dropout draws differ, too.
    net = nn.NIN(
        10,
        ((64, 53, 32), (64, 64, 64), (64, 64)),
        kernels=(5, 5, 3),
        pools=("max", "average"),
        dropout=0.0,
        seed=0,
    )
    graph = af.Graph("g")
    x, y = graph.blob("x", (batch, 32, 32, 3), "float64"), graph.blob("y", (batch,), "int64")
    loss = ops.softmax_loss(net(x), y)
    factors = nn.layer_multipliers({net.scores: nn.Multipliers(rate=0.1)}, nn.bias_multipliers)
    train = nn.SGD(0.02, momentum=0.9, weight_decay=1e-4, multipliers=factors).minimize(loss)
    weights = tensors(torch, net.variables)
    groups = [
        {"params": [w], "lr": 0.02 * factors(v).rate, "weight_decay": 1e-4 * factors(v).decay}
        for v, w in zip(net.variables, weights, strict=True)
    ]
    optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
    found, expected = [], []
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        found.append(float(graph.run_sync({x: data[rows], y: labels[rows]}, fetch=[loss, train])[loss]))
        optimizer.zero_grad()
        scores = networks.nin(Network(torch, weights), torch.from_numpy(data[rows]))
        error = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels[rows]))
        error.backward()
        optimizer.step()
        expected.append(float(error.detach()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
    assert np.ptp(found) > 0.3
