"""Broadcasting, and the sum that undoes it: the gradient of each is the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.basic import filled, reshape
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, axes_of, same_numbers
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op

#: One axis, several, or all of them.
Axis = int | Sequence[int] | None


def broadcast_shape(kind: str, **inputs: TensorSpec) -> tuple[int, ...]:
    """The shape that arrays of these types have together, by NumPy's rules.

    Raises:
        ShapeError: naming the first argument that does not fit to those before it.
    """
    (first, spec), *rest = inputs.items()
    shape = spec.shape
    for name, other in rest:
        if other.shape != shape:
            try:
                shape = np.broadcast_shapes(shape, other.shape)
            except ValueError:
                before = f"{first}'s shape" if name == rest[0][0] else "the shape of those before it,"
                raise ShapeError(f"{kind}: {name} must broadcast with {before} {shape}, got {other}") from None
    return shape


def number_like(value: Any, like: Blob) -> Blob:
    """A number as a 0-d blob of another blob's dtype and place.

    Raises:
        DTypeError: if the dtype cannot have that value.
    """
    kind = like.dtype.kind
    is_whole = isinstance(value, bool | int | np.bool_ | np.integer)
    if (kind == "b" and not isinstance(value, bool | np.bool_)) or (kind in "iu" and not is_whole):
        raise DTypeError(f"the number {value!r} does not fit to blob {like.name!r}, {like.spec}: cast the blob")
    return filled(value, (), like, name="number")


def with_numbers(*operands: Blob | float) -> list[Blob]:
    """The operands, numbers as 0-d blobs of the dtype of the first blob; what is neither is left to `apply`."""
    like = next((x for x in operands if hasattr(x, "spec")), None)
    numbers = (bool, int, float, complex, np.generic)
    return [number_like(x, like) if like is not None and isinstance(x, numbers) else x for x in operands]  # type: ignore[arg-type, misc]


def sum_to(grad: Blob, shape: tuple[int, ...]) -> Blob:
    """The sum of a gradient over the axes that its operand of ``shape`` was broadcast along."""
    if grad.shape == shape:
        return grad
    new = len(grad.shape) - len(shape)
    axes = [*range(new), *[i + new for i, n in enumerate(shape) if n == 1 and grad.shape[i + new] != 1]]
    if not axes:
        return grad
    summed: Blob = apply(ReduceSum(tuple(axes), keepdims=True), grad)
    return reshape(summed, shape) if new else summed


@dataclass(frozen=True)
class BroadcastTo(Operation):
    """``x`` repeated along axes until it has a shape; see `broadcast_to`.

    Attributes:
        shape: The shape of the result.
    """

    shape: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """``shape``, with the dtype of ``x``."""
        (x,) = inputs
        new = len(self.shape) - len(x.shape)
        if new < 0 or any(n not in (1, to) for n, to in zip(x.shape, self.shape[new:], strict=True)):
            raise ShapeError(f"BroadcastTo: x must broadcast to shape {self.shape}, got {x}")
        return (TensorSpec(self.shape, x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The sum over what was repeated."""
        assert grads[0] is not None
        return [sum_to(grads[0], op.inputs[0].shape)]


@dataclass(frozen=True)
class Reduction(Operation):
    """What combines the elements along axes.

    Attributes:
        axis: The axes; None for all.
        keepdims: Whether they stay, with length 1.
    """

    axis: tuple[int, ...] | None = None
    keepdims: bool = False

    def axes(self, rank: int) -> tuple[int, ...]:
        """The axes of an array with this many, counted from the front.

        Raises:
            ShapeError: if it does not have them.
        """
        return tuple(range(rank)) if self.axis is None else axes_of(self.kind, self.axis, rank)

    def reduced(self, x: TensorSpec, keepdims: bool | None = None) -> tuple[int, ...]:
        """The shape of the result.

        Raises:
            ShapeError: if ``x`` does not have the axes.
        """
        keep = self.keepdims if keepdims is None else keepdims
        axes = self.axes(len(x.shape))
        return tuple([1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes])

    def count(self, x: TensorSpec) -> int:
        """How many elements of ``x`` make one of the result."""
        return math.prod(x.shape[i] for i in self.axes(len(x.shape)))

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The remaining shape, with the dtype of ``x``."""
        same_numbers(self.kind, ordered=True, x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), inputs[0].dtype),)


@dataclass(frozen=True)
class ReduceSum(Reduction):
    """The sum along axes; see `actorflow.ops.sum`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The remaining shape; integers are summed in 64 bits."""
        same_numbers(self.kind, x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), summed_dtype(inputs[0].dtype)),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient goes to every term."""
        assert grads[0] is not None
        x = op.inputs[0]
        return [apply(BroadcastTo(x.shape), expand_like(self, grads[0], x))]


def summed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums and products of a dtype are given in, as by NumPy: integers in 64 bits."""
    return np.dtype({"i": np.int64, "u": np.uint64}.get(dtype.kind, dtype))


def expand_like(reduction: Reduction, y: Blob, x: Blob) -> Blob:
    """What has the shape of a reduction's result, with the axes that it lost: it broadcasts with ``x``."""
    shape = reduction.reduced(x.spec, keepdims=True)
    return y if y.shape == shape else reshape(y, shape)


def normal_axes(axis: Axis) -> tuple[int, ...] | None:
    """Axes as the field of a `Reduction`."""
    return (axis,) if isinstance(axis, int) else None if axis is None else tuple(axis)


def broadcast_to(x: Blob, shape: Iterable[int] | int, name: str | None = None) -> Blob:
    """``x`` repeated until it has a shape, by NumPy's rules: axes are added in front, those of length 1 are repeated.

    Operations that broadcast need no such copy of their operands.

    Args:
        x: Any shape and dtype.
        shape: The shape of the result.
        name: Name of the op.
    Returns:
        Blob of that shape and the dtype of ``x``.
    Raises:
        ShapeError: if ``x`` does not broadcast to it.
    Gradient: the sum of g over what was repeated.
    Source: `numpy.broadcast_to`.
    """
    return blob_of(BroadcastTo(TensorSpec.of(shape).shape), x, name=name)
