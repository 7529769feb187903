"""GoogLeNet."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow import ops
from actorflow.errors import GraphError
from actorflow.graph.composite import Chain, Composite
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn import init
from actorflow.nn.inception import Inception
from actorflow.nn.layers import Dropout, GlobalAverage, Pool
from actorflow.nn.models.layered import Layered
from actorflow.nn.norm import LRN
from actorflow.nn.weighted import Conv, InnerProduct

#: one, three, five, three_reduce, five_reduce, pool_proj of each block.
_BLOCKS = {
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


class GoogLeNet(Composite):
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
            for key, widths in _BLOCKS.items()
        }
        low, high = (Pool("max", 3, 2, name=f"pool{stage}") for stage in (3, 4))
        # What the first auxiliary head sees, what the second one sees, and what the scores see.
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
        if len(bottom) != 1:
            raise GraphError(f"GoogLeNet takes 1 bottom blob (x), got {len(bottom)}")
        seen: list[Blob] = []
        (x,) = bottom
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
        """
        main, *others = (scores,) if isinstance(scores, Blob) else scores
        terms = [ops.softmax_loss(main, labels), *(ops.softmax_loss(y, labels, scale=weight) for y in others)]
        return ops.add(*terms) if others else terms[0]


def _stem(weights: Initializer, biases: Initializer) -> Layered:
    def conv(channels: int, kernel: int, stride: int, name: str) -> Conv:
        return Conv(
            channels,
            kernel,
            stride,
            kernel // 2,
            activation="relu",
            weight_init=weights,
            bias_init=biases,
            name=name,
        )

    return Layered(
        [
            conv(64, 7, 2, "conv1"),
            Pool("max", 3, 2, name="pool1"),
            LRN(name="lrn1"),
            conv(64, 1, 1, "conv2_reduce"),
            conv(192, 3, 1, "conv2"),
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
