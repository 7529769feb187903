"""Parts of a blob, by slices and by indices, writing into them, and borders; the gradients put parts back.

A key (of ``x[key]``) is a tuple with a part for each axis, as an operation's field: an integer, None for a new axis, a
tuple of start, stop and step for a slice, and `INDEX` for an array of integers or a mask, which are inputs.
"""

from __future__ import annotations

import operator
from builtins import slice as _slice
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from actorflow.errors import AxisError, DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import add, divide, equal, multiply, subtract, where
from actorflow.ops.fills import filled, number_like, numbers
from actorflow.ops.operation import (
    Application,
    Grads,
    Operand,
    Operation,
    X,
    apply,
    axes_of,
    axis_from_front,
    blob_of,
    rank_is,
    same_numbers,
    savable,
    whole,
)
from actorflow.ops.rows import conjugated
from actorflow.ops.shaping import (
    Arrangement,
    Axis,
    ReduceSum,
    broadcast_shape,
    broadcast_to,
    reshape,
    sum_to,
    total,
    unstack,
)
from actorflow.spec import Length, TensorSpec, broadcast_shapes, may_equal, slice_length

PadMode = Literal["constant", "reflect", "edge", "wrap"]
#: An index of one axis of a blob; None is a new axis.
Index = Any
#: The part of a key that stands for an array among the inputs.
INDEX: Final = "index"
Key = tuple[Any, ...]
#: How values are put where others are.
Mode = Literal["set", "add", "mul", "min", "max"]


def numpy_key(key: Key, indices: Iterable[Any] = ()) -> Key:
    """The key for NumPy, with the values of its arrays; it gives arrays, of a single element, too."""
    rest = iter(indices)
    return (*[next(rest) if part == INDEX else _slice(*part) if type(part) is tuple else part for part in key], ...)


def part_shape(
    kind: str, shape: tuple[int, ...], key: Key, indices: Sequence[Any], count: int | None = None
) -> tuple[int, ...]:
    """The shape of the part of an array that a key picks.

    Args:
        kind: Name for messages.
        shape: Shape of the array.
        key: The key.
        indices: Its arrays, or their types; values of NumPy's arrays are checked.
        count: Number of elements that a mask picks.
    Raises:
        AxisError: if there is no such part.
        DTypeError: if an array is not of integers or bools.
    """
    given, named = iter(indices), sum([1 for part in key if part is not None and part != INDEX])
    for part in key:
        if not (part is None or part == INDEX or type(part) in (tuple, int) or isinstance(part, np.integer | Length)):
            raise GraphError(f"{kind}: a key is of integers, slices, new axes and arrays, got {part!r}")
    if sum([1 for part in key if part == INDEX]) != len(indices):
        raise AxisError(f"{kind}: key {key} does not have a place for each of {len(indices)} arrays")
    for index in indices:
        if index.dtype.kind not in "iub":
            raise DTypeError(f"{kind}: an index must be of integers or bools, got {index.dtype}{list(index.shape)}")
        named += len(index.shape) if index.dtype.kind == "b" else 1
    if named > len(shape):
        raise AxisError(f"{kind}: {named} indices for an array of shape {shape}")
    left, at = [*shape], 0
    rest: list[int] = []
    places: list[int] = []
    arrays: list[tuple[int, ...]] = [()]
    for i, part in enumerate(key):
        if part is None:
            rest.append(1)
        elif type(part) is tuple:
            rest.append(slice_length(part, left.pop(0)))
        else:
            index = next(given) if part == INDEX else part
            if part == INDEX and index.dtype.kind == "b":
                rank = len(index.shape)
                if tuple(left[:rank]) != index.shape:
                    raise AxisError(f"{kind}: a mask of shape {index.shape} for axes of lengths {tuple(left[:rank])}")
                del left[:rank]
                arrays.append(() if count is None else (count,))
            else:
                _check_bounds(kind, index, left.pop(0))
                arrays.append(index.shape if part == INDEX else ())
            if indices:
                at = at if places else len(rest)
                places.append(i)
    if places and places[-1] - places[0] != len(places) - 1:  # not neighbours: their axes go first
        at = 0
    try:
        return (*rest[:at], *broadcast_shapes(*arrays), *rest[at:], *left)
    except ValueError:
        raise ShapeError(f"{kind}: indices of shapes {', '.join(map(str, arrays[1:]))} do not broadcast") from None


def _check_bounds(kind: str, index: Any, length: int) -> None:
    """Refuse an index, or an array of them whose values are there, that an axis does not have."""
    if isinstance(index, np.ndarray):
        if not index.size:
            return
        index = most if (most := int(index.max())) >= length else int(index.min())
    if isinstance(index, int) and not -length <= index < length:
        raise AxisError(f"{kind}: index {index} is out of bounds for an axis of length {length}")


def parsed(kind: str, key: Any, rank: int) -> tuple[Key, list[Any]]:
    """A key as NumPy takes it: as a field of operations, and its arrays: blobs, lazy arrays and NumPy's.

    Raises:
        AxisError: if a part is something else, or there are more than there are axes.
    """
    found: list[Any] = []
    arrays: list[Any] = []
    gap, named = None, 0
    for part in key if type(key) is tuple else (key,):
        named += 1
        if type(part) is _slice:
            found.append((_end(part.start), _end(part.stop), _end(part.step)))
        elif part is None:
            found.append(None)
            named -= 1
        elif part is ...:
            if gap is not None:
                raise AxisError(f"{kind}: a key can have one ellipsis")
            gap = len(found)
            named -= 1
        elif isinstance(part, Operand | np.ndarray | list | bool | np.bool_):
            array: Any = part if isinstance(part, Operand) else np.array(part)
            if isinstance(part, list) and not array.size:
                array = array.astype(np.intp)
            found.append(INDEX)
            arrays.append(array)
            named += len(array.shape) - 1 if array.dtype.kind == "b" else 0
        else:
            try:
                found.append(_end(part))
            except TypeError:
                raise AxisError(
                    f"{kind}: an index must be an integer, slice, array, ... or None, got {part!r}"
                ) from None
    if gap is not None and named <= rank:
        found[gap:gap] = [(None, None, None)] * (rank - named)
    return tuple(found), arrays


def _end(value: Any) -> Any:
    return value if value is None or type(value) in (int, Length) else operator.index(value)


@dataclass(frozen=True)
class Slice(Arrangement):
    """``y = x[key]`` for a key of integers, slices and new axes, a view of ``x`` on the CPU; see `slice`."""

    function_name = "getitem"
    is_view = True

    key: Key

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (shape, dtype), found, at = inputs[0], [], 0
        for part in self.key:  # as `part_shape`, for the frequent case
            if at < len(shape) and type(part) is int and -shape[at] <= part < shape[at]:
                at += 1
            elif at < len(shape) and type(part) is tuple:
                found.append(slice_length(part, shape[at]))
                at += 1
            else:
                return (TensorSpec(part_shape(self.kind, shape, self.key, ()), dtype),)
        return (TensorSpec((*found, *shape[at:]), dtype),)

    def compute(self, *inputs: Any) -> Any:
        return inputs[0][numpy_key(self.key)]

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(AddAt(self.key, op.inputs[0].shape), grads[0])]


@dataclass(frozen=True)
class Gather(Arrangement):
    """``y = x[key]`` for a key with arrays; see `slice`.

    Attributes:
        key: The key.
        count: Number of elements that a mask picks.
    """

    arguments = ("x", "*indices")
    function_name = "getitem"

    key: Key
    count: int | None = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, *indices = inputs
        if self.count is None and any(index.dtype == np.bool_ for index in indices):
            raise DTypeError("an index of bools picks a number of elements that only the values tell: use where")
        return (TensorSpec(part_shape(self.kind, x.shape, self.key, indices, self.count), x.dtype),)

    def compute(self, *inputs: Any) -> Any:
        return inputs[0][numpy_key(self.key, inputs[1:])]

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        x, *indices = op.inputs
        return [apply(AddAt(self.key, x.shape), grads[0], *indices), *[None] * len(indices)]


@dataclass(frozen=True)
class AddAt(Arrangement):
    """Zeros with ``g`` added at a key, in the order of its elements: the gradient of `Slice` and `Gather`.

    Attributes:
        key: The key.
        shape: Shape of the result.
    """

    arguments = ("g", "*indices")
    function_name = "add_at"

    key: Key
    shape: tuple[int, ...]

    def check_arity(self, count: int) -> None:
        pass

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, *indices = inputs
        part = part_shape(self.kind, self.shape, self.key, indices, g.shape[0] if g.shape else None)
        if g.shape != part:
            raise ShapeError(f"{self.kind}: g must have shape {part}, got {g}")
        return (TensorSpec(self.shape, g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        g, *indices = op.inputs
        return [_part(grads[0], self.key, indices, g.shape[0] if g.shape else None), *[None] * len(indices)]


def _part(x: Any, key: Key, indices: Sequence[Any], count: int | None = None) -> Any:
    if not indices:
        return apply(Slice(key), x)
    return apply(Gather(key, count if any(index.dtype == np.bool_ for index in indices) else None), x, *indices)


#: Functions that combine values in the modes other than "set".
UFUNCS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class Scatter(Arrangement):
    """``x`` with values put at a key, one after the other; see `scatter_nd`.

    Attributes:
        key: The key.
        mode: How they are put there.
    """

    arguments = ("x", "*values")
    function_name = "setitem"
    writes_over = True

    key: Key
    mode: Mode = "set"

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, values, *indices = inputs
        if self.mode not in ("set", *UFUNCS):
            raise GraphError(f"{self.kind}: mode must be 'set', 'add', 'mul', 'min' or 'max', got {self.mode!r}")
        if values.dtype != x.dtype:
            raise DTypeError(f"{self.kind}: values must have x's dtype {x.dtype}, got {values}")
        part, given = part_shape(self.kind, x.shape, self.key, indices), values.shape
        if not any(index.dtype == np.bool_ for index in indices):  # else the part's shape is not known
            while len(given) > len(part) and given[0] == 1:
                given = given[1:]
            fits = zip(given[::-1], part[::-1], strict=False)
            if len(given) > len(part) or any(n != m and (n != 1 or self.mode != "set") for n, m in fits):
                raise ShapeError(f"{self.kind}: values of shape {values.shape} do not broadcast to the part's, {part}")
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g,), (x, values, *indices), rest = grads, op.inputs, [None] * (len(wanted) - 2)
        if self.mode == "set":
            kept = apply(self, g, number_like(0, g), *indices)
            return [kept, self._written(g, kept, values, indices) if wanted[1] else None, *rest]
        if self.mode == "add":
            return [g, _fitted(_part(g, self.key, indices), values.shape), *rest]
        if self.mode == "mul":
            by_x, by_values = self._of_product(g, x, values, indices)
        else:
            by_x, by_values = self._of_extreme(g, x, values, op.outputs[0], indices)
        return [by_x, _fitted(by_values, values.shape), *rest]

    def _written(self, g: Any, kept: Any, values: Any, indices: Sequence[Any]) -> Any:
        """The gradient of values that are set: elements that were written over have none."""
        if any(index.dtype == np.bool_ for index in indices):
            return self._masked(g, subtract(g, kept), values, indices)
        part = _part(g, self.key, indices)
        if indices:
            places = g.literal(numbers(_counted, *part.shape, shape=part.shape))
            last = apply(self, places.constant_like(-1, g.shape), places, *indices)
            part = where(equal(_part(last, self.key, indices), places), part, 0)
        return _fitted(part, values.shape)

    def _masked(self, g: Any, written: Any, values: Any, indices: Sequence[Any]) -> Any:
        """The same for a mask, whose number of elements depends on the data."""
        if prod(values.shape) == 1:
            return reshape(total(written), values.shape)
        if len(self.key) > 1:
            raise GraphError("setitem: a mask beside other indices has a gradient only for a value of one element")
        rank = len(indices[0].shape)
        if len(values.shape) <= len(g.shape) - rank or values.shape[0] == 1:  # the same for each
            return _fitted(apply(ReduceSum(tuple(range(rank))), written), values.shape)
        return apply(Gather(self.key, values.shape[0]), g, *indices)

    def _of_product(self, g: Any, x: Any, values: Any, indices: Sequence[Any]) -> tuple[Any, Any]:
        """The product of all other factors, also where one is 0: nothing is divided by it."""
        one, none = number_like(1, g), number_like(0, g)
        is_zero = equal(values, 0)
        factors, zero = where(is_zero, one, values), where(is_zero, one, none)
        product = apply(self, filled(1, x.shape, g), factors, *indices)
        zeros = apply(AddAt(self.key, x.shape), zero, *indices)
        left = divide(_part(product, self.key, indices), factors)
        others = where(equal(_part(zeros, self.key, indices), zero), left, none)
        by_x = multiply(g, conjugated(where(equal(zeros, none), product, none)))
        return by_x, multiply(_part(multiply(g, conjugated(x)), self.key, indices), conjugated(others))

    def _of_extreme(self, g: Any, x: Any, values: Any, y: Any, indices: Sequence[Any]) -> tuple[Any, Any]:
        """Elements equal to the extreme share the gradient equally."""
        one, none = number_like(1, g), number_like(0, g)
        mine = where(equal(x, y), one, none)
        theirs = where(equal(values, _part(y, self.key, indices)), one, none)
        share = divide(g, add(mine, apply(AddAt(self.key, x.shape), theirs, *indices)))
        return multiply(mine, share), multiply(theirs, _part(share, self.key, indices))


@savable
def _counted(*shape: int) -> npt.NDArray[Any]:
    return np.arange(prod(shape)).reshape(shape)


def _fitted(part: Any, shape: tuple[int, ...]) -> Any:
    """A gradient of a part, for values that were broadcast to it."""
    found = sum_to(part, shape[max(len(shape) - len(part.shape), 0) :])
    return found if found.shape == shape else reshape(found, shape)


@dataclass(frozen=True)
class Flip(Arrangement):
    """``x`` in reverse order along axes; see `flip`."""

    is_view = True

    axis: tuple[int, ...] | None = None

    def key(self, rank: int) -> tuple[Any, ...]:
        """The key that picks the result from an array of ``rank`` axes."""
        axes = axes_of("Flip", self.axis, rank)
        return (*[_slice(None, None, -1 if i in axes else 1) for i in range(rank)], ...)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.key(len(inputs[0].shape))
        return inputs

    def compute(self, *inputs: Any) -> Any:
        return np.flip(inputs[0], self.axis)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(self, grads[0])]


def _check_widths(kind: str, widths: tuple[tuple[int, int], ...], shape: tuple[int, ...], mode: PadMode) -> None:
    if len(widths) != len(shape) or any(width < 0 for pair in widths for width in pair):
        raise ShapeError(f"{kind}: widths must be two numbers from 0 on for each of {len(shape)} axes, got {widths}")
    for axis, (pair, n) in enumerate(zip(widths, shape, strict=True)):
        most = {"reflect": max(n - 1, 0), "edge": 0 if n == 0 else None, "wrap": n}.get(mode)
        if most is not None and max(pair) > most:
            raise ShapeError(f"{kind}: widths {pair} on axis {axis} must be at most {most} in mode {mode!r}, x has {n}")


def _check_mode(kind: str, mode: PadMode) -> None:
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise GraphError(f"{kind}: mode must be 'constant', 'reflect', 'edge' or 'wrap', got {mode!r}")


@dataclass(frozen=True)
class Pad(Arrangement):
    """``x`` with a border; see `pad`."""

    widths: tuple[tuple[int, int], ...]
    mode: PadMode = "constant"
    value: float = 0.0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        _check_mode("Pad", self.mode)
        _check_widths("Pad", self.widths, x.shape, self.mode)
        shape = [before + n + after for n, (before, after) in zip(x.shape, self.widths, strict=True)]
        return (TensorSpec(tuple(shape), x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        if self.mode != "constant":
            return [apply(PadDown(self.widths, self.mode), grads[0])]
        inside = zip(self.widths, op.inputs[0].shape, strict=True)
        return [apply(Slice(tuple([(before, before + n, None) for (before, _), n in inside])), grads[0])]


@dataclass(frozen=True)
class PadDown(Arrangement):
    """The gradient of `Pad` in other modes than "constant": ``g`` without its border, which is added to its sources."""

    arguments = ("g",)

    widths: tuple[tuple[int, int], ...]
    mode: PadMode

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (g,) = inputs
        _check_mode("PadDown", self.mode)
        if len(self.widths) != len(g.shape):
            raise ShapeError(f"PadDown: g must have {len(self.widths)} axes, got {g}")
        shape = tuple([n - before - after for n, (before, after) in zip(g.shape, self.widths, strict=True)])
        if any(n < 0 for n in shape):
            raise ShapeError(f"PadDown: g must have a border of {self.widths}, got {g}")
        _check_widths("PadDown", self.widths, shape, self.mode)
        return (TensorSpec(shape, g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(Pad(self.widths, self.mode), grads[0])]


@whole
def slice(x: X, key: Index, name: str | None = None) -> X:
    """A part of a blob: ``y = x[key]``.

    Write keys with `numpy.s_`: ``af.ops.slice(x, np.s_[:, 1:-1, ::2])``.

    Args:
        x: Any shape and dtype.
        key: Integers, slices (with any step but 0), one ellipsis, None (a new axis), and arrays of integers (blobs, or
            NumPy's), or a tuple of them. A NumPy array of bools picks the elements where it is True.
    Returns:
        Blob of the part's shape, as for NumPy's arrays; without arrays among the key it shares the memory of ``x`` on
        the CPU, unless a step is negative.
    Raises:
        AxisError: if ``x`` does not have an index, or not as many axes, or a part of the key is something else.
        DTypeError: if an index is a blob of bools.
    Gradient: g among zeros; of elements picked several times it is added up in the order of the indices.
    Source: Minerva ``slice``, `numpy.ndarray.__getitem__`.
    Example:
        >>> graph = af.Graph("border")
        >>> x = graph.blob("x", shape=(3, 3), dtype="int64")
        >>> inner = af.ops.slice(x, np.s_[1:, ::2])
        >>> graph.run_sync({x: np.arange(9).reshape(3, 3)})[inner]
        array([[3, 5],
               [6, 8]])
    """
    return read(x, *parsed("slice", key, len(x.shape)), name=name)


def read(x: X, key: Key, indices: Sequence[Any], name: str | None = None) -> X:
    """A part of a blob, by a key that was `parsed`."""
    if not indices:
        return blob_of(Slice(key), x, name=name)
    if any(isinstance(index, np.ndarray) for index in indices):
        key, indices = _without_masks(key, indices)
        part_shape("slice", x.shape, key, indices, count=0)
        indices = [x.literal(each) if isinstance(each, np.ndarray) else each for each in indices]
    if len(indices) == 1 and indices[0].dtype.kind in "iu" and all(p in (INDEX, (None, None, None)) for p in key):
        return blob_of(Take(key.index(INDEX)), x, indices[0], name=name)
    return blob_of(Gather(key), x, *indices, name=name)


def _without_masks(key: Key, indices: Sequence[Any]) -> tuple[Key, list[Any]]:
    """A key with indices in the place of masks whose values are there, so that the shape of the part is known."""
    parts: list[Any] = []
    arrays: list[Any] = []
    rest = iter(indices)
    for part in key:
        array = next(rest) if part == INDEX else None
        if isinstance(array, np.ndarray) and array.dtype == np.bool_:
            if not array.ndim:
                raise GraphError("slice: a part cannot be taken by a 0-d mask: use where")
            arrays += np.nonzero(array)
            parts += [INDEX] * array.ndim
        else:
            arrays += [] if array is None else [array]
            parts.append(part)
    return tuple(parts), arrays


def flip(x: X, axis: Axis = None, name: str | None = None) -> X:
    """A blob in reverse order along axes.

    Args:
        x: Any shape and dtype.
        axis: One axis or several, negative ones counted from the end; by default all.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axes.
    Gradient: g, turned back.
    Source: `numpy.flip`.
    Example:
        >>> af.ops.flip(xp.asarray([[1, 2], [3, 4]]), axis=1)
        Array([[2, 1],
               [4, 3]], dtype=int64)
    """
    return blob_of(Flip(None if axis is None else axes_of("flip", axis, len(x.shape))), x, name=name)


def pad(
    x: X,
    widths: int | Sequence[int | Sequence[int]],
    mode: PadMode = "constant",
    value: float = 0.0,
    name: str | None = None,
) -> X:
    """A blob with a border.

    Args:
        x: Any shape and dtype.
        widths: Numbers of elements: before and after for each axis, or one number for both, or one for all.
        mode: Contents of the border: "constant", ``value``; "edge", the outermost element; "reflect", the elements
            inside of that, mirrored (so fewer than the axis is long); "wrap", the elements at the other end of the axis
            (at most as many as it is long).
        value: The border's elements in mode "constant".
    Returns:
        Blob of the larger shape, and the dtype of ``x``.
    Raises:
        ShapeError: if ``x`` cannot have such a border.
        GraphError: if the mode does not exist.
    Gradient: g without the border; in the other modes the border is added to where its elements came from.
    Source: `numpy.pad`.
    Example:
        >>> x = xp.asarray([1, 2, 3])
        >>> print(af.ops.pad(x, 2), af.ops.pad(x, [(0, 2)], mode="reflect"))
        [0 0 1 2 3 0 0] [1 2 3 2 1]
    """
    each = [widths] * len(x.shape) if isinstance(widths, int | Length) else list(widths)
    pairs = [(width, width) if isinstance(width, int | Length) else tuple(width) for width in each]
    for pair in pairs:
        if len(pair) != 2:
            raise ShapeError(f"pad: widths must be one or two numbers for each axis, got {pair}")
    return blob_of(Pad(tuple([(before, after) for before, after in pairs]), mode, value), x, name=name)


def _check_indices(kind: str, indices: TensorSpec) -> None:
    if indices.dtype.kind not in "iu":
        raise DTypeError(f"{kind}: indices must be of integers, got {indices}")


@dataclass(frozen=True)
class Take(Arrangement):
    """``y = x`` at indices of one axis, for all of the others; see `take`."""

    arguments = ("x", "indices")

    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, indices = inputs
        _check_indices("Take", indices)
        (axis,) = axes_of("Take", self.axis, len(x.shape))
        if x.shape[axis] == 0 and indices.size:
            raise ShapeError(f"Take: x must have at least 1 element on axis {axis}, got {x}")
        return (TensorSpec((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        x, indices = op.inputs
        (axis,) = axes_of("Take", self.axis, len(x.shape))
        return [apply(TakeDown(x.shape[axis], axis), grads[0], indices), None]


@dataclass(frozen=True)
class TakeDown(Arrangement):
    """Parts added at indices of an axis of zeros; see `take_down`."""

    arguments = ("g", "indices")
    function_name = "take_down"

    length: int
    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, indices = inputs
        _check_indices("TakeDown", indices)
        same_numbers("TakeDown", g=g)
        axis_from_front("TakeDown", self.axis, len(g.shape) - len(indices.shape) + 1)
        stop = self.axis + len(indices.shape)
        if g.shape[self.axis : stop] != indices.shape:
            raise ShapeError(f"TakeDown: g must have shape {indices.shape} from axis {self.axis} on, got {g}")
        return (TensorSpec((*g.shape[: self.axis], self.length, *g.shape[stop:]), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(Take(self.axis), grads[0], op.inputs[1]), None]


@dataclass(frozen=True)
class TakeAlongAxis(Arrangement):
    """``y = x`` at an index of one axis for each element of ``y``; see `take_along_axis`."""

    arguments = ("x", "indices")
    function_name = "take_along_axis"

    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, indices = inputs
        _check_indices(self.kind, indices)
        (axis,) = axes_of(self.kind, self.axis, len(x.shape))
        rank_is(self.kind, "indices", indices, [f"axis {i}" for i in range(len(x.shape))])
        _check_beside(self.kind, "indices", indices, x.shape, axis)
        if x.shape[axis] == 0 and indices.size:
            raise ShapeError(f"TakeAlongAxis: x must have at least 1 element on axis {axis}, got {x}")
        return (TensorSpec(indices.shape, x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        x, indices = op.inputs
        (axis,) = axes_of(self.kind, self.axis, len(x.shape))
        return [apply(TakeAlongAxisDown(x.shape[axis], axis), grads[0], indices), None]


@dataclass(frozen=True)
class TakeAlongAxisDown(Arrangement):
    """``dx``: each element of ``g`` added where it was taken from; the gradient of `TakeAlongAxis`.

    Elements that were taken several times are summed in the order of ``g``, whatever the timing.

    Attributes:
        length: Length of the axis in ``x``.
        axis: As in `TakeAlongAxis`, not negative.
    """

    arguments = ("g", "indices")

    length: int
    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, indices = inputs
        _check_indices(self.kind, indices)
        same_numbers(self.kind, g=g)
        if g.shape != indices.shape:
            raise ShapeError(f"{self.kind}: g must have the indices' shape {indices.shape}, got {g}")
        axis = axis_from_front(self.kind, self.axis, len(g.shape))
        return (TensorSpec((*g.shape[:axis], self.length, *g.shape[axis + 1 :]), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(TakeAlongAxis(self.axis), grads[0], op.inputs[1]), None]


def _check_beside(kind: str, name: str, given: TensorSpec, shape: tuple[int, ...], axis: int) -> None:
    """Check that a shape is that of ``x`` on all axes but one."""
    if any(n != m for i, (n, m) in enumerate(zip(given.shape, shape, strict=True)) if i != axis):
        raise ShapeError(f"{kind}: {name} must have x's shape {shape} beside axis {axis}, got {given}")


@dataclass(frozen=True)
class OneHot(Operation):
    """1 at the index along a new last axis, 0 elsewhere; see `one_hot`."""

    arguments = ("indices",)
    differentiable = False
    per_element = 0

    depth: int
    dtype: np.dtype[np.generic]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_indices("OneHot", inputs[0])
        if self.depth < 1:
            raise GraphError(f"OneHot: depth must be at least 1, got {self.depth}")
        return (TensorSpec((*inputs[0].shape, self.depth), self.dtype),)


def take(x: X, indices: X, axis: int = 0, name: str | None = None) -> X:
    """Parts of a blob at indices of one axis.

    Args:
        x: At least one axis, any dtype.
        indices: Any shape, integers from ``-n`` to ``n - 1`` for an axis of length n; another index is an error on the
            CPU, and gives NaN (0 for integers) on CUDA devices.
        axis: Axis that the indices are of, counted from the end if negative.
    Returns:
        Blob of the shape of ``x`` with that of ``indices`` in the place of the axis, and the dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: g, added where its parts were taken from, in the order of the indices: `take_down`.
    Source: `numpy.take`.
    Example:
        >>> x = xp.asarray([[1, 2], [3, 4], [5, 6]])
        >>> af.ops.take(x, xp.asarray([2, 0, -1]))
        Array([[5, 6],
               [1, 2],
               [5, 6]], dtype=int64)
    """
    return blob_of(Take(axis), x, indices, name=name)


def take_down(g: X, indices: X, length: int, axis: int = 0, name: str | None = None) -> X:
    """Parts added at indices of one axis of zeros, in the order of the indices: the gradient of `take`.

    Args:
        g: Of the shape that `take` gives, numeric.
        indices: As for `take`.
        length: Length of the axis in the result.
        axis: The axis, not negative.
    Returns:
        Blob of the shape that `take` takes from, and the dtype of ``g``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: `take`.
    Source: ``torch.index_add``.
    Example:
        >>> g = xp.asarray([1.0, 2.0, 4.0])
        >>> af.ops.take_down(g, xp.asarray([0, 2, 2]), length=4)
        Array([1., 0., 6., 0.], dtype=float64)
    """
    return blob_of(TakeDown(length, axis), g, indices, name=name)


@whole
def take_along_axis(x: X, indices: X, axis: int = 0, name: str | None = None) -> X:
    """For each element of the result, the element of ``x`` at its index along an axis.

    Args:
        x: At least one axis, any dtype.
        indices: The shape of ``x`` but for the axis, or one that broadcasts with it; integers as in `take`.
        axis: Axis that the indices are of, counted from the end if negative.
    Returns:
        Blob of the shape of ``indices``, broadcast, and the dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: g, added where its elements were taken from, in order.
    Source: `numpy.take_along_axis`, ``torch.gather``.
    Example:
        >>> x = xp.asarray([[10, 30, 20], [5, 4, 6]])
        >>> af.ops.take_along_axis(x, af.ops.argsort(x), axis=1)
        Array([[10, 20, 30],
               [ 4,  5,  6]], dtype=int64)
    """
    if len(x.shape) == len(indices.shape):
        (at,) = axes_of("take_along_axis", axis, len(x.shape))
        lines = TensorSpec((*x.shape[:at], 1, *x.shape[at + 1 :]), x.dtype)
        shape = broadcast_shape("take_along_axis", x=lines, indices=indices.spec)
        whole_shape = (*shape[:at], x.shape[at], *shape[at + 1 :])
        x = x if x.shape == whole_shape else broadcast_to(x, whole_shape)
        indices = indices if indices.shape == shape else broadcast_to(indices, shape)
    return blob_of(TakeAlongAxis(axis), x, indices, name=name)


def gather_nd(x: X, indices: X, batch_dims: int = 0, name: str | None = None) -> X:
    """Parts of a blob at places, each given by several indices.

    Args:
        x: Any shape and dtype.
        indices: Shape (..., k), integers as in `take`: each row is a place along the first k axes of ``x``.
        batch_dims: Number of axes that both have in front, of the same lengths; the k axes come behind these.
    Returns:
        Blob of shape (..., what ``x`` has behind the axes), and the dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: g, added where its parts were taken from, in the order of the indices.
    Source: ONNX ``GatherND``, TensorFlow ``gather_nd``.
    Example:
        >>> x = xp.asarray([[1, 2], [3, 4]])
        >>> af.ops.gather_nd(x, xp.asarray([[0, 1], [1, 0]]))
        Array([2, 3], dtype=int64)
    """
    return read(x, *_places("gather_nd", x, indices, batch_dims), name=name or "gather_nd")


@whole
def scatter_nd(x: X, indices: X, values: X, mode: Mode = "set", name: str | None = None) -> X:
    """A blob with parts put at places, one after the other in the order of the indices.

    Args:
        x: Any shape and dtype.
        indices: As for `gather_nd`.
        values: The new values, of the shape that `gather_nd` would give, dtype of ``x``.
        mode: "set" replaces the values there, the last one stays; "add", "mul", "min" and "max" combine it.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if there is no such mode.
    Gradient: g where it came from; extremes share it equally, values that were replaced have none.
    Source: ONNX ``ScatterND``.
    Example:
        >>> x = xp.zeros((2, 2))
        >>> af.ops.scatter_nd(x, xp.asarray([[0, 1], [1, 0]]), xp.asarray([5.0, 7.0]))
        Array([[0., 5.],
               [7., 0.]], dtype=float64)
    """
    key, places = _places("scatter_nd", x, indices)
    return blob_of(Scatter(key, mode), x, values, *places, name=name or "scatter_nd")


@whole
def scatter(x: X, indices: X, values: X, axis: int = 0, mode: Mode = "set", name: str | None = None) -> X:
    """A blob with each element of ``values`` put at its index along an axis: the reverse of `take_along_axis`.

    Args:
        x: At least one axis, any dtype.
        indices: As many axes as ``x``, and at most its lengths beside the axis; integers as in `take`.
        values: Shape of ``indices``, dtype of ``x``.
        axis: Axis that the indices are of, counted from the end if negative.
        mode: As for `scatter_nd`.
    Returns, errors, gradient: as of `scatter_nd`.
    Source: ONNX ``ScatterElements``, ``torch.scatter``.
    Example:
        >>> x = xp.zeros(4)
        >>> af.ops.scatter(x, xp.asarray([3, 0, 3]), xp.asarray([1.0, 2.0, 5.0]), mode="add")
        Array([2., 0., 0., 6.], dtype=float64)
    """
    (axis,) = axes_of("scatter", axis, len(x.shape))
    rank_is("scatter", "indices", indices.spec, [f"axis {i}" for i in range(len(x.shape))])
    places = [indices if i == axis else line(x, i, indices.shape) for i in range(len(x.shape))]
    return blob_of(Scatter((INDEX,) * len(places), mode), x, values, *places, name=name or "scatter")


def add_at(x: X, key: Index, values: X, name: str | None = None) -> X:
    """A blob with values added at a part, values of one place in the order of the indices: ``x[key] += values``.

    Args:
        x: Any shape, numeric.
        key: As for `slice`.
        values: Shape of ``slice(x, key)``, dtype of ``x``.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: g; of the values, its part.
    Source: `numpy.add.at`.
    Example:
        >>> x = xp.asarray([0, 0, 0])
        >>> af.ops.add_at(x, np.array([1, 1, 2]), xp.asarray([10, 20, 30]))
        Array([ 0, 30, 30], dtype=int64)
    """
    places, indices = parsed("add_at", key, len(x.shape))
    return blob_of(Scatter(places, "add"), x, values, *indices, name=name or "add_at")


def _places(kind: str, x: Any, indices: Any, batch_dims: int = 0) -> tuple[Key, list[Any]]:
    """The key of `gather_nd`, and its arrays."""
    if len(indices.shape) <= batch_dims or indices.shape[:batch_dims] != x.shape[:batch_dims]:
        raise ShapeError(f"{kind}: indices must have shape ({batch_dims} axes of x, ..., k), got {indices.spec}")
    lines = [line(x, i, indices.shape[:-1]) for i in range(batch_dims)]
    return (INDEX,) * (batch_dims + indices.shape[-1]), [*lines, *unstack(indices, -1)]


def line(x: Operand, axis: int, shape: tuple[int, ...]) -> Any:
    """The numbers from 0 on along one axis of a shape."""
    ones = [1] * len(shape)
    return x.literal(
        numbers(_along, axis, len(shape), shape[axis], shape=[*ones[:axis], shape[axis], *ones[axis + 1 :]])
    )


@savable
def _along(axis: int, rank: int, length: int) -> npt.NDArray[Any]:
    return np.arange(length).reshape([-1 if i == axis else 1 for i in range(rank)])


def repeat(x: X, repeats: int | Sequence[int], axis: int | None = None, name: str | None = None) -> X:
    """Each element, or part, repeated.

    Args:
        x: Any shape and dtype.
        repeats: How often, for all or for each part along the axis.
        axis: The axis, counted from the end if negative; None for the flat elements.
    Returns:
        Blob of the dtype of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axis, or as many parts.
    Gradient: the sum of g over the repetitions.
    Source: `numpy.repeat`.
    Example:
        >>> af.ops.repeat(xp.asarray([1, 2, 3]), [2, 0, 1])
        Array([1, 1, 3], dtype=int64)
    """
    flat = reshape(x, -1) if axis is None else x
    (at,) = axes_of("repeat", axis or 0, len(flat.shape))
    counts = np.asarray(repeats, object if isinstance(repeats, Length) else None)
    length, is_one = flat.shape[at], counts.shape in ((), (1,))
    if not (is_one or (counts.ndim == 1 and may_equal(len(counts), length))) or (counts.size and counts.min() < 0):
        raise ShapeError(f"repeat: repeats must be one number or {length} numbers from 0 on, got shape {counts.shape}")
    each = tuple(counts.reshape(-1).tolist())
    size = each[0] * length if is_one else sum(each)
    y: X = take(flat, flat.literal(numbers(_repeated, length, each, shape=(size,))), at, name=name or "repeat")
    return y


@savable
def _repeated(length: int, counts: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.repeat(np.arange(length), counts)


def tril(x: X, k: int = 0, name: str | None = None) -> X:
    """Matrices with zeros above a diagonal.

    Args:
        x: Shape (..., rows, columns), any dtype.
        k: The diagonal, to the right of the main one.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` has less than two axes.
    Gradient: g with the same zeros.
    Source: `numpy.tril`.
    Example:
        >>> af.ops.tril(xp.ones((3, 3)))
        Array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 1., 1.]], dtype=float64)
    """
    return _triangle("tril", x, k, name)


def triu(x: X, k: int = 0, name: str | None = None) -> X:
    """Matrices with zeros below a diagonal; else as `tril`.

    Arguments, result, errors and gradient: as of `tril`.
    Example:
        >>> af.ops.triu(xp.ones((3, 3)), k=1)
        Array([[0., 1., 1.],
               [0., 0., 1.],
               [0., 0., 0.]], dtype=float64)
    """
    return _triangle("triu", x, k, name)


def _triangle(kind: str, x: X, k: int, name: str | None) -> X:
    kept = numbers(_kept, kind, *x.spec, k, shape=x.shape[-2:], dtype=bool)
    y: X = where(x.literal(kept), x, number_like(0, x), name=name or kind)
    return y


@savable
def _kept(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], k: int) -> Any:
    """Mask of the elements that `tril` or `triu` leaves of matrices."""
    if len(shape) < 2:
        raise ShapeError(f"{kind}: x must have shape (..., rows, columns), got {TensorSpec(shape, dtype)}")
    is_lower = kind == "tril"
    return np.tri(shape[-2], shape[-1], k - (not is_lower)) == is_lower


def embedding(indices: X, weight: X, name: str | None = None) -> X:
    """Rows of a table: `take` along its first axis.

    Args:
        indices: Any shape, integers as in `take`.
        weight: Shape (rows, features), floating.
    Returns:
        Blob of shape (indices' shape, features), and the dtype of ``weight``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: of the table, g added to the rows that were taken, in the order of the indices.
    Source: ``torch.nn.functional.embedding``.
    Example:
        >>> table = xp.asarray([[0.0, 0.0], [1.0, 10.0], [2.0, 20.0]])
        >>> af.ops.embedding(xp.asarray([2, 0, 2]), table)
        Array([[ 2., 20.],
               [ 0.,  0.],
               [ 2., 20.]], dtype=float64)
    """
    rank_is("embedding", "weight", weight.spec, ("rows", "features"))
    return take(weight, indices, 0, name=name or "embedding")


def one_hot(indices: X, depth: int, dtype: npt.DTypeLike = "float32", name: str | None = None) -> X:
    """1 at the index along a new last axis, 0 elsewhere.

    Args:
        indices: Any shape, integers; an index that is not from 0 to ``depth - 1`` is an error on the CPU, and gives
            zeros on CUDA devices.
        depth: Length of the new axis, at least 1.
        dtype: Dtype of the result.
    Returns:
        Blob of shape (indices' shape, depth).
    Raises:
        GraphError: if ``depth`` is less than 1.
        DTypeError: if the indices are not integers.
    Gradient: none.
    Source: ``torch.nn.functional.one_hot``.
    Example:
        >>> af.ops.one_hot(xp.asarray([0, 2]), 3)
        Array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    return blob_of(OneHot(depth, TensorSpec.of((), dtype).dtype), indices, name=name)
