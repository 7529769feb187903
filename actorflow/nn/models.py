"""Networks that are known by a name, and the blocks that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from actorflow import ops
from actorflow.errors import GraphError, ShapeError
from actorflow.graph.composite import Chain, Composite
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn import init
from actorflow.nn.layers import (
    LRN,
    Activation,
    BatchNorm,
    Conv,
    Dropout,
    Embedding,
    GlobalAverage,
    InnerProduct,
    Layer,
    Linear,
    Pool,
    bottoms,
)
from actorflow.nn.recurrent import LSTM


def _through(layers: Iterable[Composite], x: Blob, training: bool) -> Blob:
    for layer in layers:
        x = layer(x, training=training)
    return x


class Layered(Layer):
    """Layers one after the other, in the model's own scope.

    Bottom and top: those of the first and of the last layer, one blob each.
    """

    def __init__(self, layers: Iterable[Composite], name: str | None = None) -> None:
        super().__init__(name)
        self.layers = list(layers)

    def forward(self, x: Blob, training: bool) -> Blob:
        return _through(self.layers, x, training)


class MLP(Layered):
    """A perceptron: inner products, each but the last with an activation and perhaps dropout.

    Bottom: (batch, ...). Top: scores (batch, classes).

    Args:
        classes: Features of the last layer.
        hidden: Features of each layer before it; none makes a linear model.
        activation: As in `Conv`.
        dropout: Share of the elements dropped after each activation, in training.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Minerva's MNIST example has 256 hidden features.

    Example:
        >>> graph = af.Graph("digits")
        >>> x = graph.blob("x", ["batch", 64])
        >>> net = af.nn.MLP(10, hidden=[32], dropout=0.1)
        >>> scores = net(x)
        >>> scores.spec.shape, sum(variable.spec.size for variable in net.variables)
        ((batch, 10), 2410)
    """

    def __init__(
        self,
        classes: int,
        hidden: Sequence[int] = (256,),
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(_perceptron(classes, hidden, activation, dropout, seed), name)


def _perceptron(classes: int, hidden: Sequence[int], activation: str, dropout: float, seed: int) -> Iterator[Composite]:
    weights = init.he(seed)
    for i, features in enumerate(hidden):
        yield InnerProduct(features, activation=activation, weight_init=weights, name=f"hidden{i}")
        yield Dropout(dropout, seed, name=f"dropout{i}")
    yield InnerProduct(classes, weight_init=weights, name="scores")


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

    Example:
        >>> graph = af.Graph("mnist")
        >>> net = af.nn.LeNet(10)
        >>> scores = net(graph.blob("images", ["batch", 28, 28, 1]))
        >>> scores.spec.shape, sum(variable.spec.size for variable in net.variables)
        ((batch, 10), 431080)
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


class NINBlock(Layered):
    """A convolution and 1x1 convolutions after it, each followed by a relu ("mlpconv").

    Args:
        kernel: Size of the first kernel: a number for all spatial axes, or one for each.
        channels: Output channels of each convolution, one or more.
        stride: Step of the first kernel.
        pad: Zeros around the images.
        weight_init, bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if there are no channels.
    Source: Purine2 layer ``NIN``; Lin, Chen and Yan, Network in network, 2013.

    Example:
        >>> graph = af.Graph("g")
        >>> block = af.nn.NINBlock(5, [192, 160, 96], pad=2)
        >>> block(graph.blob("images", ["batch", 32, 32, 3])).spec.shape
        (batch, 32, 32, 96)
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
        if not channels:
            raise GraphError("NINBlock: channels must name at least one convolution's output channels")
        conv = partial(Conv, activation="relu", weight_init=weight_init, bias_init=bias_init)
        rest = [conv(width, 1, name=f"conv{i}") for i, width in enumerate(channels[1:], 1)]
        super().__init__([conv(channels[0], kernel, stride, pad, name="conv0"), *rest], name)


class NIN(Layered):
    """A Network in Network: blocks with pooling between them, then class scores averaged over the image.

    Bottom: images (batch, height, width, channels). Top: scores (batch, classes), for `SoftmaxLoss`.

    Each block is a convolution and 1x1 convolutions after it, with relu; a 3x3 pooling of stride 2 and dropout follow
    each but the last. A 1x1 convolution then gives a map of scores per class. As it is by default it is a small one;
    `cifar10` makes the one of the paper.

    Args:
        classes: Number of classes.
        widths: For each block, one or more, the channels of its convolutions; a number stands for two of this width.
        kernels: Size of each block's first kernel, odd; a number stands for all.
        pools: "max" or "average" for each pooling; one stands for all.
        dropout: Share of the elements dropped after each pooling, in training.
        weight_init: Initializer of the weights; the default is `init.he`.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if there is no block, a setting is not given for each, or one is out of range.
    Source: Lin, Chen and Yan, Network in network, 2013; Purine2's NIN example.

    Example:
        >>> graph = af.Graph("g")
        >>> net = af.nn.NIN(10, widths=[16, [32, 16]])
        >>> net(graph.blob("images", ["batch", 32, 32, 3])).spec.shape
        (batch, 10)
    """

    def __init__(
        self,
        classes: int,
        widths: Sequence[int | Sequence[int]] = (32, 64, 64),
        *,
        kernels: int | Sequence[int] = 3,
        pools: str | Sequence[str] = "max",
        dropout: float = 0.1,
        weight_init: Initializer | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        if not widths:
            raise GraphError("NIN: widths must name at least one block's channels")
        sizes = [kernels] * len(widths) if isinstance(kernels, int) else list(kernels)
        kinds = [pools] * (len(widths) - 1) if isinstance(pools, str) else list(pools)
        if len(sizes) != len(widths) or any(size < 1 or size % 2 == 0 for size in sizes):
            raise GraphError(f"NIN: kernels must be odd, one for all or for each of {len(widths)} blocks, got {sizes}")
        if len(kinds) != len(widths) - 1:
            raise GraphError(f"NIN: pools must be one for all or for each of {len(widths) - 1} poolings, got {kinds}")
        weights = weight_init or init.he(seed)
        layers: list[Composite] = []
        for i, (width, size) in enumerate(zip(widths, sizes, strict=True)):
            if i:
                layers += [
                    Pool(kinds[i - 1], 3, 2, name=f"pool{i - 1}"),
                    Dropout(dropout, seed, name=f"dropout{i - 1}"),
                ]
            channels = (width, width) if isinstance(width, int) else width
            layers.append(NINBlock(size, channels, pad=size // 2, weight_init=weights, name=f"block{i}"))
        layers += [Conv(classes, 1, weight_init=weights, name="scores"), GlobalAverage(name="average")]
        super().__init__(layers, name)

    @classmethod
    def cifar10(
        cls,
        classes: int = 10,
        *,
        width: int = 192,
        dropout: float = 0.5,
        weight_init: Initializer | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> NIN:
        """The network of the paper and of Purine2's example, for images of 32x32; biases are 0.

        Their last convolution has a relu, whose scores can be stuck at 0; this one has none.

        Args:
            classes: Number of classes.
            width: Channels of most convolutions.
            dropout: Share of the elements dropped after each pooling, in training.
            weight_init: Initializer of the weights; the default, ``init.gaussian(0.05)``, is theirs. It shrinks what
                tells images apart, the more so the smaller ``width`` is (scores of standardized images begin 3e-3 apart
                with 192 channels, 1e-5 with 48, and 0.3 with `init.he`), so a training begins slowly.
            seed: Chooses initial weights and dropout.
            name: Scope of its nodes.

        Example:
            >>> graph = af.Graph("cifar")
            >>> net = af.nn.NIN.cifar10()
            >>> scores = net(graph.blob("images", ["batch", 32, 32, 3]))
            >>> scores.spec.shape, sum(variable.spec.size for variable in net.variables)
            ((batch, 10), 966986)
        """
        return cls(
            classes,
            ((width, width * 5 // 6, width // 2), (width,) * 3, (width,) * 2),
            kernels=(5, 5, 3),
            pools=("max", "average"),
            dropout=dropout,
            weight_init=weight_init or init.gaussian(0.05, seed=seed),
            seed=seed,
            name=name,
        )

    @property
    def scores(self) -> Composite:
        """The layer that gives the scores: the paper learns it at a tenth of the rate."""
        return self.layers[-2]


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

    Example:
        >>> graph = af.Graph("imagenet")
        >>> net = af.nn.AlexNet(1000)
        >>> net(graph.blob("images", ["batch", 227, 227, 3])).spec.shape
        (batch, 1000)
    """

    def __init__(
        self, classes: int = 1000, *, hidden: int = 4096, dropout: float = 0.5, seed: int = 0, name: str | None = None
    ) -> None:
        weights = init.he(seed)

        conv = partial(Conv, activation="relu", weight_init=weights)
        layers: list[Composite] = []
        for i, first in enumerate((conv(96, 11, 4, name="conv0"), conv(256, 5, 1, 2, groups=2, name="conv1"))):
            layers += [first, LRN(1e-4, 0.75, 5, name=f"lrn{i}"), Pool("max", 3, 2, name=f"pool{i}")]
        for i, (channels, groups) in enumerate([(384, 1), (384, 2), (256, 2)], 2):
            layers.append(conv(channels, 3, 1, 1, groups=groups, name=f"conv{i}"))
        layers.append(Pool("max", 3, 2, name="pool2"))
        layers += _perceptron(classes, (hidden, hidden), "relu", dropout, seed)
        super().__init__(layers, name)


#: For each size the number of convolutions of the five stages.
_VGGS: Mapping[int, tuple[int, ...]] = MappingProxyType(
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

    Example:
        >>> graph = af.Graph("imagenet")
        >>> net = af.nn.VGG(1000, size=16)
        >>> net(graph.blob("images", ["batch", 224, 224, 3]), training=False).spec.shape
        (batch, 1000)
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
        if size not in _VGGS:
            raise GraphError(f"VGG: size must be one of {', '.join(map(str, _VGGS))}, got {size}")
        weights = init.he(seed)
        layers: list[Composite] = []
        for stage, count in enumerate(_VGGS[size]):
            channels = width * min(2**stage, _MOST)
            layers += [
                Conv(channels, 3, pad=1, activation="relu", weight_init=weights, name=f"conv{stage}.{i}")
                for i in range(count)
            ]
            layers.append(Pool("max", 2, name=f"pool{stage}"))
        layers += _perceptron(classes, (hidden, hidden), "relu", dropout, seed)
        super().__init__(layers, name)


class Inception(Layer):
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
        weight_init, bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if a number is not positive.
    Source: Purine2 layer ``Inception``; Szegedy and others, Going deeper with convolutions, 2014.

    Example:
        >>> graph = af.Graph("g")
        >>> block = af.nn.Inception(64, 128, 32, three_reduce=96, five_reduce=16, pool_proj=32)
        >>> block(graph.blob("x", ["batch", 28, 28, 192])).spec.shape  # 64 + 128 + 32 + 32 channels
        (batch, 28, 28, 256)
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
        conv = partial(Conv, activation="relu", weight_init=weight_init, bias_init=bias_init)
        self.one = [conv(one, 1, name="one")]
        self.three = [conv(three_reduce, 1, name="three_reduce"), conv(three, 3, pad=1, name="three")]
        self.five = [conv(five_reduce, 1, name="five_reduce"), conv(five, 5, pad=2, name="five")]
        self.pool = [Pool("max", 3, 1, 1, name="pool"), conv(pool_proj, 1, name="pool_proj")]

    def forward(self, x: Blob, training: bool) -> Blob:
        branches: tuple[Sequence[Composite], ...] = (self.one, self.three, self.five, self.pool)
        return ops.concat([_through(branch, x, training) for branch in branches], axis=-1, name="join")


#: one, three, five, three_reduce, five_reduce, pool_proj of each block.
_INCEPTIONS = {
    "3a": (64, 128, 32, 96, 16, 32),
    "3b": (128, 192, 96, 128, 32, 64),
    "4a": (192, 208, 48, 96, 16, 64),
    "4b": (160, 224, 64, 112, 24, 64),
    "4c": (128, 256, 64, 128, 24, 64),
    "4d": (112, 288, 64, 144, 32, 64),
    "4e": (256, 320, 128, 160, 32, 128),
    "5a": (256, 320, 128, 160, 32, 128),
    "5b": (384, 384, 128, 192, 48, 128),
}


class GoogLeNet(Composite[Any]):
    """GoogLeNet (Inception v1): nine `Inception` blocks, and two auxiliary heads in training.

    Bottom: images (batch, height, width, channels); 224x224 for the paper's 6,998,552 parameters of 1,000 classes, and
    13,378,280 with the auxiliary heads. 47x47 at least; with the heads 130x130.
    Top: scores (batch, classes); in training with the heads (scores, scores of the first, scores of the second):
    give them to `loss`.

    Args:
        classes: Number of classes.
        auxiliary: Whether there are auxiliary heads; in inference they are not built.
        dropout: Share of the features dropped before the scores, in training; the auxiliary heads drop 0.7.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Szegedy and others, Going deeper with convolutions, 2014; Caffe's ``bvlc_googlenet``. Purine2's example has
        no auxiliary heads: the 116 parameters on its server are those of ``auxiliary=False``. Weights are
        `init.xavier`, biases 0.2 and those of the scores 0, as there.

    Example:
        >>> graph = af.Graph("imagenet")
        >>> images = graph.blob("images", ["batch", 224, 224, 3])
        >>> labels = graph.blob("labels", ["batch"], "int64")
        >>> net = af.nn.GoogLeNet(1000)
        >>> loss = net.loss(net(images), labels)
        >>> net(images, training=False).spec.shape  # without the auxiliary heads
        (batch, 1000)
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        auxiliary: bool = True,
        dropout: float = 0.4,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        weights, biases = init.xavier(seed), init.constant(0.2)
        blocks = {
            key: Inception(*widths, weight_init=weights, bias_init=biases, name=f"inception_{key}")
            for key, widths in _INCEPTIONS.items()
        }
        low, high = (Pool("max", 3, 2, name=f"pool{stage}") for stage in (3, 4))
        # The parts that end where the first auxiliary head, the second one and the scores begin.
        self.parts = [
            Chain(_stem(weights, biases), blocks["3a"], blocks["3b"], low, blocks["4a"], name="low"),
            Chain(blocks["4b"], blocks["4c"], blocks["4d"], name="middle"),
            Chain(blocks["4e"], high, blocks["5a"], blocks["5b"], name="high"),
        ]
        self.head = Layered(
            [
                GlobalAverage(name="average"),
                Dropout(dropout, seed, name="dropout"),
                InnerProduct(classes, weight_init=weights, name="scores"),
            ],
            "head",
        )
        self.auxiliary = [_auxiliary(i, classes, seed, weights, biases) for i in range(2)] if auxiliary else []

    def build(self, *bottom: Blob, training: bool) -> Blob | Sequence[Blob]:
        """One bottom blob; one top blob, or three."""
        (x,) = bottoms(self, bottom, "x")
        seen: list[Blob] = []
        for part in self.parts:
            x = part(x, training=training)
            seen.append(x)
        scores: Blob = self.head(x, training=training)
        if not training or not self.auxiliary:
            return scores
        return (scores, *(head(y, training=True) for head, y in zip(self.auxiliary, seen, strict=False)))

    def loss(self, scores: Sequence[Blob] | Blob, labels: Blob, *, weight: float = 0.3) -> Blob:
        """The softmax loss of the scores, and that of each auxiliary head by a weight.

        Args:
            scores: The top, of one blob or several.
            labels: Shape (batch,), integers.
            weight: Of each auxiliary head's loss.
        Returns:
            0-d blob.

        Example:
            >>> graph = af.Graph("imagenet")
            >>> images = graph.blob("images", ["batch", 224, 224, 3])
            >>> net = af.nn.GoogLeNet(1000)
            >>> scores, first, second = net(images)
            >>> net.loss([scores, first, second], graph.blob("labels", ["batch"], "int64"))
            <Blob 'sum/out' float32[] on cpu>
        """
        main, *others = (scores,) if isinstance(scores, Blob) else scores
        terms = [ops.softmax_loss(main, labels), *(ops.softmax_loss(y, labels, scale=weight) for y in others)]
        return ops.add(*terms) if others else terms[0]


def _stem(weights: Initializer, biases: Initializer) -> Layered:
    conv = partial(Conv, activation="relu", weight_init=weights, bias_init=biases)
    return Layered(
        [
            conv(64, 7, 2, 3, name="conv1"),
            Pool("max", 3, 2, name="pool1"),
            LRN(name="lrn1"),
            conv(64, 1, name="conv2_reduce"),
            conv(192, 3, 1, 1, name="conv2"),
            LRN(name="lrn2"),
            Pool("max", 3, 2, name="pool2"),
        ],
        "stem",
    )


def _auxiliary(i: int, classes: int, seed: int, weights: Initializer, biases: Initializer) -> Layered:
    return Layered(
        [
            Pool("average", 5, 3, name="pool"),
            Conv(128, 1, activation="relu", weight_init=weights, bias_init=biases, name="conv"),
            InnerProduct(1024, activation="relu", weight_init=weights, bias_init=biases, name="hidden"),
            Dropout(0.7, seed, name="dropout"),
            InnerProduct(classes, weight_init=weights, name="scores"),
        ],
        f"auxiliary{i}",
    )


#: For each size the blocks of the four stages, and whether they are bottlenecks.
_RESNETS: Mapping[int, tuple[tuple[int, ...], bool]] = MappingProxyType(
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

    Example:
        >>> graph = af.Graph("cifar")
        >>> net = af.nn.ResNet(10, size=18, small_images=True)
        >>> net(graph.blob("images", ["batch", 32, 32, 3])).spec.shape
        (batch, 10)
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
        if size not in _RESNETS:
            raise GraphError(f"ResNet: size must be one of {', '.join(map(str, _RESNETS))}, got {size}")
        blocks, deep = _RESNETS[size]
        weights = init.he(seed)
        kernel, stride = (3, 1) if small_images else (7, 2)
        layers: list[Composite] = [*_normalized("stem", width, kernel, stride, weights), Activation("relu", "relu")]
        if not small_images:
            layers.append(Pool("max", 3, 2, 1, ceil=False, name="pool"))
        channels = width
        for stage, count in enumerate(blocks):
            for i in range(count):
                block = _ResidualBlock(
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


class _ResidualBlock(Layer):
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

    def forward(self, x: Blob, training: bool) -> Blob:
        y = _through(self.layers, x, training)
        return ops.relu(ops.add(y, _through(self.shortcut, x, training), name="add"))


def _normalized(
    name: str,
    channels: int,
    kernel: int,
    stride: int,
    weight_init: Initializer,
    groups: int = 1,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> list[Composite]:
    conv = Conv(
        channels, kernel, stride, kernel // 2, groups=groups, bias=False, weight_init=weight_init, name=f"conv{name}"
    )
    return [conv, BatchNorm(momentum, epsilon, name=f"norm{name}")]


_Block = tuple[int, int, int, bool, str, int]  # kernel, expanded channels, channels, squeezed, activation, stride
#: For each size the blocks, and the features of the hidden layer.
MOBILE_NETS: Mapping[str, tuple[tuple[_Block, ...], int]] = MappingProxyType(
    {
        "large": (
            (
                (3, 16, 16, False, "relu", 1),
                (3, 64, 24, False, "relu", 2),
                (3, 72, 24, False, "relu", 1),
                (5, 72, 40, True, "relu", 2),
                (5, 120, 40, True, "relu", 1),
                (5, 120, 40, True, "relu", 1),
                (3, 240, 80, False, "hard_swish", 2),
                (3, 200, 80, False, "hard_swish", 1),
                (3, 184, 80, False, "hard_swish", 1),
                (3, 184, 80, False, "hard_swish", 1),
                (3, 480, 112, True, "hard_swish", 1),
                (3, 672, 112, True, "hard_swish", 1),
                (5, 672, 160, True, "hard_swish", 2),
                (5, 960, 160, True, "hard_swish", 1),
                (5, 960, 160, True, "hard_swish", 1),
            ),
            1280,
        ),
        "small": (
            (
                (3, 16, 16, True, "relu", 2),
                (3, 72, 24, False, "relu", 2),
                (3, 88, 24, False, "relu", 1),
                (5, 96, 40, True, "hard_swish", 2),
                (5, 240, 40, True, "hard_swish", 1),
                (5, 240, 40, True, "hard_swish", 1),
                (5, 120, 48, True, "hard_swish", 1),
                (5, 144, 48, True, "hard_swish", 1),
                (5, 288, 96, True, "hard_swish", 2),
                (5, 576, 96, True, "hard_swish", 1),
                (5, 576, 96, True, "hard_swish", 1),
            ),
            1024,
        ),
    }
)
_STEM = 16  # channels of the first convolution
_LAST = 6  # times the channels of the last block
_mobile_normalized = partial(_normalized, momentum=0.01, epsilon=1e-3)


class MobileNetV3(Layered):
    """MobileNetV3: blocks that widen the channels, convolve each by itself and narrow them again, then class scores.

    Bottom: images (batch, height, width, channels). Top: scores (batch, classes). The trained parameters of 1,000
    classes: 5,483,032 (large), 2,542,856 (small).

    Args:
        classes: Number of classes.
        size: "large" or "small".
        dropout: Share of the hidden features that is dropped in training.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if there is no such size, or another setting is out of range.
    Source: Howard and others, Searching for MobileNetV3, 2019, with the batch norms of torchvision's; first values are
        `init.he` and 0.

    Example:
        >>> graph = af.Graph("imagenet")
        >>> net = af.nn.MobileNetV3(1000, size="small")
        >>> net(graph.blob("images", ["batch", 224, 224, 3]), training=False).spec.shape
        (batch, 1000)
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        size: str = "large",
        dropout: float = 0.2,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        if size not in MOBILE_NETS:
            raise GraphError(f"MobileNetV3: size must be one of {', '.join(MOBILE_NETS)}, got {size!r}")
        blocks, hidden = MOBILE_NETS[size]
        weights = init.he(seed)
        channels = _STEM
        layers = [*_mobile_normalized("stem", channels, 3, 2, weights), Activation("hard_swish", "hard_swish")]
        for i, block in enumerate(blocks):
            layers.append(_InvertedResidual(channels, *block, weight_init=weights, name=f"block{i}"))
            channels = block[2]
        layers += [
            *_mobile_normalized("last", _LAST * channels, 1, 1, weights),
            Activation("hard_swish", "hard_swish_last"),
            GlobalAverage(name="average"),
            InnerProduct(hidden, activation="hard_swish", weight_init=weights, name="hidden"),
            Dropout(dropout, seed, name="dropout"),
            InnerProduct(classes, weight_init=weights, name="scores"),
        ]
        super().__init__(layers, name)


class _InvertedResidual(Layer):
    """A 1x1 convolution to more channels, one of each channel, perhaps factors for them, a 1x1 one to fewer again."""

    def __init__(
        self,
        channels_in: int,
        kernel: int,
        expanded: int,
        channels: int,
        squeezed: bool,
        activation: str,
        stride: int,
        *,
        weight_init: Initializer,
        name: str,
    ) -> None:
        super().__init__(name)
        self.layers: list[Composite] = []
        if expanded != channels_in:
            self.layers += _mobile_normalized("_expand", expanded, 1, 1, weight_init)
            self.layers.append(Activation(activation, "activation_expand"))
        self.layers += _mobile_normalized("_depth", expanded, kernel, stride, weight_init, groups=expanded)
        self.layers.append(Activation(activation, "activation_depth"))
        if squeezed:
            self.layers.append(_SqueezeExcite(expanded, weight_init, "squeeze"))
        self.layers += _mobile_normalized("_project", channels, 1, 1, weight_init)
        self.adds = stride == 1 and channels_in == channels

    def forward(self, x: Blob, training: bool) -> Blob:
        y = _through(self.layers, x, training)
        return ops.add(y, x, name="add") if self.adds else y


class _SqueezeExcite(Layer):
    """Multiplies each channel by a factor that two inner products make of the averages of all."""

    def __init__(self, channels: int, weight_init: Initializer, name: str) -> None:
        super().__init__(name)
        quarter = channels // 4
        squeezed = max(8, (quarter + 4) // 8 * 8)  # the nearest multiple of 8, not a tenth below
        if squeezed < 0.9 * quarter:
            squeezed += 8
        self.layers: list[Composite] = [
            GlobalAverage(name="average"),
            InnerProduct(squeezed, activation="relu", weight_init=weight_init, name="reduce"),
            InnerProduct(channels, activation="hard_sigmoid", weight_init=weight_init, name="excite"),
        ]

    def forward(self, x: Blob, training: bool) -> Blob:
        batch, *image, channels = x.shape
        factors = ops.reshape(_through(self.layers, x, training), (batch, *(1 for _ in image), channels))
        return ops.multiply(x, factors, name="multiply")


class LSTMLanguageModel(Composite[tuple[Blob, Blob, Blob]]):
    """Scores of the token that comes next, at each place of a text: embedding, LSTM, inner product.

    Bottom: tokens (steps, batch), integers from 0 to ``vocabulary - 1``, and perhaps the hidden state and the cell to
    go on from, (layers, batch, ``hidden``), which are 0 otherwise. Top: scores (steps, batch, vocabulary), for
    `ops.softmax_loss` with the tokens one step later, and the last hidden state and cell.

    Args:
        vocabulary: How many tokens there are.
        features: Length of a token's vector.
        hidden: Length of the state.
        layers: Of the LSTM.
        dropout: Share of the elements dropped before and after the LSTM, in training.
        dtype: Of weights and scores.
        seed: Chooses initial weights and dropout.
        name: Scope of its nodes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Zaremba, Sutskever and Vinyals, Recurrent neural network regularization, 2014, but for the dropout between
        layers; Minerva's LSTM example.

    Example:
        >>> graph = af.Graph("text")
        >>> tokens = graph.blob("tokens", ["steps", "batch"], "int64")
        >>> later = graph.blob("later", ["steps", "batch"], "int64")  # the tokens one step later
        >>> net = af.nn.LSTMLanguageModel(vocabulary=65, hidden=32)
        >>> scores, hidden, cell = net(tokens)
        >>> scores.spec.shape, hidden.spec.shape
        ((steps, batch, 65), (1, batch, 32))
        >>> loss = af.ops.softmax_loss(scores, later)
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        features: int = 64,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        dtype: npt.DTypeLike = "float32",
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        table = init.gaussian(0.1, seed=seed)
        self.embedding = Embedding(vocabulary, features, dtype=dtype, weight_init=table, name="embedding")
        self.lstm = LSTM(hidden, layers, seed=seed, name="lstm")
        self.scores = Linear(vocabulary, weight_init=init.xavier(seed), name="scores")
        self.dropouts = [Dropout(dropout, seed, name=f"dropout{i}") for i in range(2)]

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """One or three bottom blobs, three top blobs."""
        if len(bottom) not in (1, 3):
            raise GraphError(f"LSTMLanguageModel takes 1 or 3 bottom blobs (tokens, hidden, cell), got {len(bottom)}")
        tokens, *state = bottom
        if len(tokens.shape) != 2:
            raise ShapeError(f"LSTMLanguageModel: tokens must have shape (steps, batch), got {tokens.spec}")
        before, after = self.dropouts
        x = before(self.embedding(tokens, training=training), training=training)
        y, hidden, cell = self.lstm(x, *state, training=training)
        return self.scores(after(y, training=training), training=training), hidden, cell
