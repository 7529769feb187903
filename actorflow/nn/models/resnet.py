"""Residual networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from actorflow import ops
from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn import init
from actorflow.nn.layers import Activation, GlobalAverage, Pool, bottoms
from actorflow.nn.models.layered import Layered
from actorflow.nn.norm import BatchNorm
from actorflow.nn.weighted import Conv, InnerProduct

#: For each size the blocks of the four stages, and whether they are bottlenecks.
_SIZES: Mapping[int, tuple[tuple[int, ...], bool]] = MappingProxyType(
    {
        18: ((2, 2, 2, 2), False),
        34: ((3, 4, 6, 3), False),
        50: ((3, 4, 6, 3), True),
        101: ((3, 4, 23, 3), True),
        152: ((3, 8, 36, 3), True),
    }
)
_EXPANSION = 4  # of a bottleneck's width


class ResNet(Layered):
    """A residual network: four stages of blocks whose sum with their own bottom goes on, then class scores.

    Bottom: images (batch, height, width, channels). Top: scores (batch, classes). The trained parameters of 1,000
    classes: 11,689,512 (18), 21,797,672 (34), 25,557,032 (50), 44,549,160 (101), 60,192,808 (152).

    Args:
        classes: Number of classes.
        size: 18, 34, 50, 101 or 152; from 50 on blocks are bottlenecks.
        width: Channels of the first stage; each one after it has twice as many.
        small_images: Whether to begin with a 3x3 convolution alone, for images like CIFAR's, instead of a 7x7
            convolution and a pooling of stride 2 each.
        seed: Chooses initial weights.
        name: Scope of its nodes.
    Raises:
        GraphError: if there is no such size, or the width is out of range.
    Source: He, Zhang, Ren and Sun, Deep residual learning for image recognition, 2015. In a bottleneck the 3x3
        convolution has the stride, as in torchvision, not the first one.
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        size: int = 18,
        width: int = 64,
        small_images: bool = False,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        if size not in _SIZES:
            raise GraphError(f"ResNet: size must be one of {', '.join(map(str, _SIZES))}, got {size}")
        blocks, deep = _SIZES[size]
        weights = init.he(seed)
        kernel, stride = (3, 1) if small_images else (7, 2)
        layers: list[Composite] = [*_normalized("stem", width, kernel, stride, weights), Activation("relu", "relu")]
        if not small_images:
            layers.append(Pool("max", 3, 2, 1, ceil=False, name="pool"))
        channels = width
        for stage, count in enumerate(blocks):
            for i in range(count):
                block = _Block(
                    channels,
                    width << stage,
                    deep,
                    stride=2 if stage and not i else 1,
                    weight_init=weights,
                    name=f"stage{stage}_block{i}",
                )
                layers.append(block)
                channels = block.channels
        layers += [GlobalAverage(name="average"), InnerProduct(classes, weight_init=weights, name="scores")]
        super().__init__(layers, name)


class _Block(Composite):
    """Two 3x3 convolutions, or one between two of 1x1, beside the bottom or a 1x1 convolution of it."""

    def __init__(
        self, channels_in: int, width: int, deep: bool, *, stride: int, weight_init: Initializer, name: str
    ) -> None:
        super().__init__(name)
        self.channels = width * _EXPANSION if deep else width
        plan = (
            [(width, 1, 1), (width, 3, stride), (self.channels, 1, 1)] if deep else [(width, 3, stride), (width, 3, 1)]
        )
        self.layers: list[Composite] = []
        for i, (channels, kernel, step) in enumerate(plan):
            if i:
                self.layers.append(Activation("relu", f"relu{i - 1}"))
            self.layers += _normalized(str(i), channels, kernel, step, weight_init)
        self.shortcut: list[Composite] = []
        if stride != 1 or channels_in != self.channels:
            self.shortcut += _normalized("_shortcut", self.channels, 1, stride, weight_init)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        (x,) = bottoms(self, bottom, "x")
        y = _through(self.layers, x, training)
        return ops.relu(ops.add(y, _through(self.shortcut, x, training), name="add"))


def _through(layers: Sequence[Composite], x: Blob, training: bool) -> Blob:
    for layer in layers:
        x = layer(x, training=training)
    return x


def _normalized(name: str, channels: int, kernel: int, stride: int, weight_init: Initializer) -> list[Composite]:
    """A convolution without bias, and batch normalization."""
    conv = Conv(channels, kernel, stride, kernel // 2, bias=False, weight_init=weight_init, name=f"conv{name}")
    return [conv, BatchNorm(name=f"norm{name}")]
