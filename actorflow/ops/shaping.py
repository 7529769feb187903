"""Operations that give the elements another shape or order: reshape, transpose, broadcast, join and split.

The sum along axes is here, too: it is the gradient of broadcasting, as broadcasting is its.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.fills import number_like
from actorflow.ops.operation import (
    Application,
    Cost,
    Grads,
    Operation,
    X,
    apply,
    axes_of,
    blob_of,
    same_numbers,
    whole,
)
from actorflow.spec import (
    MOST_AXES,
    Length,
    TensorSpec,
    broadcast_shapes,
    integers,
    known,
    maximum,
    may_divide,
    may_repeat,
)


class Arrangement(Operation):
    """Base of the operations that give elements other places."""

    takes_complex = True
    per_element = 0


@dataclass(frozen=True)
class Reshape(Arrangement):
    """The elements of ``x``, in their order, in another shape; any dtype; no copy on the CPU; see `reshape`."""

    shape: tuple[int, ...]
    #: Open lengths that are not 1: what a file does with the axis follows from that.
    not_one: tuple[int, ...] = ()

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        lengths: tuple[Any, ...] = self.not_one
        if any(not isinstance(n, Length) and n == 1 for n in lengths):
            raise ShapeError(
                f"Reshape: an open axis of {x} is 1, and would be squeezed then: what follows is made for another "
                "length. Say which axes to squeeze, or fix this length where the graph is made or loaded"
            )
        if len(self.shape) > MOST_AXES:
            raise ShapeError(f"Reshape: a shape has at most {MOST_AXES} axes, got {len(self.shape)}")
        known = math.prod(axis for axis in self.shape if axis != -1)
        free = self.shape.count(-1)
        missing = x.size // known if free and known else 0
        shape = tuple(missing if axis == -1 else axis for axis in self.shape)
        if free > 1 or any(axis < 0 for axis in shape) or math.prod(shape) != x.size or (free and not known):
            raise ShapeError(f"Reshape: x of {x.size} elements cannot have shape {self.shape}, got {x}")
        return (TensorSpec(shape, x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(Reshape(op.inputs[0].shape), grads[0])]


def reshape(x: X, shape: Iterable[int] | int, name: str | None = None) -> X:
    """The elements of ``x``, in C order, in another shape.

    Args:
        x: Any shape and dtype.
        shape: New shape; one axis may be -1.
    Returns:
        Blob of the new shape and the dtype of ``x``; on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if the number of elements does not fit.
    Gradient: g in the shape of ``x``.
    Example:
        >>> af.ops.reshape(xp.asarray([1, 2, 3, 4, 5, 6]), (2, -1))
        Array([[1, 2, 3],
               [4, 5, 6]], dtype=int64)
    """
    return blob_of(Reshape(integers(shape)), x, name=name)


def flatten(x: X, name: str | None = None) -> X:
    """All axes but the first joined into one.

    Args:
        x: Shape (batch, ...), any dtype.
    Returns:
        Blob of shape (batch, elements per sample).
    Raises:
        ShapeError: if ``x`` has no axes.
    Gradient: g in the shape of ``x``.
    Example:
        >>> graph = af.Graph("images")
        >>> x = graph.blob("x", shape=("batch", 28, 28))
        >>> af.ops.flatten(x)
        <Blob 'reshape/out' float32[batch, 784] on cpu>
    """
    if not x.shape:
        raise ShapeError(f"flatten: x must have shape (batch, ...), got {x.spec}")
    return reshape(x, (x.shape[0], math.prod(x.shape[1:])), name=name)


def expand_dims(x: X, axis: int | Sequence[int] = 0, name: str | None = None) -> X:
    """``x`` with axes of length 1 put in.

    Args:
        x: Any shape and dtype.
        axis: Positions of the new axes in the result; negative ones count from its end.
    Returns:
        Blob of the dtype of ``x``; on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if the result has no such axis, or one is given twice.
    Gradient: g in the shape of ``x``.
    Source: `numpy.expand_dims`.
    Example:
        >>> af.ops.expand_dims(xp.asarray([1, 2, 3]), (0, -1)).shape
        (1, 3, 1)
    """
    return reshape(x, expanded(x.shape, integers(axis)), name=name)


@lru_cache
def expanded(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `expand_dims` gives."""
    rank = len(shape) + len(axes)
    new, rest = axes_of("expand_dims", axes, rank), iter(shape)
    return tuple([1 if i in new else next(rest) for i in range(rank)])


def squeeze(x: X, axis: int | Sequence[int] | None = None, name: str | None = None) -> X:
    """``x`` without axes of length 1.

    Args:
        x: Any shape and dtype.
        axis: Which ones are left out; by default all of length 1.
    Returns:
        Blob of the dtype of ``x``; on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if ``x`` has no such axis, or it is not of length 1.
    Gradient: g in the shape of ``x``.
    Source: `numpy.squeeze`.
    Example:
        >>> af.ops.squeeze(xp.zeros((1, 3, 1)), axis=0).shape
        (3, 1)
    """
    return reshape(x, squeezed(x.shape, None if axis is None else integers(axis)), name=name)


@lru_cache
def squeezed(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape that `squeeze` gives."""
    gone = [i for i, n in enumerate(shape) if n == 1] if axes is None else axes_of("squeeze", axes, len(shape))
    for i in gone:
        if shape[i] != 1:
            raise ShapeError(f"squeeze: x must have length 1 on axis {i}, got shape {shape}")
    return tuple([n for i, n in enumerate(shape) if i not in gone])


@dataclass(frozen=True)
class Transpose(Arrangement):
    """``y[i[axes[0]], i[axes[1]], ...] = x[i[0], i[1], ...]``, axes may count from the end; see `transpose`."""

    function_name = "permute_dims"
    is_view = True

    axes: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        shape = inputs[0].shape
        if sorted([axes_of(self.kind, axis, len(shape))[0] for axis in self.axes]) != list(range(len(shape))):
            raise ShapeError(f"Transpose: axes {self.axes} are not a permutation of the axes of x {inputs[0]}")
        return (TensorSpec(tuple([shape[axis] for axis in self.axes]), inputs[0].dtype),)

    def compute(self, *inputs: Any) -> Any:
        return inputs[0].transpose(self.axes)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(self.inverse(), grads[0])]

    def inverse(self) -> Transpose:
        """The transposition back."""
        axes = [axis % len(self.axes) for axis in self.axes]
        return Transpose(tuple([axes.index(axis) for axis in range(len(axes))]))


def transpose(x: X, axes: Sequence[int] | None = None, *, name: str | None = None) -> X:
    """``x`` with its axes in another order.

    Args:
        x: Any shape and dtype.
        axes: For each axis of the result, the axis of ``x`` that it is, negative ones counted from the end; by
            default, all in reverse order.
    Returns:
        The blob with the permuted shape.
    Raises:
        ShapeError: if ``axes`` is not a permutation of the axes of ``x``.
    Gradient: g with the inverse permutation.
    Source: `numpy.transpose`.
    Example:
        >>> af.ops.transpose(xp.asarray([[1, 2, 3], [4, 5, 6]]))
        Array([[1, 4],
               [2, 5],
               [3, 6]], dtype=int64)
    """
    order = range(len(x.shape))[::-1] if axes is None else axes
    return blob_of(Transpose(integers(order)), x, name=name)


def moveaxis(x: X, source: int | Sequence[int], destination: int | Sequence[int], name: str | None = None) -> X:
    """``x`` with some axes at other positions, the others in their order.

    Args:
        x: Any shape and dtype.
        source: The axes, negative ones counted from the end.
        destination: Where each is to be.
    Returns:
        The blob with the permuted shape.
    Raises:
        ShapeError: if there are no such axes, or not as many of one as of the other, each once.
    Gradient: g with the inverse permutation.
    Source: `numpy.moveaxis`.
    Example:
        >>> images = xp.zeros((8, 3, 32, 48))  # channels first
        >>> af.ops.moveaxis(images, 1, -1).shape
        (8, 32, 48, 3)
    """
    rank, sources, targets = len(x.shape), integers(source), integers(destination)
    if len(axes_of("moveaxis", sources, rank)) != len(axes_of("moveaxis", targets, rank)):
        raise ShapeError(f"moveaxis: source {source} and destination {destination} must name as many axes")
    moved = [axis % rank for axis in sources]
    order = [axis for axis in range(rank) if axis not in moved]
    for target, origin in sorted(zip([axis % rank for axis in targets], moved, strict=True)):
        order.insert(target, origin)
    return transpose(x, order, name=name)


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
                shape = broadcast_shapes(shape, other.shape)
            except ValueError:
                before = f"{first}'s shape" if name == rest[0][0] else "the shape of those before it,"
                raise ShapeError(f"{kind}: {name} must broadcast with {before} {shape}, got {other}") from None
    return shape


def sum_to(grad: X, shape: tuple[int, ...]) -> X:
    """The sum of a gradient over the axes that its operand of ``shape`` was broadcast along."""
    if grad.shape == shape:
        return grad
    new = len(grad.shape) - len(shape)
    axes = [*range(new), *[i + new for i, n in enumerate(shape) if n == 1 and grad.shape[i + new] != 1]]
    if not axes:
        return grad
    keeps = len(axes) > new
    summed = blob_of(ReduceSum(tuple(axes), keepdims=keeps), grad)
    return reshape(summed, shape) if new and keeps else summed


@dataclass(frozen=True)
class BroadcastTo(Arrangement):
    """``x`` repeated along axes until it has a shape; see `broadcast_to`."""

    function_name = "broadcast_to"
    is_view = True

    shape: tuple[int, ...]

    def compute(self, *inputs: Any) -> Any:
        return np.broadcast_to(inputs[0], self.shape)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        new = len(self.shape) - len(x.shape)
        fits = new >= 0 and may_repeat(x.shape, self.shape[new:])
        if not fits:
            raise ShapeError(f"BroadcastTo: x must broadcast to shape {self.shape}, got {x}")
        return (TensorSpec(self.shape, x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [sum_to(grads[0], op.inputs[0].shape)]


@dataclass(frozen=True)
class Reduction(Operation):
    """Base of the operations that combine the elements along axes.

    Attributes:
        axis: The axes; None for all.
        keepdims: Keep the axes, with length 1.

    Class attributes:
        ufunc: NumPy's function of two elements that folds them; None where that is not all.
    """

    takes_complex = True
    ufunc: ClassVar[Any] = None

    axis: tuple[int, ...] | None = None
    keepdims: bool = False

    def axes(self, rank: int) -> tuple[int, ...]:
        """The axes of an array with this many, counted from the front.

        Raises:
            ShapeError: if it does not have them.
        """
        return axes_of(self.kind, self.axis, rank)

    def reduced(self, x: TensorSpec, keepdims: bool | None = None) -> tuple[int, ...]:
        """The shape of the result.

        Raises:
            ShapeError: if ``x`` does not have the axes.
        """
        keep = self.keepdims if keepdims is None else keepdims
        axes = self.axes(len(x.shape))
        return tuple([1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes])

    def count(self, x: TensorSpec) -> int:
        """Number of elements of ``x`` that make one of the result."""
        return math.prod(x.shape[i] for i in self.axes(len(x.shape)))

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers(self.kind, ordered=True, x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), inputs[0].dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(others=inputs[0].size)


class ReduceSum(Reduction):
    """The sum along axes; see `actorflow.ops.sum`."""

    function_name = "sum"
    ufunc = np.add

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers(self.kind, x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), summed_dtype(inputs[0].dtype)),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        x = op.inputs[0]
        return [apply(BroadcastTo(x.shape), expand_like(self, grads[0], x))]


def summed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype of sums and products of a dtype, as in NumPy: integers and bools in 64 bits."""
    return np.dtype({"b": np.int64, "i": np.int64, "u": np.uint64}.get(dtype.kind, dtype))


def expand_like(reduction: Reduction, y: Any, x: Any) -> Any:
    """A blob of the shape of a reduction's result, with the axes that it lost, so that it broadcasts with ``x``."""
    shape = reduction.reduced(x.spec, keepdims=True)
    return y if y.shape == shape else reshape(y, shape)


def broadcast_to(x: X, shape: Iterable[int] | int, name: str | None = None) -> X:
    """``x`` repeated until it has a shape, by NumPy's rules: axes are added in front, those of length 1 are repeated.

    Operations that broadcast need no such copy of their operands.

    Args:
        x: Any shape and dtype.
        shape: The shape of the result.
    Returns:
        Blob of that shape and the dtype of ``x``.
    Raises:
        ShapeError: if ``x`` does not broadcast to it.
    Gradient: the sum of g over what was repeated.
    Source: `numpy.broadcast_to`.
    Example:
        >>> af.ops.broadcast_to(xp.asarray([1, 2]), (3, 2))
        Array([[1, 2],
               [1, 2],
               [1, 2]], dtype=int64)
    """
    return blob_of(BroadcastTo(TensorSpec.of(shape).shape), x, name=name)


def total(x: Any) -> Any:
    """The sum of all elements, 0-d."""
    return blob_of(ReduceSum(), x)


def spread(x: Any, like: Any) -> Any:
    """A blob repeated to the shape of another."""
    y: Any = x if x.shape == like.shape else apply(BroadcastTo(like.shape), x)
    return y


@dataclass(frozen=True)
class Concat(Arrangement):
    """Parts one after the other along an axis, which is a ``new`` one of length 1 in each, or theirs; see `concat`."""

    arguments = ("*parts",)
    one_dtype = True

    axis: int = 0
    new: bool = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        name = "stack" if self.new else self.kind
        if self.new:
            inputs = tuple([TensorSpec(expanded(part.shape, (self.axis,)), part.dtype) for part in inputs])
        first = inputs[0]
        (axis,) = axes_of(name, self.axis, len(first.shape))
        for i, part in enumerate(inputs):
            if part.dtype != first.dtype:
                raise DTypeError(f"{name}: parts[{i}] must have parts[0]'s dtype {first.dtype}, got {part}")
            if len(part.shape) != len(first.shape) or any(
                n != m for k, (n, m) in enumerate(zip(part.shape, first.shape, strict=True)) if k != axis
            ):
                raise ShapeError(
                    f"{name}: parts[{i}] must have parts[0]'s shape beside axis {axis}, {first}, got {part}"
                )
        length = sum(part.shape[axis] for part in inputs)
        return (TensorSpec((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        lengths = tuple([1 if self.new else part.shape[self.axis] for part in op.inputs])
        shares = apply(Split(lengths, self.axis), grads[0])
        shares = [shares] if len(lengths) == 1 else list(shares)
        return [reshape(g, part.shape) for g, part in zip(shares, op.inputs, strict=True)] if self.new else shares


@dataclass(frozen=True)
class Split(Arrangement):
    """Pieces of ``x`` along an axis, views of it on the CPU; see `split`."""

    lengths: tuple[int, ...]
    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        (axis,) = axes_of("Split", self.axis, len(x.shape))
        if not self.lengths or any(length < 0 for length in self.lengths) or sum(self.lengths) != x.shape[axis]:
            raise ShapeError(f"Split: lengths {self.lengths} must add up to that of x on axis {axis}, got {x}")
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return tuple([TensorSpec((*before, length, *after), x.dtype) for length in self.lengths])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        some = next(g for g in grads if g is not None)
        parts = [
            broadcast_to(number_like(0.0, some), y.shape) if g is None else g
            for g, y in zip(grads, op.outputs, strict=True)
        ]
        return [apply(Concat(self.axis), *parts)]


@whole
def concat(parts: Sequence[X], axis: int | None = 0, name: str | None = None) -> X:
    """Blobs one after the other along an axis; each is copied once.

    Args:
        parts: One or more blobs of one dtype, and one shape but for the axis; arrays are promoted to one dtype.
        axis: Axis to join along, counted from the end if negative; None joins the flat parts.
    Returns:
        Blob whose length along the axis is the sum of theirs.
    Raises:
        ShapeError, DTypeError: if the parts do not fit; the message names the one.
    Gradient: g taken apart, without copies on the CPU.
    Source: Purine2 ``Concat``.
    Example:
        >>> a, b = xp.asarray([[1, 2]]), xp.asarray([[3, 4], [5, 6]])
        >>> af.ops.concat([a, b])
        Array([[1, 2],
               [3, 4],
               [5, 6]], dtype=int64)
    """
    if not parts:
        raise ShapeError("concat: give at least one part")
    if axis is None:
        return concat([reshape(part, -1) for part in parts], 0, name)
    return blob_of(Concat(axis), *parts, name=name)


def stack(parts: Sequence[X], axis: int = 0, name: str | None = None) -> X:
    """Blobs joined along a new axis.

    Args:
        parts: One or more blobs of one type; arrays are promoted to one dtype.
        axis: Position of the new axis in the result, counted from its end if negative.
    Returns:
        Blob with one axis more, as long as there are parts.
    Raises:
        ShapeError, DTypeError: if the parts differ; the message names the one.
    Gradient: g taken apart.
    Source: `numpy.stack`.
    Example:
        >>> a, b = xp.asarray([1, 2]), xp.asarray([3, 4])
        >>> af.ops.stack([a, b], axis=1)
        Array([[1, 3],
               [2, 4]], dtype=int64)
    """
    if not parts:
        raise ShapeError("stack: give at least one part")
    return blob_of(Concat(axis, new=True), *parts, name=name or "stack")


def unstack(x: X, axis: int = 0) -> tuple[X, ...]:
    """The parts of ``x`` along an axis, without that axis.

    Args:
        x: At least one axis, any dtype.
        axis: The axis, counted from the end if negative.
    Returns:
        A blob for each position along the axis.
    Raises:
        ShapeError: if ``x`` does not have the axis.
    Gradient: the gradients of the parts, joined.
    Source: ``torch.unbind``.
    Example:
        >>> x, y = af.ops.unstack(xp.asarray([[1, 2, 3], [4, 5, 6]]))
        >>> print(x, y)
        [1 2 3] [4 5 6]
    """
    (axis,) = axes_of("unstack", axis, len(x.shape))
    parts: Any = x
    return tuple([parts[(*[slice(None)] * axis, i)] for i in range(known("unstack", x.shape[axis]))])


@whole
def roll(x: X, shift: int | Sequence[int], axis: int | Sequence[int] | None = None, name: str | None = None) -> X:
    """The elements moved along axes; those that leave at one end come back at the other.

    Args:
        x: Any shape and dtype.
        shift: By how many places, for each axis or for all.
        axis: The axes; None moves the elements in C order.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axes, or there are not as many shifts.
    Gradient: g, moved back.
    Source: `numpy.roll`.
    Example:
        >>> af.ops.roll(xp.asarray([1, 2, 3, 4]), 1)
        Array([4, 1, 2, 3], dtype=int64)
    """
    shifts, axes = integers(shift), (0,) if axis is None else integers(axis)
    if len(shifts) not in (1, len(axes)):
        raise ShapeError(f"roll: give one shift, or one for each of {len(axes)} axes, got {shifts}")
    y: Any = reshape(x, -1) if axis is None else x
    for each, by in zip(axes, shifts if len(shifts) == len(axes) else shifts * len(axes), strict=True):
        (at,) = axes_of("roll", each, len(y.shape))
        cut, before = -by % maximum(y.shape[at], 1), (slice(None),) * at
        y = concat([y[(*before, slice(cut, None))], y[(*before, slice(cut))]], at)
    rolled: X = reshape(y, x.shape, name=name or "roll")
    return rolled


@whole
def tile(x: X, repetitions: int | Sequence[int], name: str | None = None) -> X:
    """``x`` repeated as a whole along each axis.

    Args:
        x: Any shape and dtype.
        repetitions: How often, along the last axes; ``x`` gets axes in front where there are more.
    Returns:
        Blob of the dtype of ``x``.
    Raises:
        ShapeError: if a number is negative.
    Gradient: the sum of g over what was repeated.
    Source: `numpy.tile`.
    Example:
        >>> af.ops.tile(xp.asarray([1, 2]), (2, 2))
        Array([[1, 2, 1, 2],
               [1, 2, 1, 2]], dtype=int64)
    """
    times = integers(repetitions)
    rank = max(len(x.shape), len(times))
    pairs = [*zip((1,) * (rank - len(times)) + times, (1,) * (rank - len(x.shape)) + x.shape, strict=True)]
    spread = broadcast_to(
        reshape(x, [n for _, length in pairs for n in (1, length)]), [n for pair in pairs for n in pair]
    )
    return reshape(spread, [count * length for count, length in pairs], name=name or "tile")


def split(x: X, parts: int | Sequence[int], axis: int = 0, name: str | None = None) -> list[X]:
    """Pieces of a blob along an axis; on the CPU they share its memory.

    Args:
        x: At least one axis, any dtype.
        parts: Number of pieces of one length, or the length of each.
        axis: Axis to cut along, counted from the end if negative.
    Returns:
        A blob for each piece.
    Raises:
        ShapeError: if ``x`` does not have the axis, or cannot be cut so.
    Gradient: the gradients of the pieces, joined.
    Source: Purine2 ``Split``. (The lengths are given, as in PyTorch, not the positions, as in NumPy.)
    Example:
        >>> head, tail = af.ops.split(xp.asarray([1, 2, 3, 4, 5]), [2, 3])
        >>> print(head, tail)
        [1 2] [3 4 5]
    """
    (axis,) = axes_of("split", axis, len(x.shape))
    if isinstance(parts, int):
        if parts < 1 or not may_divide(x.shape[axis], parts):
            raise ShapeError(f"split: x must have a length on axis {axis} that {parts} divides, got {x.spec}")
        parts = (x.shape[axis] // parts,) * parts
    lengths = integers(parts)
    pieces = apply(Split(lengths, axis), x, name=name)
    return [pieces] if len(lengths) == 1 else list(pieces)
