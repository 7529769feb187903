"""LeNet."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.errors import GraphError
from actorflow.nn import init
from actorflow.nn.layers import Pool
from actorflow.nn.models.layered import Layered
from actorflow.nn.weighted import Conv, InnerProduct


class LeNet(Layered):
    """LeNet as Caffe has it: two 5x5 convolutions with 2x2 max pooling, a hidden layer, scores; here all with relu.

    Bottom: images (batch, height, width, channels), 15x15 at least; 28x28 makes 431,080 parameters for 10 classes.
    Top: scores (batch, classes).

    Args:
        classes: Number of classes.
        widths: Channels of the two convolutions, then the hidden features.
        seed: Chooses initial weights.
        name: Scope of its nodes.
    Raises:
        GraphError: if there are not three widths, or a setting is out of range.
    Source: LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998; Caffe's
        MNIST example.
    """

    def __init__(
        self, classes: int, widths: Sequence[int] = (20, 50, 500), *, seed: int = 0, name: str | None = None
    ) -> None:
        if len(widths) != 3:
            raise GraphError(f"LeNet: widths must be 3 numbers, got {tuple(widths)}")
        first, second, hidden = widths
        weights = init.he(seed)
        super().__init__(
            [
                Conv(first, 5, activation="relu", weight_init=weights, name="conv0"),
                Pool("max", 2, name="pool0"),
                Conv(second, 5, activation="relu", weight_init=weights, name="conv1"),
                Pool("max", 2, name="pool1"),
                InnerProduct(hidden, activation="relu", weight_init=weights, name="hidden"),
                InnerProduct(classes, weight_init=weights, name="scores"),
            ],
            name,
        )
