"""Perceptron of several layers."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.graph.composite import Composite
from actorflow.nn import init
from actorflow.nn.layers import Dropout
from actorflow.nn.models.layered import Layered
from actorflow.nn.weighted import InnerProduct


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
        weights = init.he(seed)
        layers: list[Composite] = []
        for i, features in enumerate(hidden):
            layers += [
                InnerProduct(features, activation=activation, weight_init=weights, name=f"hidden{i}"),
                Dropout(dropout, seed, name=f"dropout{i}"),
            ]
        super().__init__([*layers, InnerProduct(classes, weight_init=weights, name="scores")], name)
