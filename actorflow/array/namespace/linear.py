"""Products of vectors and matrices, which the standard has in its main namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.namespace.manipulation import PERMUTE
from actorflow.array.namespace.operate import axis_of, broadcast, node_of, simple
from actorflow.array.record.node import record
from actorflow.array.record.primitives import DType, Primitive, Value
from actorflow.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array


def _vecdot(x1: Value, x2: Value, axis: int) -> Value:
    vecdot: Any = np.vecdot  # its stub lacks `axis`
    return np.asarray(vecdot(x1, x2, axis=axis))


def _tensordot(x1: Value, x2: Value, axes: Any) -> Value:
    return np.tensordot(x1, x2, axes=axes)


MATMUL = Primitive("matmul", np.matmul, into=True, threaded=True)
_VECDOT = Primitive("vecdot", _vecdot)
_TENSORDOT = Primitive("tensordot", _tensordot)


def product_dtype(name: str, one: DType, other: DType) -> DType:
    """The dtype of a product of matrices.

    Raises:
        DTypeError: if they have none.
    """
    try:
        return np.result_type(one, other)
    except TypeError as error:
        raise DTypeError(f"{name}: no product of {one} and {other}") from error


def matmul(x1: Array, x2: Array, /) -> Array:
    """The matrix product over the last two axes; the others broadcast. A vector is a row on the left, a column right.

    Raises:
        ShapeError: if the lengths along which is summed differ, or an array is 0-d.
    """
    a, b = node_of("matmul", "x1", x1), node_of("matmul", "x2", x2)
    if not a.shape or not b.shape:
        raise ShapeError(f"matmul: arrays must have axes, got shapes {a.shape} and {b.shape}")
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape} do not fit: {left[-1]} is not {right[-2]}")
    lead = broadcast("matmul", left[:-2], right[:-2]) if len(left) > 2 or len(right) > 2 else ()
    rows = left[-2:-1] if len(a.shape) > 1 else ()
    columns = right[-1:] if len(b.shape) > 1 else ()
    shape = (*lead, *rows, *columns)
    kind = product_dtype("matmul", a.dtype, b.dtype)
    return record(MATMUL, (a, b), shape, kind, (), a.evaluator, a.size * right[-1])


def matrix_transpose(x: Array, /) -> Array:
    """The array with its last two axes exchanged.

    Raises:
        ShapeError: if there are fewer.
    """
    shape = node_of("matrix_transpose", "x", x).shape
    rank = len(shape)
    if rank < 2:
        raise ShapeError(f"matrix_transpose: expected at least two axes, got shape {shape}")
    return simple(PERMUTE, x, (*shape[:-2], shape[-1], shape[-2]), (*range(rank - 2), rank - 1, rank - 2))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The inner products of vectors along an axis, the first conjugated; the other axes broadcast."""
    a, b = node_of("vecdot", "x1", x1), node_of("vecdot", "x2", x2)
    least = min(len(a.shape), len(b.shape))
    if not -least <= axis < 0 and not (len(a.shape) == len(b.shape) and 0 <= axis < least):
        raise ShapeError(f"vecdot: axis {axis} is out of bounds for shapes {a.shape} and {b.shape}")
    ones, others = list(a.shape), list(b.shape)
    if ones[axis] != others[axis]:
        raise ShapeError(f"vecdot: shapes {a.shape} and {b.shape} differ along axis {axis}")
    del ones[axis], others[axis]
    shape = broadcast("vecdot", tuple(ones), tuple(others)) if ones or others else ()
    return record(_VECDOT, (a, b), shape, product_dtype("vecdot", a.dtype, b.dtype), (axis,), a.evaluator, a.size)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """The sum of products over axes: the last ones of ``x1`` with the first ones of ``x2``, or those that are named."""
    a, b = node_of("tensordot", "x1", x1), node_of("tensordot", "x2", x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(a.shape), len(b.shape)):
            raise ShapeError(f"tensordot: shapes {a.shape} and {b.shape} do not have {axes} axes to sum over")
        ones: tuple[int, ...] = tuple(range(len(a.shape) - axes, len(a.shape)))
        others: tuple[int, ...] = tuple(range(axes))
    else:
        ones = tuple([axis_of("tensordot", int(each), len(a.shape)) for each in axes[0]])
        others = tuple([axis_of("tensordot", int(each), len(b.shape)) for each in axes[1]])
    if [a.shape[i] for i in ones] != [b.shape[i] for i in others]:
        raise ShapeError(f"tensordot: shapes {a.shape} and {b.shape} differ along axes {ones} and {others}")
    left = [length for i, length in enumerate(a.shape) if i not in ones]
    right = [length for i, length in enumerate(b.shape) if i not in others]
    kind = product_dtype("tensordot", a.dtype, b.dtype)
    return record(_TENSORDOT, (a, b), (*left, *right), kind, ((ones, others),), a.evaluator, a.size)
