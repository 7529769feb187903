"""Network in Network."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Initializer
from actorflow.nn import init
from actorflow.nn.layers import Dropout, GlobalAverage, Pool
from actorflow.nn.models.layered import Layered
from actorflow.nn.nin_block import NINBlock
from actorflow.nn.weighted import Conv


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
