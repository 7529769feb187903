"""Start of a training of the Network in Network, against the same in PyTorch: same first weights, same batches.

`ACTORFLOW_CIFAR10` names CIFAR-10: a directory as `af.data.cifar10` reads it, or a tar archive of a folder of images
per class.

Rounding alone can part two runs in float32: where the elements of a pooling window are almost equal, or an element
before a relu almost 0, it decides where the gradient goes. With 8 new images per step at rate 0.005, losses of float32
and float64 differed by up to 0.004 here and by up to 0.02 in PyTorch, those of PyTorch's two float32 convolutions by
0.017; float64 and float64 by 1e-15. So float32 is compared where updates are small enough for that not to grow, float64
where they are not.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from tests.oracle.test_torch_weights import Mean, relus, sequential, tn, torch
from tests.support.effort import FULL

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

STEPS = 30

Images = tuple[np.ndarray, np.ndarray]


def synthetic(count: int) -> Images:
    """A picture of coloured squares per class, with noise."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count)
    pictures = np.kron(random.standard_normal((10, 4, 4, 3)), np.ones((1, 8, 8, 1)))
    return (pictures[labels] + 0.3 * random.standard_normal((count, 32, 32, 3))).astype(np.float32), labels


def cifar(count: int) -> Images:
    """Images of all classes, standardized."""
    given = os.environ.get("ACTORFLOW_CIFAR10")
    if given is None:
        pytest.skip("ACTORFLOW_CIFAR10 does not name CIFAR-10")
    path = Path(given)
    if path.is_dir():
        train = af.data.cifar10(path).standardized().train
        order = np.random.default_rng(0).permutation(len(train))[:count]
        return train.images[order], train.labels[order]
    pixels, labels = _archived(path, -(-count // len(af.data.CIFAR10_CLASSES)))
    order = np.random.default_rng(0).permutation(len(pixels))[:count]
    return ((pixels - pixels.mean()) / pixels.std())[order], labels[order]


def _archived(path: Path, count: int) -> Images:
    """So many images of each class, from an archive."""
    image = pytest.importorskip("PIL.Image")
    seen: Counter[str] = Counter()
    found, labels = [], []
    with tarfile.open(path) as archive:
        for member in archive:
            parts = Path(member.name).parts
            if not member.isfile() or "train" not in parts or seen[parts[-2]] == count:
                continue
            seen[parts[-2]] += 1
            file = archive.extractfile(member)
            assert file is not None
            with image.open(file) as opened:
                found.append(np.asarray(opened.convert("RGB"), np.float32))
            labels.append(af.data.CIFAR10_CLASSES.index(parts[-2]))
    return np.stack(found), np.asarray(labels)


def cifar10_of(variables: Sequence[af.Variable]) -> Any:
    """The module, with the same weights."""
    convolutions = []
    for weight, bias in zip(variables[::2], variables[1::2], strict=True):
        kernel, _, inputs, outputs = weight.shape
        conv = tn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
        conv.weight = tn.Parameter(torch.from_numpy(np.ascontiguousarray(weight.value.transpose(3, 2, 0, 1))))
        conv.bias = tn.Parameter(torch.from_numpy(np.array(bias.value)))
        convolutions.append(conv)
    return sequential(
        *relus(*convolutions[:3]), tn.MaxPool2d(3, 2, ceil_mode=True),
        *relus(*convolutions[3:6]), tn.AvgPool2d(3, 2, ceil_mode=True),
        *relus(*convolutions[6:8]), convolutions[8], Mean(),
    )  # fmt: skip


class Compared:
    """A training in actorflow and in PyTorch, with the momentum, decay and multipliers of the example."""

    def __init__(self, width: int, batch: int, rate: float, dtype: str) -> None:
        # Dropout would draw differently; He's weights let the loss move within few steps.
        self.net = nn.NIN.cifar10(width=width, dropout=0.0, weight_init=nn.init.he(0))
        self.graph = af.Graph("g", deterministic=True)
        self.images = self.graph.blob("images", (batch, 32, 32, 3), dtype)
        self.labels = self.graph.blob("labels", (batch,), "int64")
        self.loss = ops.softmax_loss(self.net(self.images), self.labels)
        factors = nn.layer_multipliers({self.net.scores: nn.Multipliers(rate=0.1)}, nn.bias_multipliers)
        self.train = nn.SGD(rate, momentum=0.9, weight_decay=1e-4, multipliers=factors).minimize(self.loss)
        self.module = cifar10_of(self.net.variables)
        groups = [
            {"params": [w], "lr": rate * factors(v).rate, "weight_decay": 1e-4 * factors(v).decay}
            for v, w in zip(self.net.variables, self.module.parameters(), strict=True)
        ]
        self.optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9)

    def step(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Our loss and theirs, before the updates."""
        images = images.astype(self.images.dtype)
        feeds: dict[Any, Any] = {self.images: images, self.labels: labels}
        ours = self.graph.run_sync(feeds, fetch=[self.loss, self.train])[self.loss]
        self.optimizer.zero_grad()
        scores = self.module(torch.from_numpy(images).permute(0, 3, 1, 2))
        theirs = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
        theirs.backward()
        self.optimizer.step()
        return float(ours), float(theirs.detach())

    def curves(self, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both losses of `STEPS` steps, which take the images in order, again and again."""
        batch = self.images.shape[0]
        rows = [np.arange(batch * step, batch * (step + 1)) % len(labels) for step in range(STEPS)]
        ours, theirs = zip(*(self.step(images[part], labels[part]) for part in rows), strict=True)
        return np.array(ours), np.array(theirs)


@pytest.mark.parametrize("source", [synthetic, cifar])
def test_the_losses_of_30_steps(source: Callable[[int], Images]) -> None:
    compared = Compared(192, 8, 0.0002, "float32")
    ours, theirs = compared.curves(*source(16))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    assert ours[-2:].mean() < ours[:2].mean() - 0.5


@pytest.mark.parametrize("source", [synthetic, cifar])
def test_the_losses_of_30_large_steps(source: Callable[[int], Images]) -> None:
    compared = Compared(192 if FULL else 48, 8, 0.02, "float64")
    ours, theirs = compared.curves(*source(8 * STEPS))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    assert np.ptp(ours) > 0.3
