"""Picking elements by index, and adding to them: the gradient of each is the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, axes_of, rank_is, same_numbers
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


def _check_indices(kind: str, indices: TensorSpec) -> None:
    if indices.dtype.kind not in "iu":
        raise DTypeError(f"{kind}: indices must be of integers, got {indices}")


@dataclass(frozen=True)
class Take(Operation):
    """``y = x`` at indices of one axis, for all of the others; see `take`.

    Attributes:
        axis: What the indices are of; the indices' own axes take its place.
    """

    arguments = ("x", "indices")

    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape of ``x`` with that of the indices in the place of the axis, and the dtype of ``x``."""
        x, indices = inputs
        _check_indices("Take", indices)
        (axis,) = axes_of("Take", self.axis, len(x.shape))
        if x.shape[axis] == 0 and indices.size:
            raise ShapeError(f"Take: x must have at least 1 element on axis {axis}, got {x}")
        return (TensorSpec((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`TakeDown`."""
        assert grads[0] is not None
        x, indices = op.inputs
        (axis,) = axes_of("Take", self.axis, len(x.shape))
        return [apply(TakeDown(x.shape[axis], axis), grads[0], indices), None]


@dataclass(frozen=True)
class TakeDown(Operation):
    """``dx``: each part of ``g`` added where it was taken from; the gradient of `Take`.

    What was taken several times is summed in the order of the indices, whatever the timing.

    Attributes:
        length: Of the axis in ``x``.
        axis: As in `Take`, not negative.
    """

    arguments = ("g", "indices")

    length: int
    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            ShapeError: if ``g`` does not have the indices' shape at the axis.
        """
        g, indices = inputs
        _check_indices("TakeDown", indices)
        same_numbers("TakeDown", g=g)
        stop = self.axis + len(indices.shape)
        if g.shape[self.axis : stop] != indices.shape:
            raise ShapeError(f"TakeDown: g must have shape {indices.shape} from axis {self.axis} on, got {g}")
        return (TensorSpec((*g.shape[: self.axis], self.length, *g.shape[stop:]), g.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The parts taken."""
        assert grads[0] is not None
        return [apply(Take(self.axis), grads[0], op.inputs[1]), None]


@dataclass(frozen=True)
class TakeAlongAxis(Operation):
    """``y = x`` at an index of one axis for each element of ``y``; see `take_along_axis`.

    Attributes:
        axis: What the indices are of.
    """

    arguments = ("x", "indices")

    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape of the indices, and the dtype of ``x``.

        Raises:
            ShapeError: if the indices do not have the shape of ``x`` beside the axis.
        """
        x, indices = inputs
        _check_indices(self.kind, indices)
        (axis,) = axes_of(self.kind, self.axis, len(x.shape))
        rank_is(self.kind, "indices", indices, [f"axis {i}" for i in range(len(x.shape))])
        _check_beside(self.kind, "indices", indices, x.shape, axis)
        if x.shape[axis] == 0 and indices.size:
            raise ShapeError(f"TakeAlongAxis: x must have at least 1 element on axis {axis}, got {x}")
        return (TensorSpec(indices.shape, x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`TakeAlongAxisDown`."""
        assert grads[0] is not None
        x, indices = op.inputs
        (axis,) = axes_of(self.kind, self.axis, len(x.shape))
        return [apply(TakeAlongAxisDown(x.shape[axis], axis), grads[0], indices), None]


@dataclass(frozen=True)
class TakeAlongAxisDown(Operation):
    """``dx``: each element of ``g`` added where it was taken from; the gradient of `TakeAlongAxis`.

    What was taken several times is summed in the order of ``g``, whatever the timing.

    Attributes:
        length: Of the axis in ``x``.
        axis: As in `TakeAlongAxis`, not negative.
    """

    arguments = ("g", "indices")

    length: int
    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            ShapeError: if ``g`` does not have the indices' shape.
        """
        g, indices = inputs
        _check_indices(self.kind, indices)
        same_numbers(self.kind, g=g)
        if g.shape != indices.shape:
            raise ShapeError(f"{self.kind}: g must have the indices' shape {indices.shape}, got {g}")
        return (TensorSpec((*g.shape[: self.axis], self.length, *g.shape[self.axis + 1 :]), g.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The elements taken."""
        assert grads[0] is not None
        return [apply(TakeAlongAxis(self.axis), grads[0], op.inputs[1]), None]


def _check_beside(kind: str, name: str, given: TensorSpec, shape: tuple[int, ...], axis: int) -> None:
    """Check that a shape is that of ``x`` on all axes but one.

    Raises:
        ShapeError: naming the argument.
    """
    if any(n != m for i, (n, m) in enumerate(zip(given.shape, shape, strict=True)) if i != axis):
        raise ShapeError(f"{kind}: {name} must have x's shape {shape} beside axis {axis}, got {given}")


@dataclass(frozen=True)
class OneHot(Operation):
    """1 at the index along a new last axis, 0 elsewhere; see `one_hot`.

    Attributes:
        depth: Length of the new axis.
        dtype: Of the result.
    """

    arguments = ("indices",)
    differentiable = False

    depth: int
    dtype: np.dtype[np.generic]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape of the indices with the new axis.

        Raises:
            GraphError: if ``depth`` is less than 1.
            DTypeError: if the indices are no integers.
        """
        _check_indices("OneHot", inputs[0])
        if self.depth < 1:
            raise GraphError(f"OneHot: depth must be at least 1, got {self.depth}")
        return (TensorSpec((*inputs[0].shape, self.depth), self.dtype),)


def take(x: Blob, indices: Blob, axis: int = 0, name: str | None = None) -> Blob:
    """Parts of a blob at indices of one axis.

    Args:
        x: At least one axis, any dtype.
        indices: Any shape, integers from ``-n`` to ``n - 1`` for an axis of length n; another index is an error on the
            CPU, and gives what is not a number (0 for integers) on CUDA devices.
        axis: What the indices are of, counted from the end if negative.
        name: Name of the op.
    Returns:
        Blob of the shape of ``x`` with that of ``indices`` in the place of the axis, and the dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: g, added where its parts were taken from, in the order of the indices.
    Source: `numpy.take`.
    """
    return blob_of(Take(axis), x, indices, name=name)


def take_along_axis(x: Blob, indices: Blob, axis: int = 0, name: str | None = None) -> Blob:
    """For each element of the result, the element of ``x`` at its index along an axis.

    Args:
        x: At least one axis, any dtype.
        indices: The shape of ``x`` but for the axis, integers as in `take`.
        axis: What the indices are of, counted from the end if negative.
        name: Name of the op.
    Returns:
        Blob of the shape of ``indices``, and the dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: g, added where its elements were taken from, in order.
    Source: `numpy.take_along_axis`, ``torch.gather``.
    """
    return blob_of(TakeAlongAxis(axis), x, indices, name=name)


def embedding(indices: Blob, weight: Blob, name: str | None = None) -> Blob:
    """Rows of a table: `take` along its first axis.

    Args:
        indices: Any shape, integers as in `take`.
        weight: Shape (rows, features), floating.
        name: Name of the op.
    Returns:
        Blob of shape (indices' shape, features), and the dtype of ``weight``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: of the table, g added to the rows that were taken, in the order of the indices.
    Source: ``torch.nn.functional.embedding``.
    """
    rank_is("embedding", "weight", weight.spec, ("rows", "features"))
    return take(weight, indices, 0, name=name or "embedding")


def one_hot(indices: Blob, depth: int, dtype: npt.DTypeLike = "float32", name: str | None = None) -> Blob:
    """1 at the index along a new last axis, 0 elsewhere.

    Args:
        indices: Any shape, integers; an index that is not from 0 to ``depth - 1`` is an error on the CPU, and gives
            zeros on CUDA devices.
        depth: Length of the new axis, at least 1.
        dtype: Of the result.
        name: Name of the op.
    Returns:
        Blob of shape (indices' shape, depth).
    Raises:
        GraphError: if ``depth`` is less than 1.
        DTypeError: if the indices are no integers.
    Gradient: none.
    Source: ``torch.nn.functional.one_hot``.
    """
    return blob_of(OneHot(depth, TensorSpec.of((), dtype).dtype), indices, name=name)
