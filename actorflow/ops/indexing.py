"""Parts of a blob, by slices and by indices, and borders around it; the gradients put parts back."""

from __future__ import annotations

from builtins import slice as _slice
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.operation import Application, Grads, Operation, apply, axes_of, blob_of, rank_is, same_numbers, whole
from actorflow.ops.shaping import Axis, reshape
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


PadMode = Literal["constant", "reflect", "edge", "wrap"]
#: An index of one axis of a blob; None is a new axis.
Index = Any


@dataclass(frozen=True)
class Slice(Operation):
    """``y = x[start:stop:step]`` along each axis, a view of ``x`` on the CPU; see `slice`.

    Attributes:
        starts: First index along each axis, not negative.
        stops: Bound along each axis, at most its length.
        steps: Distance along each axis, positive.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """The key that picks the part from an array."""
        return (*map(_slice, self.starts, self.stops, self.steps), ...)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        bounds = list(zip(self.starts, self.stops, self.steps, strict=True))
        if len(bounds) != len(x.shape) or any(
            not 0 <= start <= stop <= n or step < 1 for (start, stop, step), n in zip(bounds, x.shape, strict=True)
        ):
            raise ShapeError(f"{self.kind}: x must have a part {bounds} (start, stop, step along each axis), got {x}")
        return (TensorSpec(tuple([len(range(*bound)) for bound in bounds]), x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(SliceDown(self.starts, self.stops, self.steps, op.inputs[0].shape), grads[0])]


@dataclass(frozen=True)
class SliceDown(Operation):
    """``g`` at its place among zeros: the gradient of `Slice`.

    Attributes:
        starts: As in `Slice`.
        stops: As in `Slice`.
        steps: As in `Slice`.
        shape: The shape of the whole.
    """

    arguments = ("g",)

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def part(self) -> Slice:
        """The key that picks ``g`` from the result."""
        return Slice(self.starts, self.stops, self.steps)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (g,) = inputs
        whole = TensorSpec(self.shape, g.dtype)
        (part,) = self.part.infer(whole)
        if part.shape != g.shape:
            raise ShapeError(f"SliceDown: g must have shape {part.shape}, got {g}")
        return (whole,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(self.part, grads[0])]


@dataclass(frozen=True)
class Flip(Operation):
    """``x`` in reverse order along axes; see `flip`."""

    axis: tuple[int, ...] | None = None

    def key(self, rank: int) -> tuple[Any, ...]:
        """The key that picks the result from an array of ``rank`` axes."""
        axes = range(rank) if self.axis is None else axes_of("Flip", self.axis, rank)
        return (*[_slice(None, None, -1 if i in axes else 1) for i in range(rank)], ...)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.key(len(inputs[0].shape))
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
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
class Pad(Operation):
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

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        shape = op.inputs[0].shape
        if self.mode != "constant":
            return [apply(PadDown(self.widths, self.mode), grads[0])]
        starts = tuple([before for before, _ in self.widths])
        stops = tuple([start + n for start, n in zip(starts, shape, strict=True)])
        return [apply(Slice(starts, stops, (1,) * len(shape)), grads[0])]


@dataclass(frozen=True)
class PadDown(Operation):
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
        if min(shape, default=0) < 0:
            raise ShapeError(f"PadDown: g must have a border of {self.widths}, got {g}")
        _check_widths("PadDown", self.widths, shape, self.mode)
        return (TensorSpec(shape, g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(Pad(self.widths, self.mode), grads[0])]


@whole
def slice(x: Blob, key: Index, name: str | None = None) -> Blob:
    """A part of a blob: ``y = x[key]``, for NumPy's basic indices.

    Write keys with `numpy.s_`: ``af.ops.slice(x, np.s_[:, 1:-1, ::2])``.

    Args:
        x: Any shape and dtype.
        key: Integers, slices (with any step but 0), one ellipsis and None (a new axis), or a tuple of them.
    Returns:
        Blob of the part's shape; on the CPU it shares the memory of ``x``, unless a step is negative.
    Raises:
        ShapeError: if ``x`` does not have an index, or not as many axes.
        GraphError: if a part of the key is something else.
    Gradient: g among zeros.
    Source: Minerva ``slice``, `numpy.ndarray.__getitem__`.
    """
    bounds: list[range] = []
    shape: list[int] = []
    for part in _full_key(key, x):
        if part is None:
            shape.append(1)
            continue
        n = x.shape[len(bounds)]
        if isinstance(part, _slice):
            bounds.append(range(n)[part])
            shape.append(len(bounds[-1]))
            continue
        if not -n <= part < n:
            raise ShapeError(f"slice: index {part} is out of range on axis {len(bounds)}, got x {x.spec}")
        bounds.append(range(part % n, part % n + 1))
    backwards = tuple([axis for axis, bound in enumerate(bounds) if bound.step < 0])
    upwards = [(b[::-1] if b.step < 0 else b) if len(b) else range(0) for b in bounds]
    starts, stops = [b.start for b in upwards], [b[-1] + 1 if len(b) else 0 for b in upwards]
    last = tuple(map(len, bounds)) == tuple(shape)
    y: Blob = apply(
        Slice(tuple(starts), tuple(stops), tuple([b.step for b in upwards])),
        x,
        name=name if last and not backwards else None,
    )
    if backwards:
        y = apply(Flip(backwards), y, name=name if last else None)
    return y if last else reshape(y, shape, name=name)


def _full_key(key: Index, x: Blob) -> list[Any]:
    """The key, checked, with a slice for each axis that it does not speak of."""
    parts = [
        int(part) if isinstance(part, np.integer) else part for part in (key if isinstance(key, tuple) else (key,))
    ]
    for part in parts:
        if isinstance(part, bool) or not (part is None or isinstance(part, _slice | EllipsisType | int)):
            raise GraphError(f"slice: key must be of integers, slices, ... and None, got {part!r}")
    gaps = [i for i, part in enumerate(parts) if part is ...]
    if len(gaps) > 1:
        raise GraphError("slice: key can have one ellipsis")
    missing = len(x.shape) - sum(part is not None and part is not ... for part in parts)
    if missing < 0:
        raise ShapeError(f"slice: key is of {len(x.shape) - missing} axes, got x {x.spec}")
    at = gaps[0] if gaps else len(parts)
    return [*parts[:at], *[_slice(None)] * missing, *parts[at + 1 :]]


def flip(x: Blob, axis: Axis = None, name: str | None = None) -> Blob:
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
    """
    return blob_of(Flip(None if axis is None else axes_of("flip", axis, len(x.shape))), x, name=name)


def pad(
    x: Blob,
    widths: int | Sequence[int | Sequence[int]],
    mode: PadMode = "constant",
    value: float = 0.0,
    name: str | None = None,
) -> Blob:
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
    """
    each = [widths] * len(x.shape) if isinstance(widths, int) else list(widths)
    pairs = [(width, width) if isinstance(width, int) else tuple(width) for width in each]
    for pair in pairs:
        if len(pair) != 2:
            raise ShapeError(f"pad: widths must be one or two numbers for each axis, got {pair}")
    return blob_of(Pad(tuple([(before, after) for before, after in pairs]), mode, value), x, name=name)


def _check_indices(kind: str, indices: TensorSpec) -> None:
    if indices.dtype.kind not in "iu":
        raise DTypeError(f"{kind}: indices must be of integers, got {indices}")


@dataclass(frozen=True)
class Take(Operation):
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

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        x, indices = op.inputs
        (axis,) = axes_of("Take", self.axis, len(x.shape))
        return [apply(TakeDown(x.shape[axis], axis), grads[0], indices), None]


@dataclass(frozen=True)
class TakeDown(Operation):
    """``dx``: each part of ``g`` added where it was taken from; the gradient of `Take`.

    Parts that were taken several times are summed in the order of the indices, whatever the timing.

    Attributes:
        length: Length of the axis in ``x``.
        axis: As in `Take`, not negative.
    """

    arguments = ("g", "indices")

    length: int
    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, indices = inputs
        _check_indices("TakeDown", indices)
        same_numbers("TakeDown", g=g)
        stop = self.axis + len(indices.shape)
        if g.shape[self.axis : stop] != indices.shape:
            raise ShapeError(f"TakeDown: g must have shape {indices.shape} from axis {self.axis} on, got {g}")
        return (TensorSpec((*g.shape[: self.axis], self.length, *g.shape[stop:]), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(Take(self.axis), grads[0], op.inputs[1]), None]


@dataclass(frozen=True)
class TakeAlongAxis(Operation):
    """``y = x`` at an index of one axis for each element of ``y``; see `take_along_axis`."""

    arguments = ("x", "indices")

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

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        x, indices = op.inputs
        (axis,) = axes_of(self.kind, self.axis, len(x.shape))
        return [apply(TakeAlongAxisDown(x.shape[axis], axis), grads[0], indices), None]


@dataclass(frozen=True)
class TakeAlongAxisDown(Operation):
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
        return (TensorSpec((*g.shape[: self.axis], self.length, *g.shape[self.axis + 1 :]), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
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

    depth: int
    dtype: np.dtype[np.generic]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_indices("OneHot", inputs[0])
        if self.depth < 1:
            raise GraphError(f"OneHot: depth must be at least 1, got {self.depth}")
        return (TensorSpec((*inputs[0].shape, self.depth), self.dtype),)


def take(x: Blob, indices: Blob, axis: int = 0, name: str | None = None) -> Blob:
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
    Gradient: g, added where its parts were taken from, in the order of the indices.
    Source: `numpy.take`.
    """
    return blob_of(Take(axis), x, indices, name=name)


def take_along_axis(x: Blob, indices: Blob, axis: int = 0, name: str | None = None) -> Blob:
    """For each element of the result, the element of ``x`` at its index along an axis.

    Args:
        x: At least one axis, any dtype.
        indices: The shape of ``x`` but for the axis, integers as in `take`.
        axis: Axis that the indices are of, counted from the end if negative.
    Returns:
        Blob of the shape of ``indices``, and the dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: g, added where its elements were taken from, in order.
    Source: `numpy.take_along_axis`, ``torch.gather``.
    """
    return blob_of(TakeAlongAxis(axis), x, indices, name=name)


def embedding(indices: Blob, weight: Blob, name: str | None = None) -> Blob:
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
    """
    rank_is("embedding", "weight", weight.spec, ("rows", "features"))
    return take(weight, indices, 0, name=name or "embedding")


def one_hot(indices: Blob, depth: int, dtype: npt.DTypeLike = "float32", name: str | None = None) -> Blob:
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
    """
    return blob_of(OneHot(depth, TensorSpec.of((), dtype).dtype), indices, name=name)
