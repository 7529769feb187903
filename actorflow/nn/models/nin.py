"""Models."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.composite import Composite
from actorflow.errors import GraphError
from actorflow.nn import init
from actorflow.nn.layers import Conv, Dropout, GlobalAverage, NINBlock, Pool
from actorflow.node import Blob

__all__ = ["NIN"]


class NIN(Composite):
    """A small Network in Network: blocks with pooling between them, then class scores averaged over the image.

    Bottom: images (batch, height, width, channels). Top: scores (batch, classes), for `SoftmaxLoss`.

    Each block is a 3x3 convolution and a 1x1 convolution of the same width, with relu; a 3x3 max pooling of stride 2
    and dropout follow each but the last. A 1x1 convolution then gives a map of scores per class.

    Args:
        classes: Number of classes.
        widths: Channels of each block, one or more.
        dropout: Share of the elements dropped after each pooling, in training.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if there is no block, or ``dropout`` or ``seed`` is out of range.
    Source: Lin, Chen and Yan, Network in network, 2013; Purine2's NIN example, made small.
    """

    def __init__(
        self,
        classes: int,
        widths: Sequence[int] = (32, 64, 64),
        *,
        dropout: float = 0.1,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not widths:
            raise GraphError("NIN: widths must name at least one block's channels")
        weight_init = init.he(seed)
        self.layers: list[Composite] = []
        for i, width in enumerate(widths):
            if i:
                self.layers += [Pool("max", 3, 2, name=f"pool{i - 1}"), Dropout(dropout, seed, name=f"dropout{i - 1}")]
            self.layers.append(NINBlock(3, (width, width), pad=1, weight_init=weight_init, name=f"block{i}"))
        self.layers += [Conv(classes, 1, weight_init=weight_init, name="scores"), GlobalAverage(name="average")]

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        if len(bottom) != 1:
            raise GraphError(f"NIN takes 1 bottom blob (x), got {len(bottom)}")
        (x,) = bottom
        for layer in self.layers:
            x = layer(x, training=training)
        return x
