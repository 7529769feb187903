"""Operations that draw random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actorflow.errors import GraphError
from actorflow.ops.elementwise import scaled, where
from actorflow.ops.fills import check_seed
from actorflow.ops.operation import Application, Grads, Operation, X, blob_of, same_dtype
from actorflow.spec import TensorSpec


@dataclass(frozen=True)
class Dropout(Operation):
    """Zeroes elements at random; see `dropout`."""

    per_element = 2

    rate: float
    seed: int

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        same_dtype("Dropout", x=x)
        if not 0 <= self.rate < 1:
            raise GraphError(f"Dropout: rate must be at least 0 and less than 1, got {self.rate}")
        check_seed("Dropout", self.seed)
        return (x, TensorSpec(x.shape, np.dtype(np.bool_)))

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [where(op.outputs[1], scaled(grads[0], 1 / (1 - self.rate)), 0.0)]


def dropout(x: X, rate: float, seed: int | None = None, name: str | None = None) -> X:
    """Elements zeroed at random, the others divided by ``1 - rate``, so that the expectation stays.

    The mask depends on the seed and the number of the frame alone, not on timing, lanes or devices.

    Args:
        x: Any shape, floating.
        rate: The probability that an element is dropped, at least 0 and less than 1.
        seed: From 0 to 2**128 - 1; the default is derived from the name of ``x``, so dropouts of a graph differ.
    Returns:
        Blob of the type of ``x``. (The op's second output is the mask of kept elements, bool.)
    Raises:
        GraphError: if ``rate`` or ``seed`` is out of range.
        DTypeError: if ``x`` is not floating.
    Gradient: g / (1 - rate) where x was kept, else 0.
    Source: Purine2 layer ``Dropout`` (Bernoulli and Mul).
    Example:
        >>> graph = af.Graph("dropout")
        >>> x = graph.blob("x", shape=8)
        >>> y = af.ops.dropout(x, 0.5, seed=1)
        >>> value = graph.run_sync({x: np.ones(8, "float32")})[y]
        >>> print(np.unique(value))
        [0. 2.]
    """
    if seed is None:
        seed = x.new_seed()
    return blob_of(Dropout(rate, seed), x, name=name)
