"""Operations that give the same numbers another form: another dtype, another order of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class Cast(Operation):
    """``y = x`` in another dtype, rounded or cut off as NumPy's ``astype`` does.

    Gradient: dx = g in the dtype of x, where both are floating.
    Source: `numpy.ndarray.astype`.
    """

    dtype: np.dtype[np.generic]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape of ``x``."""
        if inputs[0].dtype.hasobject:
            raise DTypeError(f"Cast: x must be of numbers, got {inputs[0]}")
        return (TensorSpec(inputs[0].shape, self.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Cast back; what is not floating has no gradient."""
        return [None if grads[0] is None or not wanted[0] else apply(Cast(op.inputs[0].dtype), grads[0])]


@dataclass(frozen=True)
class Transpose(Operation):
    """``y[i[axes[0]], i[axes[1]], ...] = x[i[0], i[1], ...]``, any dtype.

    Gradient: g with the inverse permutation.
    Source: `numpy.transpose`.
    """

    axes: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The permuted shape."""
        shape = inputs[0].shape
        if sorted(self.axes) != list(range(len(shape))):
            raise ShapeError(f"Transpose: axes {self.axes} are no permutation of the axes of x {inputs[0]}")
        return (TensorSpec(tuple([shape[axis] for axis in self.axes]), inputs[0].dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Permute back."""
        return [None if grads[0] is None or not wanted[0] else apply(self.inverse(), grads[0])]

    def inverse(self) -> Transpose:
        """What undoes it."""
        return Transpose(tuple([self.axes.index(axis) for axis in range(len(self.axes))]))


def cast(x: Blob, dtype: npt.DTypeLike, *, name: str | None = None) -> Blob:
    """``x`` in another dtype.

    Args:
        x: Any shape, any dtype of numbers.
        dtype: The dtype of the result.
        name: Name of the op.
    Returns:
        The blob of the same shape.
    Raises:
        DTypeError: if NumPy does not know the dtype.
    """
    return blob_of(Cast(TensorSpec.of((), dtype).dtype), x, name=name)


def transpose(x: Blob, axes: Sequence[int] | None = None, *, name: str | None = None) -> Blob:
    """``x`` with its axes in another order.

    Args:
        x: Any shape and dtype.
        axes: For each axis of the result, the axis of ``x`` that it is, negative ones counted from the end; by
            default, all in reverse order.
        name: Name of the op.
    Returns:
        The blob with the permuted shape.
    Raises:
        ShapeError: if ``axes`` is no permutation of the axes of ``x``.
    """
    rank = len(x.shape)
    order = range(rank)[::-1] if axes is None else [axis + rank if axis < 0 else axis for axis in axes]
    return blob_of(Transpose(tuple(order)), x, name=name)
