"""Parts of arrays: reading, writing, and the standard's functions for it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow import ops
from actorflow.array.namespace.apply import applied_to, applied_to_all, prepared
from actorflow.array.namespace.operate import cast, node_of, value_of
from actorflow.array.record.placement import default_place
from actorflow.array.record.primitives import OperationPrimitive
from actorflow.array.record.record import HOST, Input, Record, given, record
from actorflow.core import desk
from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.indexing import Key, Scatter, Slice, Take, numpy_key, parsed, part_shape, read

if TYPE_CHECKING:
    from actorflow.array.array import Array


def read_index(x: Array, key: Any) -> Array:
    """``x[key]``. A mask's result has a shape that depends on values: it is computed at once.

    A single element of an array whose value is there is read at once, too: to record and plan that would take longer.

    Raises:
        IndexError: if an index is out of bounds, or there are too many.
    """
    node = x._node
    parts = key if type(key) is tuple else (key,)
    is_there = type(node.value) is np.ndarray and default_place() is HOST and not desk.dry_runs
    if is_there and len(parts) == len(node.shape) and {*map(type, parts)} == {int} and not node.evaluator.sequential:
        return given(np.array(node.value[parts]), node.evaluator)  # type: ignore[index]
    if type(key) is Record.array_type and key.dtype.kind in "iu" and key.shape and node.shape:
        return applied_to_all((x, key), Take, 0)
    plain = _plain(parts, len(node.shape))
    if plain is not None:
        return applied_to(x, Slice, plain)
    fixed, indices = _parsed(parts, len(node.shape))
    if any(each.dtype.kind == "b" for each in indices):
        values = [each._value() if type(each) is Record.array_type else each for each in indices]
        if not node.evaluator.dry_run:
            return given(np.array(x._value()[numpy_key(fixed, values)]), node.evaluator, place=node.place)
        indices = values
    return read(x, fixed, indices)


def write_index(x: Array, key: Any, value: Any) -> Array:
    """The array after ``x[key] = value``.

    Raises:
        IndexError: as for `read_index`.
        ShapeError, DTypeError: if the value does not fit.
    """
    node = x._node
    parts = key if type(key) is tuple else (key,)
    plain = _plain(parts, len(node.shape))
    indices: list[Any] = []
    if plain is None:
        plain, indices = _parsed(parts, len(node.shape))
        part_shape("setitem", node.shape, plain, indices)
    if type(value) is Record.array_type:
        if not np.can_cast(value.dtype, node.dtype, "same_kind"):
            raise DTypeError(f"assignment: expected {node.dtype}, got {value.dtype}")
        written: Input = cast(value, node.dtype)._node
    else:
        written = value_of(value, node.dtype)
    inputs = (node, written, *[each._node if type(each) is Record.array_type else each for each in indices])
    primitive = _writing(plain, tuple([(each.shape, each.dtype) for each in inputs]))
    return record(primitive, inputs, node.shape, node.dtype, (), node.evaluator)


@lru_cache(maxsize=16_384)
def _writing(key: Key, types: tuple[tuple[tuple[int, ...], Any], ...]) -> OperationPrimitive:
    return prepared(Scatter(key), types)[1]


def _parsed(parts: tuple[Any, ...], rank: int) -> tuple[Key, list[Any]]:
    """A key with arrays; of integers whose values are there, single ones are plain integers."""
    kind = Record.array_type
    known = [type(p) is kind and p.dtype.kind in "iu" and not p.shape and p._node.done for p in parts]
    found = parsed("getitem", tuple([int(p) if now else p for p, now in zip(parts, known, strict=True)]), rank)
    for index in found[1]:
        if index.dtype.kind not in "iub":
            raise IndexError(f"an index must be of integers or bools, got an array of {index.dtype}")
    return found


def _plain(parts: tuple[Any, ...], rank: int) -> Key | None:
    """A key without arrays, as `parsed` gives it; None for others, right or wrong."""
    found: list[Any] = []
    gap = -1
    for part in parts:
        if type(part) is slice:
            start, stop, step = part.start, part.stop, part.step
            if not (type(start) in _ENDS and type(stop) in _ENDS and type(step) in _ENDS):
                return None
            found.append((start, stop, step))
        elif type(part) is int or part is None:
            found.append(part)
        elif part is ... and gap < 0:
            gap = len(found)
        else:
            return None
    if gap >= 0:
        found[gap:gap] = [(None, None, None)] * (rank + found.count(None) - len(found))
    return tuple(found)


_ENDS = (int, type(None))


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """As `numpy.take`, along an axis that a one-dimensional array need not name.

    Raises:
        ShapeError, DTypeError: if the arrays do not fit.
        OpError: where the value is asked for, if an index is out of range.
    Gradient: g, added where its parts were taken from.
    Example:
        >>> xp.take(xp.asarray([[1, 2], [3, 4]]), xp.asarray([1, 1, 0]), axis=0)
        Array([[3, 4],
               [3, 4],
               [1, 2]], dtype=int64)
    """
    if axis is None and len(node_of("take", "x", x).shape) != 1:
        raise ShapeError(f"take: axis must be given for shape {x.shape}")
    return applied_to_all((x, indices), Take, axis or 0)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """As `numpy.take_along_axis`, with the last axis by default. Errors: those of `take`.

    Gradient: g, added where its elements were taken from.
    Example:
        >>> x = xp.asarray([[10, 30, 20], [5, 4, 6]])
        >>> xp.take_along_axis(x, xp.argsort(x), axis=1)
        Array([[10, 20, 30],
               [ 4,  5,  6]], dtype=int64)
    """
    return ops.take_along_axis(x, indices, axis)
