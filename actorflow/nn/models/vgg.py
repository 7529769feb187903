"""The networks of the Visual Geometry Group."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.nn import init
from actorflow.nn.layers import Dropout, Pool
from actorflow.nn.models.layered import Layered
from actorflow.nn.weighted import Conv, InnerProduct

#: For each size the number of convolutions of the five stages.
_SIZES: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
)
_MOST = 8  # times the width of the first stage


class VGG(Layered):
    """A VGG network: five stages of 3x3 convolutions, each with a pooling behind it, then three inner products.

    Bottom: images (batch, height, width, channels). Top: scores (batch, classes). The parameters for images of 224x224
    and 1,000 classes: 132,863,336 (11), 133,047,848 (13), 138,357,544 (16), 143,667,240 (19).

    Args:
        classes: Number of classes.
        size: 11, 13, 16 or 19: how many layers have weights.
        width: Channels of the first stage; each of the three after it has twice as many, the last no more.
        hidden: Features of the two hidden layers.
        dropout: Share of them that is dropped in training.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if there is no such size, or another setting is out of range.
    Source: Simonyan and Zisserman, Very deep convolutional networks for large-scale image recognition, 2014,
        configurations A, B, D and E; first values are `init.he` and 0.
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        size: int = 16,
        width: int = 64,
        hidden: int = 4096,
        dropout: float = 0.5,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        if size not in _SIZES:
            raise GraphError(f"VGG: size must be one of {', '.join(map(str, _SIZES))}, got {size}")
        weights = init.he(seed)
        layers: list[Composite] = []
        for stage, count in enumerate(_SIZES[size]):
            channels = width * min(2**stage, _MOST)
            layers += [
                Conv(channels, 3, pad=1, activation="relu", weight_init=weights, name=f"conv{stage}.{i}")
                for i in range(count)
            ]
            layers.append(Pool("max", 2, name=f"pool{stage}"))
        for i in range(2):
            layers += [
                InnerProduct(hidden, activation="relu", weight_init=weights, name=f"hidden{i}"),
                Dropout(dropout, seed, name=f"dropout{i}"),
            ]
        super().__init__([*layers, InnerProduct(classes, weight_init=weights, name="scores")], name)
