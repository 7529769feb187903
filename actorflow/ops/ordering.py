"""Operations that go along an axis in order: sums and products so far, sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.elementwise import multiply
from actorflow.ops.fills import filled
from actorflow.ops.indexing import slice as part_of
from actorflow.ops.indexing import take, take_along_axis
from actorflow.ops.operation import (
    Application,
    Grads,
    Operation,
    X,
    apply,
    axes_of,
    blob_of,
    same_numbers,
    whole,
    wide_dtype,
)
from actorflow.ops.rows import conjugated
from actorflow.ops.shaping import concat, reshape, summed_dtype
from actorflow.spec import TensorSpec, minimum


class _AlongAxis(Operation):
    """Base of operations along one axis, whose results have the shape of ``x``."""

    axis: int
    reverse: bool  # whether it goes from the end of the axis on

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        axes_of(self.kind, self.axis, len(inputs[0].shape))
        return inputs[:1]

    def lines(self, *arrays: Any) -> list[Any]:
        """The arrays with the axis in front, in the order in which it goes."""
        return [x.swapaxes(0, self.axis)[:: -1 if self.reverse else 1] for x in arrays]


def _part(x: X, axis: int, start: int | None, stop: int | None) -> X:
    return part_of(x, (*[slice(None)] * (axis % len(x.shape)), slice(start, stop)))


def _shifted(x: X, axis: int, reverse: bool) -> X:
    """Each element in the place of the one before it, or behind it, along an axis; 0 at the end that is left."""
    few = minimum(x.shape[axis], 1)
    zero = filled(0, tuple([few if i == axis % len(x.shape) else m for i, m in enumerate(x.shape)]), x)
    return concat([_part(x, axis, 1, None), zero] if reverse else [zero, _part(x, axis, 0, -1)], axis)


@dataclass(frozen=True)
class _Scan(_AlongAxis):
    """A ufunc accumulated over all elements up to each one."""

    takes_complex = True
    ufunc: ClassVar[np.ufunc]

    axis: int
    exclusive: bool = False  # whether the element itself is left out
    reverse: bool = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers(self.kind, x=inputs[0])
        _AlongAxis.infer(self, *inputs)
        return (TensorSpec(inputs[0].shape, summed_dtype(inputs[0].dtype)),)

    def compute(self, *inputs: Any) -> Any:
        dtype = summed_dtype(inputs[0].dtype)
        wide = wide_dtype(dtype) if dtype.kind in "fV" else dtype
        found = np.full(inputs[0].shape, self.ufunc.identity, wide)
        x, y = self.lines(inputs[0], found)
        with np.errstate(all="ignore"):
            if not self.exclusive:
                self.ufunc.accumulate(x, dtype=wide, out=y)
            elif len(x):
                self.ufunc.accumulate(x[:-1], dtype=wide, out=y[1:])
            return found.astype(dtype, copy=False)


class CumSum(_Scan):
    """The sums so far along an axis; see `cumsum`."""

    function_name = "cumulative_sum"
    ufunc = np.add

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(replace(self, reverse=not self.reverse), grads[0])]


class CumProd(_Scan):
    """The products so far along an axis; see `cumprod`."""

    function_name = "cumulative_prod"
    ufunc = np.multiply

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        """``dx[k] = (x[0] ... x[k-1]) (g[k] + x[k+1] (g[k+1] + x[k+2] (...)))``: nothing is divided by elements."""
        (x,), (g,), back = op.inputs, grads, not self.reverse
        before = conjugated(apply(replace(self, exclusive=True), x))
        if self.exclusive:
            g = _shifted(g, self.axis, back)
        following = conjugated(_shifted(x, self.axis, back))
        return [multiply(before, apply(Recurrence(self.axis, back), g, following))]


@dataclass(frozen=True)
class Recurrence(_AlongAxis):
    """``y[0] = x[0]``, ``y[k] = x[k] + factors[k] y[k-1]`` along an axis; from its end on where ``reverse``."""

    arguments = ("x", "factors")
    takes_complex = True

    axis: int
    reverse: bool = False

    def compute(self, *inputs: Any) -> Any:
        found = np.array(inputs[0])
        y, factors = self.lines(found, inputs[1])
        with np.errstate(all="ignore"):
            for i in range(1, len(y)):
                y[i] += factors[i] * y[i - 1]
        return found

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        following = conjugated(_shifted(op.inputs[1], self.axis, not self.reverse))
        back = apply(replace(self, reverse=not self.reverse), grads[0], following)
        return [back, multiply(back, conjugated(_shifted(op.outputs[0], self.axis, self.reverse)))]


def cumsum(x: X, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> X:
    """The sums of all elements up to each one along an axis.

    Args:
        x: At least one axis, numeric.
        axis: The axis, counted from the end if negative.
        exclusive: Leave out the element itself: the first sum is 0.
        reverse: Sum from each element to the end.
    Returns:
        Blob of the shape of ``x`` and its dtype; integers are summed in 64 bits, float16 in float32.
    Raises:
        ShapeError: if ``x`` does not have the axis.
        DTypeError: if ``x`` is of another kind.
    Gradient: the sums of g from the other end.
    Source: `numpy.cumsum`, ONNX ``CumSum``.
    Example:
        >>> x = xp.asarray([1, 2, 3, 4])
        >>> print(af.ops.cumsum(x), af.ops.cumsum(x, exclusive=True), af.ops.cumsum(x, reverse=True))
        [ 1  3  6 10] [0 1 3 6] [10  9  7  4]
    """
    return blob_of(CumSum(axis, exclusive, reverse), x, name=name)


def cumprod(x: X, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> X:
    """The products of all elements up to each one along an axis.

    Arguments, result and errors: as of `cumsum`; an empty product is 1.
    Gradient: of products without the element, also where elements are 0.
    Source: `numpy.cumprod`.
    Example:
        >>> af.ops.cumprod(xp.asarray([1, 2, 3, 4]))
        Array([ 1,  2,  6, 24], dtype=int64)
    """
    return blob_of(CumProd(axis, exclusive, reverse), x, name=name)


# -- order ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sort(_AlongAxis):
    """The elements in order along an axis; see `sort`."""

    axis: int = -1
    reverse: bool = False
    stable: bool = True

    def compute(self, *inputs: Any) -> Any:
        found = np.sort(inputs[0], axis=self.axis, stable=self.stable)
        return np.flip(found, self.axis) if self.reverse else found

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        order = apply(ArgSort(self.axis, self.reverse, self.stable), op.inputs[0])
        return [take_along_axis(grads[0], apply(ArgSort(self.axis), order), self.axis)]


@dataclass(frozen=True)
class ArgSort(_AlongAxis):
    """The indices that put the elements in order along an axis; see `argsort`."""

    differentiable = False

    axis: int = -1
    reverse: bool = False
    stable: bool = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        _AlongAxis.infer(self, *inputs)
        return (TensorSpec(inputs[0].shape, np.dtype(np.int64)),)

    def compute(self, *inputs: Any) -> Any:
        (x,) = inputs
        if not self.reverse:
            return np.argsort(x, axis=self.axis, stable=self.stable)
        # Sorted backwards, then read backwards: so equal elements keep their order.
        found = np.flip(np.argsort(np.flip(x, self.axis), axis=self.axis, stable=self.stable), self.axis)
        return x.shape[self.axis] - 1 - found


def sort(x: X, axis: int = -1, descending: bool = False, stable: bool = True, name: str | None = None) -> X:
    """The elements in order along an axis; NaN is greater than all numbers.

    Args:
        x: At least one axis, any dtype.
        axis: The axis, counted from the end if negative.
        descending: Whether the greatest is first.
        stable: Whether equal elements keep their order; False may be faster.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axis.
    Gradient: g, in the order of ``x``.
    Source: `numpy.sort`.
    Example:
        >>> af.ops.sort(xp.asarray([[3, 1, 2], [9, 7, 8]]), descending=True)
        Array([[3, 2, 1],
               [9, 8, 7]], dtype=int64)
    """
    return blob_of(Sort(axis, descending, stable), x, name=name)


def argsort(x: X, axis: int = -1, descending: bool = False, stable: bool = True, name: str | None = None) -> X:
    """The indices that put the elements in order along an axis.

    Arguments and errors: as of `sort`.
    Returns:
        Blob of the shape of ``x``, int64.
    Gradient: none.
    Source: `numpy.argsort`.
    Example:
        >>> af.ops.argsort(xp.asarray([3.0, 1.0, np.nan, 2.0]))
        Array([1, 3, 0, 2], dtype=int64)
    """
    return blob_of(ArgSort(axis, descending, stable), x, name=name)


@whole
def top_k(
    x: X,
    k: int,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002  PyTorch's and ONNX's name
    name: str | None = None,
) -> tuple[X, X]:
    """The greatest elements along an axis, and where they are; of equal ones the first.

    Args:
        x: At least one axis, any dtype.
        k: Number of elements, at most the axis' length.
        axis: The axis, counted from the end if negative.
        largest: False takes the least elements.
        sorted: Whether they are in order, the first one first; else they stay in the order of ``x``.
    Returns:
        Their values, in the dtype of ``x``, and their indices, int64; both of length ``k`` along the axis.
    Raises:
        ShapeError: if ``x`` does not have the axis, or as many elements.
    Gradient: g where the elements come from.
    Source: ``torch.topk``, ONNX ``TopK``.
    Example:
        >>> values, places = af.ops.top_k(xp.asarray([3.0, 9.0, 5.0]), 2)
        >>> print(values, places)
        [9. 5.] [1 2]
    """
    (axis,) = axes_of("top_k", axis, len(x.shape))
    if not 0 <= k <= x.shape[axis]:
        raise ShapeError(f"top_k: k must be from 0 to {x.shape[axis]}, got {k}")
    # Of an open axis: that there are as many elements is checked when its length is known.
    chosen = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    indices = _part(argsort(x, axis, largest), axis, 0, k)
    indices = indices if indices.shape == chosen else reshape(indices, chosen)
    if not sorted:
        indices = sort(indices, axis)
    return take_along_axis(x, indices, axis, name=name or "top_k"), indices


# -- search -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nonzero(Operation):
    """Indices of elements that are not 0; see `nonzero`."""

    differentiable = False

    size: int
    fill: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        rank = len(inputs[0].shape)
        if not rank or self.size < 0:
            raise ShapeError(f"Nonzero: x must have axes, and size must not be negative, got {inputs[0]}, {self.size}")
        if not -(1 << 63) <= self.fill < 1 << 63:
            raise GraphError(f"Nonzero: fill must be an int64, got {self.fill}")
        whole_numbers = np.dtype(np.int64)
        return TensorSpec((rank, self.size), whole_numbers), TensorSpec((), whole_numbers)

    def compute(self, *inputs: Any) -> Any:
        found = np.nonzero(inputs[0])
        indices = np.full((len(found), self.size), self.fill)
        indices[:, : len(found[0])] = [each[: self.size] for each in found]
        return indices, np.array(len(found[0]))


def nonzero(x: X, size: int, fill: int = 0, name: str | None = None) -> tuple[X, X]:
    """Indices of the elements that are not 0, in C order, at most so many.

    Args:
        x: At least one axis, any dtype.
        size: Number of indices that there is room for; more are left out.
        fill: Index in the places that are left.
    Returns:
        The indices, int64 of shape (axes of ``x``, size), and how many elements are not 0, int64.
    Raises:
        ShapeError: if ``x`` has no axes, or ``size`` is negative.
    Gradient: none.
    Source: `numpy.nonzero`; its result has a shape that depends on values.
    Example:
        >>> places, count = af.ops.nonzero(xp.asarray([0, 7, 0, 9]), size=3, fill=-1)
        >>> print(places, count)
        [[ 1  3 -1]] 2
    """
    found: tuple[X, X] = apply(Nonzero(size, fill), x, name=name)
    return found


@dataclass(frozen=True)
class SearchSorted(Operation):
    """Positions among sorted elements; see `searchsorted`."""

    arguments = ("x1", "x2")
    differentiable = False
    one_dtype = True

    side: Literal["left", "right"] = "left"

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x1, x2 = inputs
        if len(x1.shape) != 1:
            raise ShapeError(f"searchsorted: x1 must have one axis, got {x1}")
        if self.side not in ("left", "right"):
            raise GraphError(f"searchsorted: side must be 'left' or 'right', got {self.side!r}")
        same_numbers(self.kind, ordered=True, x1=x1, x2=x2)
        return (TensorSpec(x2.shape, np.dtype(np.int64)),)

    def compute(self, *inputs: Any) -> Any:
        return np.searchsorted(inputs[0], inputs[1], side=self.side)


@whole
def searchsorted(
    x1: X, x2: X, side: Literal["left", "right"] = "left", sorter: X | None = None, name: str | None = None
) -> X:
    """The positions where elements could be put in among sorted ones, which stay sorted.

    Args:
        x1: One axis, real, in ascending order, or in that of ``sorter``.
        x2: Any shape, the dtype of ``x1``; arrays are promoted to one dtype.
        side: "left" gives the first such position, "right" the last.
        sorter: The `argsort` of ``x1``.
    Returns:
        Blob of the shape of ``x2``, int64.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if there is no such side.
    Gradient: none.
    Source: `numpy.searchsorted`.
    Example:
        >>> edges = xp.asarray([1.0, 2.0, 3.0])
        >>> af.ops.searchsorted(edges, xp.asarray([0.5, 2.0, 9.0]))
        Array([0, 1, 3], dtype=int64)
    """
    return blob_of(SearchSorted(side), x1 if sorter is None else take(x1, sorter), x2, name=name)


@dataclass(frozen=True)
class IsIn(Operation):
    """Whether elements are among others; see `isin`."""

    arguments = ("x1", "x2")
    differentiable = False
    one_dtype = True

    invert: bool = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(inputs[0].shape, np.dtype(np.bool_)),)

    def compute(self, *inputs: Any) -> Any:
        return np.isin(inputs[0], inputs[1], invert=self.invert)


def isin(x1: X, x2: X, invert: bool = False, name: str | None = None) -> X:
    """True where an element of ``x1`` is one of the elements of ``x2``; NaN is equal to nothing.

    Args:
        x1: Any shape and dtype.
        x2: Any shape.
        invert: True where it is none of them.
    Returns:
        Blob of the shape of ``x1``, bool.
    Raises:
        DTypeError: if one of them is neither a blob nor an array.
    Gradient: none.
    Source: `numpy.isin`.
    Example:
        >>> af.ops.isin(xp.asarray([1, 2, 3]), xp.asarray([3, 1]))
        Array([ True, False,  True], dtype=bool)
    """
    return blob_of(IsIn(invert), x1, x2, name=name)
