"""How operations on elements and over axes are recorded: operands, broadcasting, axes, dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.primitives import DType, Elementwise, Primitive, Value
from actorflow.array.records import Node, record
from actorflow.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from actorflow.array.arrays import Array

__all__ = ["CAST", "axes_of", "axis_of", "binary", "broadcast", "cast", "constant", "node_of", "simple", "unary"]

_SCALARS = (bool, int, float, complex)
_SAMPLES = {bool: True, int: 1, float: 1.0, complex: 1j}
_targets: dict[tuple[DType, type], DType] = {}


def _copy_cast(x: Value, out: Value) -> None:
    np.copyto(out, x, casting="unsafe")


CAST = Elementwise("astype", _copy_cast, types=lambda dtype: dtype)


def node_of(name: str, argument: str, x: object) -> Node:
    """The record that an array shows.

    Raises:
        DTypeError: if it is no array; the message names the argument.
    """
    if type(x) is Node.array_type:
        return x._node
    raise DTypeError(f"{name}: {argument} must be an array of actorflow.array, got {type(x).__name__}")


def constant(name: str, value: object, dtype: DType) -> Value:
    """A Python number beside an array: it takes the array's dtype, unless it is of a higher kind.

    Raises:
        DTypeError: if it is no number; OverflowError if it does not fit.
    """
    kind = type(value)
    target = _targets.get((dtype, kind))
    if target is None:
        if kind in _SAMPLES:
            target = np.result_type(dtype, _SAMPLES[kind])
        elif isinstance(value, np.ndarray | np.generic):
            return np.array(value)
        else:
            raise DTypeError(f"{name}: expected arrays and numbers, got {kind.__name__}")
        _targets[dtype, kind] = target
    return np.array(value, target)


def broadcast(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to.

    Raises:
        ShapeError: if they do not.
    """
    rank = max(map(len, shapes))
    found = [1] * rank
    for shape in shapes:
        for i, length in enumerate(shape, rank - len(shape)):
            if length != 1 and length != found[i]:
                if found[i] != 1:
                    raise ShapeError(f"{name}: shapes {', '.join(map(str, shapes))} do not broadcast")
                found[i] = length
    return tuple(found)


def unary(op: Elementwise, x: Array) -> Array:
    """Record an operation on each element of an array."""
    node = node_of(op.name, "x", x)
    return record(op, (node,), node.shape, op.dtype(node.dtype), (), node.session)


def binary(op: Elementwise, x1: Any, x2: Any) -> Array:
    """Record an operation on each pair of elements; one of the two may be a number."""
    kind = Node.array_type
    if type(x1) is kind:
        a = x1._node
        if type(x2) is kind:
            b = x2._node
            shape = a.shape if a.shape == b.shape else broadcast(op.name, a.shape, b.shape)
            return record(op, (a, b), shape, op.dtype(a.dtype, b.dtype), (), a.session)
        c = constant(op.name, x2, a.dtype)
        shape = broadcast(op.name, a.shape, c.shape) if c.ndim else a.shape
        return record(op, (a, c), shape, op.dtype(a.dtype, c.dtype), (), a.session)
    b = node_of(op.name, "one of the arguments", x2)
    c = constant(op.name, x1, b.dtype)
    shape = broadcast(op.name, c.shape, b.shape) if c.ndim else b.shape
    return record(op, (c, b), shape, op.dtype(c.dtype, b.dtype), (), b.session)


def cast(x: Array, dtype: DType) -> Array:
    """The array with elements of another dtype; itself if it has it."""
    node = x._node
    return x if node.dtype == dtype else record(CAST, (node,), node.shape, dtype, (), node.session)


def simple(op: Primitive, x: Array, shape: tuple[int, ...], *params: Any, dtype: DType | None = None) -> Array:
    """Record an operation on one array that reads all of it."""
    node = x._node
    return record(op, (node,), shape, dtype or node.dtype, params, node.session, node.size)


def axis_of(name: str, axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        ShapeError: if there is none such.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"{name}: axis {axis} is out of bounds for an array of {rank} axes")
    return axis % rank


def axes_of(name: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, ascending; all for None.

    Raises:
        ShapeError: if there is none such, or one is given twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    found = tuple(sorted([axis_of(name, int(each), rank) for each in given]))
    if len(set(found)) != len(found):
        raise ShapeError(f"{name}: each axis can be given once, got {given}")
    return found
