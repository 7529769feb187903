"""Parts of arrays: reading, writing, and the standard's functions for it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.array.namespace.operate import axis_of, broadcast, is_there, node_of, value_of
from actorflow.array.record.placement import on_host
from actorflow.array.record.primitives import Primitive, Value
from actorflow.array.record.record import Input, Record, given, note_asked, record
from actorflow.errors import DTypeError, GraphError, ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

Shape = tuple[int, ...]


class IndexArray(NamedTuple):
    """Stand-in, within a key, for the index array at this position among the inputs."""

    position: int


def key_of(template: tuple[Any, ...], arrays: tuple[Value, ...]) -> tuple[Any, ...]:
    """The key of a record's template, with the values of its index arrays."""
    return tuple([arrays[part.position] if type(part) is IndexArray else _unfrozen(part) for part in template])


def _frozen(part: slice) -> Any:
    """A slice, hashable in all Python versions."""
    return ("slice", _end(part.start), _end(part.stop), _end(part.step))


def _end(value: Any) -> int | None:
    return value if value is None or type(value) is int else operator.index(value)


def _unfrozen(part: Any) -> Any:
    return slice(*part[1:]) if isinstance(part, tuple) else part


def _read(x: Value, *rest: Any) -> Value:
    *arrays, template = rest
    return np.asarray(x[key_of(template, tuple(arrays))])


def _write(x: Value, value: Value, *rest: Any, owned: bool) -> Value:
    *arrays, template = rest
    target = x if owned else x.copy()
    target[key_of(template, tuple(arrays))] = value
    return target


READ = Primitive("getitem", _read, view=True)
_WRITE = Primitive("setitem", _write, owns=True)


def read_index(x: Array, key: Any) -> Array:
    """``x[key]``. A mask's result has a shape that depends on values: it is computed at once.

    A single element of an array whose value is there is read at once, too: to record and plan that would take longer.

    Raises:
        IndexError: if an index is out of bounds, or there are too many.
    """
    node = x._node
    parts = key if type(key) is tuple else (key,)
    if len(parts) == len(node.shape) and is_there(node) and _are_integers(parts):
        return given(np.array(node.value[parts]), node.evaluator)  # type: ignore[index]
    plain = _plain(node.shape, parts)
    if plain is not None:
        return record(READ, (node,), plain[1], node.dtype, plain[:1], node.evaluator)
    template, arrays = _parsed(key)
    if any(each.dtype.kind == "b" for each in arrays):
        values = [_computed(each) for each in arrays]
        if node.evaluator.dry_run:
            return read_index(x, _without_masks(template, values))
        return given(np.array(x._value()[key_of(template, tuple(values))]), node.evaluator, place=node.place)
    shape = _shape_of(node.shape, template, arrays)
    return record(READ, (node, *arrays), shape, node.dtype, (template,), node.evaluator)


def write_index(x: Array, key: Any, value: Any) -> Array:
    """The array after ``x[key] = value``.

    Raises:
        IndexError: as for `read_index`.
        ShapeError, DTypeError: if the value does not fit.
    """
    node = x._node
    template, arrays = _parsed(key)
    if type(value) is Record.array_type:
        written: Input = value._node
        if not np.can_cast(written.dtype, node.dtype, "same_kind"):
            raise DTypeError(f"assignment: expected {node.dtype}, got {written.dtype}")
    else:
        written = value_of(value, node.dtype)
    if any(each.dtype.kind == "b" for each in arrays):
        _check_masks(node.shape, template, arrays)
    else:
        shape = _shape_of(node.shape, template, arrays)
        stripped = written.shape
        while len(stripped) > len(shape) and stripped[0] == 1:
            stripped = stripped[1:]
        if broadcast("assignment", stripped, shape) != shape:
            raise ShapeError(f"assignment: a value of shape {written.shape} does not fit the part of shape {shape}")
    return record(_WRITE, (node, written, *arrays), node.shape, node.dtype, (template,), node.evaluator)


def _without_masks(template: tuple[Any, ...], values: list[Value]) -> tuple[Any, ...]:
    """The key of a record's template with indices in the place of masks, so that the shape of the part is known."""
    key: list[Any] = []
    for part in template:
        value = values[part.position] if type(part) is IndexArray else _unfrozen(part)
        if isinstance(value, np.ndarray) and value.dtype == np.bool_:
            if not value.ndim:
                raise GraphError("a traced function, or a dry run, cannot take a part by a 0-d mask: use where")
            key.extend(np.nonzero(value))
        else:
            key.append(value)
    return tuple(key)


def _computed(each: Input) -> Value:
    if type(each) is Record:
        if each.evaluator.dry_run:
            raise GraphError("a mask without values, of a traced function or a dry run: use where(mask, x, ...)")
        if Record.dry_runs:
            note_asked(each)
        node = on_host(each)
        node.evaluator.force((node,))
        if node.error is not None:
            raise node.error.with_traceback(None)
        assert node.value is not None
        return node.value
    return each  # type: ignore[return-value]


def _are_integers(parts: tuple[Any, ...]) -> bool:
    for part in parts:  # noqa: SIM110  a generator would take three times as long
        if type(part) is not int:
            return False
    return True


def _plain(shape: Shape, parts: tuple[Any, ...]) -> tuple[tuple[Any, ...], Shape] | None:
    """The template of a key of integers and slices alone, and the part's shape; None for others, right or wrong."""
    if len(parts) > len(shape):
        return None
    template: list[Any] = []
    found: list[int] = []
    for part, length in zip(parts, shape, strict=False):
        if type(part) is slice:
            try:
                found.append(len(range(*part.indices(length))))
            except TypeError:
                return None
            template.append(_frozen(part))
        elif type(part) is int and -length <= part < length:
            template.append(part)
        else:
            return None
    return tuple(template), (*found, *shape[len(parts) :])


def _parsed(key: Any) -> tuple[tuple[Any, ...], list[Input]]:
    parts = key if isinstance(key, tuple) else (key,)
    template: list[Any] = []
    arrays: list[Input] = []
    for part in parts:
        if type(part) is Record.array_type:
            if part.dtype.kind not in "iub":
                raise IndexError(f"an index must be of integers or booleans, got an array of {part.dtype}")
            if part.dtype.kind != "b" and not part.shape and part._node.done:
                template.append(int(part))
                continue
            template.append(IndexArray(len(arrays)))
            arrays.append(part._node)
        elif isinstance(part, np.ndarray | list | bool | np.bool_):
            indices = np.array(part)
            if isinstance(part, list) and not indices.size:
                indices = indices.astype(np.intp)
            if indices.dtype.kind not in "iub":
                raise IndexError(f"an index must be of integers or booleans, got an array of {indices.dtype}")
            template.append(IndexArray(len(arrays)))
            arrays.append(indices)
        elif part is None or part is Ellipsis:
            template.append(part)
        elif isinstance(part, slice):
            template.append(_frozen(part))
        else:
            try:
                template.append(operator.index(part))
            except TypeError as error:
                raise IndexError(f"an index must be an integer, slice, ... or array, got {part!r}") from error
    return tuple(template), arrays


def _shape_of(shape: Shape, template: tuple[Any, ...], arrays: list[Input]) -> Shape:
    if not arrays:  # asked of an array of this shape that takes no memory
        whole = np.ndarray(shape, np.int8, bytes(1), strides=(0,) * len(shape))
        return tuple(whole[key_of(template, ())].shape)
    together = broadcast("an index", *(each.shape for each in arrays))
    named = sum(part is not None and part is not Ellipsis for part in template)
    if named > len(shape):
        raise IndexError(f"{named} indices for an array of shape {shape}")
    rest: list[int] = []
    left = list(shape)
    places: list[int] = []
    at = 0
    for i, part in enumerate(template):
        if part is None:
            rest.append(1)
        elif part is Ellipsis:
            count = len(shape) - named
            rest += left[:count]
            del left[:count]
        elif type(part) is IndexArray or isinstance(part, int):
            length = left.pop(0)
            index: Any = arrays[part.position] if type(part) is IndexArray else part
            if type(index) is not Record:  # those are known when they are computed
                _check_bounds(index, length)
            at = at if places else len(rest)
            places.append(i)
        else:
            rest.append(len(range(*_unfrozen(part).indices(left.pop(0)))))
    if places[-1] - places[0] != len(places) - 1:  # not neighbours: their axes go first
        at = 0
    return (*rest[:at], *together, *rest[at:], *left)


def _check_bounds(index: Value | int, length: int) -> None:
    """Refuse an index, or an array of them, that an axis does not have."""
    if isinstance(index, np.ndarray):
        if not index.size:
            return
        most = int(index.max())
        index = most if most >= length else int(index.min())
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for an axis of length {length}")


def _check_masks(shape: Shape, template: tuple[Any, ...], arrays: list[Input]) -> None:
    """Refuse a key with masks of other lengths than the axes that they stand for."""
    masks: list[Shape | None] = []
    ranks: list[int] = []
    for part in template:
        array = arrays[part.position] if type(part) is IndexArray else None
        masks.append(array.shape if array is not None and array.dtype.kind == "b" else None)
        ranks.append(int(part is not None and part is not Ellipsis) if masks[-1] is None else len(masks[-1]))
    named = sum(ranks)
    if named > len(shape):
        raise IndexError(f"{named} indices for an array of shape {shape}")
    at = 0
    for part, mask, rank in zip(template, masks, ranks, strict=True):
        lengths = shape[at : at + rank]
        if mask is not None and mask != lengths:
            raise IndexError(f"a mask of shape {mask} for axes of lengths {lengths}, of an array of shape {shape}")
        at += len(shape) - named if part is Ellipsis else rank


TAKE = Primitive("take", lambda x, indices, axis: np.take(x, indices, axis=axis))
TAKE_ALONG = Primitive("take_along_axis", lambda x, indices, axis: np.take_along_axis(x, indices, axis=axis))


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """The elements at these indices of an axis, which a one-dimensional array need not name."""
    node, at = node_of("take", "x", x), node_of("take", "indices", indices)
    if axis is None:
        if len(node.shape) != 1:
            raise ShapeError(f"take: axis must be given for shape {node.shape}")
        axis = 0
    axis = axis_of("take", axis, len(node.shape))
    shape = (*node.shape[:axis], *at.shape, *node.shape[axis + 1 :])
    return record(TAKE, (node, at), shape, node.dtype, (axis,), node.evaluator)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """For each line along an axis, the elements at the indices of the same line of ``indices``."""
    node, at = node_of("take_along_axis", "x", x), node_of("take_along_axis", "indices", indices)
    if len(node.shape) != len(at.shape):
        raise ShapeError(f"take_along_axis: x has {len(node.shape)} axes, indices {len(at.shape)}")
    axis = axis_of("take_along_axis", axis, len(node.shape))
    lines = (*node.shape[:axis], 1, *node.shape[axis + 1 :])
    shape = broadcast("take_along_axis", lines, at.shape)
    return record(TAKE_ALONG, (node, at), shape, node.dtype, (axis,), node.evaluator)
