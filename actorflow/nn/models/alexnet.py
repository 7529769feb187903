"""AlexNet."""

from __future__ import annotations

from actorflow.graph.composite import Composite
from actorflow.nn import init
from actorflow.nn.layers import Dropout, Pool
from actorflow.nn.models.layered import Layered
from actorflow.nn.norm import LRN
from actorflow.nn.weighted import Conv, InnerProduct


class AlexNet(Layered):
    """AlexNet, in one piece: five convolutions, some of two groups, with LRN and pooling, then three inner products.

    Bottom: images (batch, height, width, channels), 227x227 for the 60,965,224 parameters of 1,000 classes; 55x55 at
    least. Top: scores (batch, classes).

    Args:
        classes: Number of classes.
        hidden: Features of the two hidden layers.
        dropout: Share of them that is dropped in training.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural networks, 2012;
        Caffe's ``bvlc_alexnet``, whose first values are Gaussian and whose second, fourth and later biases are 0.1:
        here weights are `init.he` and biases 0.
    """

    def __init__(
        self, classes: int = 1000, *, hidden: int = 4096, dropout: float = 0.5, seed: int = 0, name: str | None = None
    ) -> None:
        weights = init.he(seed)

        def conv(i: int, channels: int, kernel: int, groups: int, stride: int = 1, pad: int = 0) -> Composite:
            return Conv(
                channels,
                kernel,
                stride,
                pad,
                groups=groups,
                activation="relu",
                weight_init=weights,
                name=f"conv{i}",
            )

        layers: list[Composite] = []
        for i, first in enumerate((conv(0, 96, 11, 1, stride=4), conv(1, 256, 5, 2, pad=2))):
            layers += [first, LRN(1e-4, 0.75, 5, name=f"lrn{i}"), Pool("max", 3, 2, name=f"pool{i}")]
        layers += [conv(2, 384, 3, 1, pad=1), conv(3, 384, 3, 2, pad=1), conv(4, 256, 3, 2, pad=1)]
        layers.append(Pool("max", 3, 2, name="pool2"))
        for i in range(2):
            layers += [
                InnerProduct(hidden, activation="relu", weight_init=weights, name=f"hidden{i}"),
                Dropout(dropout, seed, name=f"dropout{i}"),
            ]
        super().__init__([*layers, InnerProduct(classes, weight_init=weights, name="scores")], name)
