"""Operations that copy, order, fill and reshape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import ShapeError
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, axes_of
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class Copy(Operation):
    """``y = x``, any dtype.

    Gradient: dx = g.
    Source: Purine2 ``MemCopy``.
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient passes through."""
        return grads


@dataclass(frozen=True)
class Dummy(Operation):
    """``y = x``, once everything in ``after`` has been computed; see `dummy`.

    Source: Purine2 ``Dummy``.
    """

    arguments = ("x", "*after")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        return inputs[:1]

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient of ``x`` passes through; what was only waited for has none."""
        return [grads[0] if wanted[0] else None, *[None] * (len(wanted) - 1)]


@dataclass(frozen=True)
class Fill(Operation):
    """A blob of one constant, from no inputs.

    Source: Purine2 ``Constant``.

    Attributes:
        value: The constant.
        spec: Shape and dtype of the result.
    """

    arguments = ()

    value: float
    spec: TensorSpec

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The declared type."""
        return (self.spec,)


@dataclass(frozen=True)
class Reshape(Operation):
    """The elements of ``x``, in their order, in another shape; any dtype; no copy on the CPU.

    Gradient: g in the shape of ``x``.

    Attributes:
        shape: The new shape; one axis may be -1 and takes what the others leave.
    """

    shape: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """``shape``, with -1 replaced.

        Raises:
            ShapeError: if the number of elements does not fit.
        """
        (x,) = inputs
        known = math.prod(axis for axis in self.shape if axis != -1)
        free = self.shape.count(-1)
        missing = x.size // known if free and known else 0
        shape = tuple(missing if axis == -1 else axis for axis in self.shape)
        if free > 1 or any(axis < 0 for axis in shape) or math.prod(shape) != x.size or (free and not known):
            raise ShapeError(f"Reshape: x of {x.size} elements cannot have shape {self.shape}, got {x}")
        return (TensorSpec(shape, x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient in the old shape."""
        assert grads[0] is not None
        return [apply(Reshape(op.inputs[0].shape), grads[0])]


def copy(x: Blob, name: str | None = None) -> Blob:
    """A copy of a blob.

    Args:
        x: Any shape and dtype.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Gradient: dx = g.
    Source: Purine2 ``MemCopy``.
    """
    return blob_of(Copy(), x, name=name)


def dummy(x: Blob, *after: Blob, name: str | None = None) -> Blob:
    """A blob, once others have been computed: nothing but an order.

    Args:
        x: Any shape and dtype.
        after: One or more blobs of any type, of which only the end is waited for.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``; whoever reads it runs after the producers of ``after``. On the CPU nothing is copied
        where nobody else reads ``x``.
    Gradient: dx = g; none for ``after``.
    Source: Purine2 ``Dummy``.
    """
    return blob_of(Dummy(), x, *after, name=name)


def fill(
    graph: Graph, value: float, shape: Iterable[int] | int, dtype: npt.DTypeLike = "float32", name: str | None = None
) -> Blob:
    """A blob filled with one constant.

    Args:
        graph: The graph that it is made in, as nothing else says it.
        value: The constant.
        shape: Length of each axis.
        dtype: Type of the elements.
        name: Name of the op.
    Returns:
        Blob of that shape and dtype.
    Source: Purine2 ``Constant``.
    """
    y: Blob = graph.root.apply(Fill(value, TensorSpec.of(shape, dtype)), name=name)
    return y


def filled(value: Any, shape: tuple[int, ...], like: Blob, name: str | None = None) -> Blob:
    """A constant of the dtype and place of another blob."""
    root = like.graph.root
    with root.at(like.place):
        y: Blob = root.apply(Fill(value, TensorSpec(shape, like.dtype)), name=name)
    return y


def reshape(x: Blob, shape: Iterable[int] | int, name: str | None = None) -> Blob:
    """The elements of ``x``, in C order, in another shape.

    Args:
        x: Any shape and dtype.
        shape: New shape; one axis may be -1.
        name: Name of the op.
    Returns:
        Blob of the new shape and the dtype of ``x``; on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if the number of elements does not fit.
    Gradient: g in the shape of ``x``.
    """
    axes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    return blob_of(Reshape(tuple(int(axis) for axis in axes)), x, name=name)


def flatten(x: Blob, name: str | None = None) -> Blob:
    """All axes but the first joined into one.

    Args:
        x: Shape (batch, ...), any dtype.
        name: Name of the op.
    Returns:
        Blob of shape (batch, elements per sample).
    Raises:
        ShapeError: if ``x`` has no axes.
    Gradient: g in the shape of ``x``.
    """
    if not x.shape:
        raise ShapeError(f"flatten: x must have shape (batch, ...), got {x.spec}")
    return reshape(x, (x.shape[0], math.prod(x.shape[1:])), name=name)


def expand_dims(x: Blob, axis: int | Sequence[int], name: str | None = None) -> Blob:
    """``x`` with axes of length 1 put in.

    Args:
        x: Any shape and dtype.
        axis: Where the new axes are in the result; negative ones count from its end.
        name: Name of the op.
    Returns:
        Blob of the dtype of ``x``; on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if the result has no such axis, or one is given twice.
    Gradient: g in the shape of ``x``.
    Source: `numpy.expand_dims`.
    """
    count = 1 if isinstance(axis, int) else len(axis)
    new = axes_of("expand_dims", axis, len(x.shape) + count)
    rest = iter(x.shape)
    return reshape(x, [1 if i in new else next(rest) for i in range(len(x.shape) + count)], name=name)


def squeeze(x: Blob, axis: int | Sequence[int] | None = None, name: str | None = None) -> Blob:
    """``x`` without axes of length 1.

    Args:
        x: Any shape and dtype.
        axis: Which ones are left out; by default all of length 1.
        name: Name of the op.
    Returns:
        Blob of the dtype of ``x``; on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if ``x`` has no such axis, or it is not of length 1.
    Gradient: g in the shape of ``x``.
    Source: `numpy.squeeze`.
    """
    ones = [i for i, length in enumerate(x.shape) if length == 1]
    gone = ones if axis is None else axes_of("squeeze", axis, len(x.shape))
    for i in gone:
        if i not in ones:
            raise ShapeError(f"squeeze: x must have length 1 on axis {i}, got {x.spec}")
    return reshape(x, [length for i, length in enumerate(x.shape) if i not in gone], name=name)
