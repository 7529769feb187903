"""What models are that have one layer after the other."""

from __future__ import annotations

from collections.abc import Iterable

from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob


class Layered(Composite):
    """Layers one after the other, in the model's own scope.

    Bottom and top: those of the first and of the last layer, one blob each.

    Args:
        layers: The layers.
        name: Scope of its nodes.
    """

    def __init__(self, layers: Iterable[Composite], name: str | None = None) -> None:
        super().__init__(name)
        self.layers = list(layers)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        if len(bottom) != 1:
            raise GraphError(f"{type(self).__name__} takes 1 bottom blob (x), got {len(bottom)}")
        (x,) = bottom
        for layer in self.layers:
            x = layer(x, training=training)
        return x
