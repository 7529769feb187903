"""Functions of the standard that arrange elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.namespace.operate import axes_of, axis_of, broadcast, cast, node_of, simple
from actorflow.array.record.primitives import Primitive
from actorflow.array.record.record import Record, record
from actorflow.errors import ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

Shape = tuple[int, ...]

BROADCAST = Primitive("broadcast_to", np.broadcast_to, view=True)
RESHAPE = Primitive("reshape", np.reshape)
PERMUTE = Primitive("permute_dims", np.transpose, view=True)
FLIP = Primitive("flip", np.flip, view=True)
_ROLL = Primitive("roll", np.roll)
_TILE = Primitive("tile", np.tile)
_REPEAT = Primitive("repeat", np.repeat)
CONCAT = Primitive("concat", lambda *values: np.concatenate(values[:-1], axis=values[-1]))
STACK = Primitive("stack", lambda *values: np.stack(values[:-1], axis=values[-1]))


def _ints(shape: int | Sequence[int]) -> Shape:
    given = (shape,) if isinstance(shape, int | np.integer) else shape
    return tuple([int(length) for length in given])


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """The array repeated along new axes and along those of length 1, to this shape."""
    node, wanted = node_of("broadcast_to", "x", x), _ints(shape)
    if broadcast("broadcast_to", node.shape, wanted) != wanted:
        raise ShapeError(f"broadcast_to: shape {node.shape} does not broadcast to {wanted}")
    return simple(BROADCAST, x, wanted, wanted)


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape that arrays of these shapes broadcast to.

    Raises:
        ShapeError: if they do not.
    """
    return broadcast("broadcast_shapes", (), *map(tuple, shapes))


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """The arrays, all of the shape that they broadcast to."""
    if not arrays:
        return []
    shape = broadcast("broadcast_arrays", *(node_of("broadcast_arrays", "each argument", x).shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def reshape(
    x: Array,
    /,
    shape: Sequence[int],
    *,
    copy: bool | None = None,  # noqa: ARG001  makes no difference: arrays are values of their own
) -> Array:
    """The elements in another shape; one length may be -1, and is what the others leave."""
    node, wanted = node_of("reshape", "x", x), list(_ints(shape))
    if wanted.count(-1) == 1:
        others = -math.prod(wanted)
        if others and node.size % others == 0:
            wanted[wanted.index(-1)] = node.size // others
    if min(wanted, default=0) < 0 or math.prod(wanted) != node.size:
        raise ShapeError(f"reshape: shape {node.shape} has {node.size} elements, which {tuple(shape)} cannot hold")
    return simple(RESHAPE, x, tuple(wanted), tuple(wanted))


def expand_dims(x: Array, /, axis: int = 0) -> Array:
    """The array with a new axis of length 1, at this position of the result."""
    node = node_of("expand_dims", "x", x)
    axis = axis_of("expand_dims", axis, len(node.shape) + 1)
    shape = (*node.shape[:axis], 1, *node.shape[axis:])
    return simple(RESHAPE, x, shape, shape)


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """The array without these axes, which have length 1."""
    node = node_of("squeeze", "x", x)
    axes = axes_of("squeeze", axis, len(node.shape))
    wrong = [each for each in axes if node.shape[each] != 1]
    if wrong:
        raise ShapeError(f"squeeze: axis {wrong[0]} of shape {node.shape} has a length other than 1")
    shape = tuple([length for i, length in enumerate(node.shape) if i not in axes])
    return simple(RESHAPE, x, shape, shape)


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """The array with its axes in another order."""
    node = node_of("permute_dims", "x", x)
    order = tuple([axis_of("permute_dims", each, len(node.shape)) for each in axes])
    if sorted(order) != list(range(len(node.shape))):
        raise ShapeError(f"permute_dims: axes must name each of {len(node.shape)} axes once, got {tuple(axes)}")
    return simple(PERMUTE, x, tuple([node.shape[each] for each in order]), order)


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """The array with some axes at other positions, the others in their order."""
    rank = len(node_of("moveaxis", "x", x).shape)
    sources = [axis_of("moveaxis", each, rank) for each in _ints(source)]
    targets = [axis_of("moveaxis", each, rank) for each in _ints(destination)]
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(f"moveaxis: source {source} and destination {destination} must name as many axes, each once")
    order = [axis for axis in range(rank) if axis not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return permute_dims(x, order)


def flip(x: Array, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """The elements in reverse order along axes; along all if none is named."""
    node = node_of("flip", "x", x)
    return simple(FLIP, x, node.shape, axes_of("flip", axis, len(node.shape)))


def roll(x: Array, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Array:
    """The elements moved along axes, those that leave at one end come back at the other."""
    node = node_of("roll", "x", x)
    shifts = _ints(shift)
    if axis is None:
        if len(shifts) != 1:
            raise ShapeError(f"roll: one shift without an axis, got {shifts}")
        return simple(_ROLL, x, node.shape, shifts[0], None)
    axes = tuple([axis_of("roll", each, len(node.shape)) for each in _ints(axis)])
    if len(shifts) not in (1, len(axes)):
        raise ShapeError(f"roll: as many shifts as axes, got {shifts} and {axes}")
    return simple(_ROLL, x, node.shape, shifts if len(shifts) > 1 else shifts * len(axes), axes)


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """The array repeated as a whole along each axis."""
    node, times = node_of("tile", "x", x), _ints(repetitions)
    rank = max(len(node.shape), len(times))
    shape = (1,) * (rank - len(node.shape)) + node.shape
    counts = (1,) * (rank - len(times)) + times
    return simple(_TILE, x, tuple([a * b for a, b in zip(shape, counts, strict=True)]), times)


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Each element repeated along an axis, or of the flattened array; an array of counts is computed at once."""
    node = node_of("repeat", "x", x)
    at = None if axis is None else axis_of("repeat", axis, len(node.shape))
    length = node.size if at is None else node.shape[at]
    if type(repeats) is Record.array_type:
        counts = repeats._value()
        if counts.shape not in ((), (1,), (length,)):
            raise ShapeError(f"repeat: expected {length} counts, got shape {counts.shape}")
        total = int(counts.sum()) if counts.size == length else int(counts.reshape(())) * length
        times: Any = tuple(counts.reshape(-1).tolist())
    else:
        times = int(repeats)
        total = times * length
    shape = (total,) if at is None else (*node.shape[:at], total, *node.shape[at + 1 :])
    return simple(_REPEAT, x, shape, times, at)


def _joined(name: str, arrays: Sequence[Array]) -> list[Array]:
    if not arrays:
        raise ShapeError(f"{name}: expected at least one array")
    kind = np.result_type(*(node_of(name, "each of the arrays", x).dtype for x in arrays))
    return [cast(x, kind) for x in arrays]


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """The arrays joined along an axis; flattened first if that is None."""
    parts = _joined("concat", arrays)
    if axis is None:
        parts = [reshape(x, (-1,)) for x in parts]
        axis = 0
    first = parts[0].shape
    axis = axis_of("concat", axis, len(first))
    for x in parts[1:]:
        if len(x.shape) != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(x.shape, first, strict=True)) if i != axis
        ):
            raise ShapeError(f"concat: shapes {first} and {x.shape} differ in more than axis {axis}")
    shape = (*first[:axis], sum(x.shape[axis] for x in parts), *first[axis + 1 :])
    return record(CONCAT, tuple([x._node for x in parts]), shape, parts[0].dtype, (axis,))


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """The arrays, all of one shape, along a new axis at this position of the result."""
    parts = _joined("stack", arrays)
    first = parts[0].shape
    wrong = [x.shape for x in parts if x.shape != first]
    if wrong:
        raise ShapeError(f"stack: all arrays must have one shape, got {first} and {wrong[0]}")
    axis = axis_of("stack", axis, len(first) + 1)
    shape = (*first[:axis], len(parts), *first[axis:])
    return record(STACK, tuple([x._node for x in parts]), shape, parts[0].dtype, (axis,))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The parts of the array along an axis, without that axis."""
    rank = len(node_of("unstack", "x", x).shape)
    lead = (slice(None),) * axis_of("unstack", axis, rank)
    return tuple(x[(*lead, i)] for i in range(x.shape[len(lead)]))
