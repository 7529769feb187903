"""A table of vectors."""

from __future__ import annotations

import numpy.typing as npt

from actorflow import ops
from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn import init
from actorflow.nn.layers import bottoms


class Embedding(Composite):
    """The vector of each index.

    Bottom: indices, any shape, integers. Top: (indices' shape, ``features``). Variable: ``weight`` (count, features).

    Args:
        count: How many vectors.
        features: Their length.
        dtype: Of the vectors, floating.
        weight_init: Initializer of the vectors; the default is Gaussian of 1, as PyTorch's.
        name: Scope of its nodes.
    Raises:
        GraphError: if a number is not positive.
    Source: `torch.nn.Embedding`.
    """

    def __init__(
        self,
        count: int,
        features: int,
        *,
        dtype: npt.DTypeLike = "float32",
        weight_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if count < 1 or features < 1:
            raise GraphError(f"Embedding: count and features must be at least 1, got {count} and {features}")
        self.count, self.features, self.dtype = count, features, dtype
        self.weight_init = weight_init or init.gaussian(1.0)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        weight = self.variable(x, "weight", (self.count, self.features), self.weight_init, self.dtype)
        return ops.embedding(x, weight)
