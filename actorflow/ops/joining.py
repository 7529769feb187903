"""Joining blobs along an axis, and taking them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.basic import expand_dims
from actorflow.ops.broadcast import broadcast_to, number_like
from actorflow.ops.functional import apply, blob_of, whole
from actorflow.ops.operation import Operation, axes_of
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class Concat(Operation):
    """Parts one after the other along an axis; see `concat`.

    Source: Purine2 ``Concat``.

    Attributes:
        axis: Where they are joined.
    """

    arguments = ("*parts",)

    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape of the parts, their lengths along the axis added up.

        Raises:
            ShapeError, DTypeError: if the parts do not fit.
        """
        first = inputs[0]
        (axis,) = axes_of("Concat", self.axis, len(first.shape))
        for i, part in enumerate(inputs):
            if part.dtype != first.dtype:
                raise DTypeError(f"Concat: parts[{i}] must have parts[0]'s dtype {first.dtype}, got {part}")
            if len(part.shape) != len(first.shape) or any(
                n != m for k, (n, m) in enumerate(zip(part.shape, first.shape, strict=True)) if k != axis
            ):
                raise ShapeError(
                    f"Concat: parts[{i}] must have parts[0]'s shape beside axis {axis}, {first}, got {part}"
                )
        length = sum(part.shape[axis] for part in inputs)
        return (TensorSpec((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient taken apart."""
        assert grads[0] is not None
        lengths = tuple([part.shape[self.axis] for part in op.inputs])
        shares = apply(Split(lengths, self.axis), grads[0])
        return [shares] if len(lengths) == 1 else list(shares)


@dataclass(frozen=True)
class Split(Operation):
    """Pieces of ``x`` along an axis, views of it on the CPU; see `split`.

    Source: Purine2 ``Split``.

    Attributes:
        lengths: Of the pieces.
        axis: Where ``x`` is cut.
    """

    lengths: tuple[int, ...]
    axis: int = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """A type for each piece.

        Raises:
            ShapeError: if the lengths do not add up.
        """
        (x,) = inputs
        (axis,) = axes_of("Split", self.axis, len(x.shape))
        if not self.lengths or min(self.lengths) < 0 or sum(self.lengths) != x.shape[axis]:
            raise ShapeError(f"Split: lengths {self.lengths} must add up to that of x on axis {axis}, got {x}")
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return tuple([TensorSpec((*before, length, *after), x.dtype) for length in self.lengths])

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradients joined; pieces that the loss does not depend on have zeros."""
        some = next(g for g in grads if g is not None)
        parts = [
            broadcast_to(number_like(0.0, some), y.shape) if g is None else g
            for g, y in zip(grads, op.outputs, strict=True)
        ]
        return [apply(Concat(self.axis), *parts)]


def concat(parts: Sequence[Blob], axis: int = 0, name: str | None = None) -> Blob:
    """Blobs one after the other along an axis; each is copied once.

    Args:
        parts: One or more blobs of one dtype, and one shape but for the axis.
        axis: Where they are joined, counted from the end if negative.
        name: Name of the op.
    Returns:
        Blob whose length along the axis is the sum of theirs.
    Raises:
        ShapeError, DTypeError: if the parts do not fit; the message names the one.
    Gradient: g taken apart, without copies on the CPU.
    Source: Purine2 ``Concat``.
    """
    return blob_of(Concat(axis), *parts, name=name)


@whole
def stack(parts: Sequence[Blob], axis: int = 0, name: str | None = None) -> Blob:
    """Blobs joined along a new axis.

    Args:
        parts: One or more blobs of one type.
        axis: Where the new axis is in the result, counted from its end if negative.
        name: Name of the op.
    Returns:
        Blob with one axis more, as long as there are parts.
    Raises:
        ShapeError, DTypeError: if the parts differ; the message names the one.
    Gradient: g taken apart.
    Source: `numpy.stack`.
    """
    for i, part in enumerate(parts):
        if part.shape != parts[0].shape:
            raise ShapeError(f"stack: parts[{i}] must have parts[0]'s shape {parts[0].shape}, got {part.spec}")
    return concat([expand_dims(part, axis) for part in parts], axis, name=name or "stack")


def split(x: Blob, parts: int | Sequence[int], axis: int = 0, name: str | None = None) -> list[Blob]:
    """Pieces of a blob along an axis; on the CPU they share its memory.

    Args:
        x: At least one axis, any dtype.
        parts: How many pieces of one length, or the length of each.
        axis: Where it is cut, counted from the end if negative.
        name: Name of the op.
    Returns:
        A blob for each piece.
    Raises:
        ShapeError: if ``x`` does not have the axis, or cannot be cut so.
    Gradient: the gradients of the pieces, joined.
    Source: Purine2 ``Split``. (The lengths are given, as in PyTorch, not the positions, as in NumPy.)
    """
    (axis,) = axes_of("split", axis, len(x.shape))
    if isinstance(parts, int):
        if parts < 1 or x.shape[axis] % parts:
            raise ShapeError(f"split: x must have a length on axis {axis} that {parts} divides, got {x.spec}")
        parts = [x.shape[axis] // parts] * parts
    pieces = apply(Split(tuple(parts), axis), x, name=name)
    return [pieces] if len(parts) == 1 else list(pieces)
