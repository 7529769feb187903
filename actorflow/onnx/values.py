"""Values of a file's tensors while it is lowered: constants, lengths, and blobs in one or more orders of axes.

ONNX's images are channels-first, ours channels-last. A value therefore says in which orders of axes it exists, and is
transposed only when an operation needs another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow import ops
from actorflow.onnx.constants import constant
from actorflow.onnx.refusal import Refused
from actorflow.ops.fills import Numbers
from actorflow.spec import MOST_AXES, Length, TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob

#: Axis ``i`` of a blob is axis ``order[i]`` of the file's tensor.
Order = tuple[int, ...]
Array = npt.NDArray[Any]


def usual(rank: int) -> Order:
    """The order of the file."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """The order of images here, for values that are (batch, channels, *size) in the file."""
    return (0, *range(2, rank), 1)


class Value:
    """A tensor of the file.

    Args:
        spec: Its type, axes in the file's order.
        known: The array, if it is constant.
        lengths: Its elements, an array of numbers and lengths, if they follow from open axes alone.
        blobs: Blobs that hold it, by the order of their axes.

    Attributes:
        graph: Where constants are made.
        make: Makes the blob when it is first needed, and says its order; None if that was done. Until then ``linear``
            may still be folded into what is to be made.
        linear: See `actorflow.onnx.linear`.
        quantized: Origin of quantized numbers, see `actorflow.onnx.operators.quantized`.
        trained: Makes the variable that holds it; None if it is not trained.

    Raises:
        Refused: if there is no array of that shape.
    """

    def __init__(
        self,
        graph: Graph,
        spec: TensorSpec,
        *,
        known: Array | None = None,
        lengths: Array | None = None,
        blobs: dict[Order, Blob] | None = None,
    ) -> None:
        shape: tuple[Any, ...] = spec.shape
        if len(shape) > MOST_AXES:
            raise Refused(f"gives a tensor of {len(shape)} axes, at most {MOST_AXES} are allowed")
        if min([n for n in shape if type(n) is int], default=0) < 0:
            raise Refused(f"gives a tensor of the shape {list(shape)}, of negative lengths")
        self.graph = graph
        self.spec = spec
        self.known = known
        self.lengths = lengths
        self.blobs: dict[Order, Blob] = blobs or {}
        self.make: Callable[[], tuple[Order, Blob]] | None = None
        self.trained: Callable[[], Blob] | None = None
        self.linear: Any = None
        self.quantized: Any = None

    def __repr__(self) -> str:
        return f"<Value {self.spec}>"

    @property
    def shape(self) -> tuple[Any, ...]:
        """Length of each axis, in the file's order."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.spec.dtype

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def is_constant(self) -> bool:
        """Whether it is the same in each frame."""
        return self.known is not None and self.trained is None

    @property
    def numbers(self) -> Array | None:
        """Its elements, if they are known or follow from lengths: an array of numbers, or of objects."""
        return self.lengths if self.known is None else self.known

    @property
    def orders(self) -> list[Order]:
        """The orders of axes that it exists in; none for a constant, which can have any."""
        self._materialize()
        return [] if self.is_constant else [*self.blobs]

    def blob(self, order: Order | None = None) -> Blob:
        """The blob that holds it, with its axes in an order: by default that of the file."""
        order = usual(self.rank) if order is None else order
        self._materialize()
        found = self.blobs.get(order)
        if found is None:
            found = self.blobs[order] = self._reordered(order)
        return found

    def broadcastable(self, order: Order) -> Blob:
        """The blob that holds it, to stand beside a blob of at least as many axes in that order."""
        new = len(order) - self.rank
        if self.is_constant and self.spec.size == 1:
            assert self.known is not None
            return constant(self.graph, self.known.reshape(()), name="number")
        own = tuple([axis - new for axis in order if axis >= new])
        if not new or (order == usual(len(order))):
            return self.blob(own)
        shape = [1 if axis < new else self.shape[axis - new] for axis in order]
        if self.is_constant:
            assert self.known is not None
            return constant(self.graph, self.known.transpose(own).reshape(shape))
        return ops.reshape(self.blob(own), shape)

    def _materialize(self) -> None:
        if self.make is not None:
            order, blob = self.make()  # what cannot be made is so for each that reads it
            self.blobs[order] = blob
            self.make = self.linear = None
        if not self.blobs and self.trained is not None:
            self.blobs[usual(self.rank)] = self.trained()

    def _reordered(self, order: Order) -> Blob:
        if self.is_constant:
            assert self.known is not None
            return constant(self.graph, self.known.transpose(order))
        if self.lengths is not None:
            return self._of_lengths(order)
        old, blob = next(iter(self.blobs.items()))
        shape = tuple(self.shape[axis] for axis in order)
        if _moving(old, self.shape) == _moving(order, self.shape):
            return ops.reshape(blob, shape, name="reshape")
        return ops.transpose(blob, [old.index(axis) for axis in order], name="transpose")

    def _of_lengths(self, order: Order) -> Blob:
        assert self.lengths is not None
        elements = tuple(self.lengths.reshape(-1).tolist())
        spec = self.spec
        made: Blob = self.graph.apply(Numbers(_array, (elements, spec.shape, spec.dtype.str), spec), name="lengths")
        return made if order == usual(self.rank) else ops.transpose(made, order, name="transpose")


def _array(elements: Sequence[int], shape: tuple[int, ...], dtype: str) -> Array:
    return np.array(elements, dtype).reshape(shape)


def _moving(order: Order, shape: Sequence[Any]) -> list[int]:
    """The axes that have places in memory: those not of length 1."""
    return [axis for axis in order if isinstance(shape[axis], Length) or shape[axis] != 1]


def in_order(graph: Graph, order: Order, blob: Blob) -> Value:
    """The value that a blob holds with its axes in an order."""
    shape = [blob.shape[order.index(axis)] for axis in range(len(order))]
    return Value(graph, TensorSpec(tuple(shape), blob.dtype), blobs={order: blob})


def common_order(values: Sequence[Value], rank: int) -> Order:
    """The order in which most of these values exist; in doubt channels-last for images, else that of the file."""
    counts: dict[Order, int] = {}
    for value in values:
        if value.rank == rank:
            for order in value.orders:
                counts[order] = counts.get(order, 0) + 1
    if not counts:
        return usual(rank)
    preferred = channels_last(rank) if rank > 3 else usual(rank)
    return max(counts, key=lambda order: (counts[order], order == preferred))
