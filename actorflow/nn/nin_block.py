"""The block of a Network in Network."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn.layers import bottoms
from actorflow.nn.weighted import Conv


class NINBlock(Composite):
    """A convolution and 1x1 convolutions after it, each followed by a relu ("mlpconv").

    Args:
        kernel: Size of the first kernel: a number for all spatial axes, or one for each.
        channels: Output channels of each convolution, one or more.
        stride: Step of the first kernel.
        pad: Zeros around the images.
        weight_init: As in `Conv`.
        bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if there are no channels.
    Source: Purine2 layer ``NIN``; Lin, Chen and Yan, Network in network, 2013.
    """

    def __init__(
        self,
        kernel: int | Sequence[int],
        channels: Sequence[int],
        stride: int | Sequence[int] = 1,
        pad: int | Sequence[int | Sequence[int]] = 0,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not channels:
            raise GraphError("NINBlock: channels must name at least one convolution's output channels")
        self.layers = [
            Conv(
                width,
                kernel if i == 0 else 1,
                stride if i == 0 else 1,
                pad if i == 0 else 0,
                activation="relu",
                weight_init=weight_init,
                bias_init=bias_init,
                name=f"conv{i}",
            )
            for i, width in enumerate(channels)
        ]

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        for layer in self.layers:
            x = layer(x, training=training)
        return x
