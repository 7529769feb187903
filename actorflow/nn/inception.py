"""The block of GoogLeNet."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow import ops
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn.layers import Pool, bottoms
from actorflow.nn.weighted import Conv


class Inception(Composite):
    """Convolutions of several sizes and a pooling side by side, joined along the channels.

    Bottom: (batch, height, width, channels). Top: (batch, height, width, one + three + five + pool_proj), in this
    order. Each convolution has a bias and a relu. Variables, in scopes ``one``, ``three_reduce``, ``three``,
    ``five_reduce``, ``five`` and ``pool_proj``: as of `Conv`.

    Args:
        one: Channels of the 1x1 convolution.
        three: Channels of the 3x3 convolution.
        five: Channels of the 5x5 convolution.
        three_reduce: Channels of the 1x1 convolution before that of 3x3.
        five_reduce: Channels of the 1x1 convolution before that of 5x5.
        pool_proj: Channels of the 1x1 convolution after a 3x3 max pooling of stride 1.
        weight_init: As in `Conv`.
        bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if a number is not positive.
    Source: Purine2 layer ``Inception``; Szegedy and others, Going deeper with convolutions, 2014.
    """

    def __init__(
        self,
        one: int,
        three: int,
        five: int,
        three_reduce: int,
        five_reduce: int,
        pool_proj: int,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)

        def conv(channels: int, kernel: int, scope: str) -> Conv:
            return Conv(
                channels,
                kernel,
                pad=kernel // 2,
                activation="relu",
                weight_init=weight_init,
                bias_init=bias_init,
                name=scope,
            )

        self.one = [conv(one, 1, "one")]
        self.three = [conv(three_reduce, 1, "three_reduce"), conv(three, 3, "three")]
        self.five = [conv(five_reduce, 1, "five_reduce"), conv(five, 5, "five")]
        self.pool = [Pool("max", 3, 1, 1, name="pool"), conv(pool_proj, 1, "pool_proj")]

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        branches: tuple[Sequence[Composite], ...] = (self.one, self.three, self.five, self.pool)
        parts = []
        for branch in branches:
            y = x
            for layer in branch:
                y = layer(y, training=training)
            parts.append(y)
        return ops.concat(parts, axis=-1, name="join")
