"""The product along axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.errors import ShapeError
from actorflow.ops.basic import reshape
from actorflow.ops.broadcast import Axis, Reduction, expand_like, normal_axes, summed_dtype
from actorflow.ops.convert import transpose
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.joining import concat, split
from actorflow.ops.operation import Operation, same_dtype, same_numbers
from actorflow.ops.slicing import pad
from actorflow.ops.terms import plus, times
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class ReduceProd(Reduction):
    """The product along axes; see `prod`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The remaining shape; integers are multiplied in 64 bits."""
        same_numbers(self.kind, ordered=True, x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), summed_dtype(inputs[0].dtype)),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`ReduceProdDown`."""
        assert grads[0] is not None
        x = op.inputs[0]
        return [apply(ReduceProdDown(self.axis), expand_like(self, grads[0], x), x)]


@dataclass(frozen=True)
class ReduceProdDown(Operation):
    """``dx = g * product of all other elements``: the gradient of `ReduceProd`, also where elements are 0.

    Attributes:
        axis: As in `ReduceProd`.
    """

    arguments = ("g", "x")

    axis: tuple[int, ...] | None = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            ShapeError: if ``g`` has not length 1 along the axes, and else that of ``x``.
        """
        g, x = inputs
        same_dtype("ReduceProdDown", g=g, x=x)
        shape = Reduction(self.axis, keepdims=True).reduced(x)
        if g.shape != shape:
            raise ShapeError(f"ReduceProdDown: g must have shape {shape}, got {g}")
        return (x,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Built from products only, so that elements may be 0; see `_tree`."""
        (c,), (g, x) = grads, op.inputs
        assert c is not None
        reduction, rank = Reduction(self.axis), len(x.shape)
        if not x.spec.size:
            return [None, None]
        axes = reduction.axes(rank)
        order = [*[axis for axis in range(rank) if axis not in axes], *axes]
        rows = (-1, reduction.count(x.spec))
        by_g, by_x = _tree(reshape(g, (-1, 1)), reshape(transpose(x, order), rows), reshape(transpose(c, order), rows))
        back = [order.index(axis) for axis in range(rank)]
        return [
            reshape(by_g, g.shape),
            None if by_x is None else transpose(reshape(by_x, [x.shape[axis] for axis in order]), back),
        ]


def _tree(g: Blob, x: Blob, c: Blob) -> tuple[Blob, Blob | None]:
    """The gradient of `ReduceProdDown` by its inputs, over the last of two axes.

    It is that of ``d``, the derivative of the product of ``x`` where ``x`` moves along ``c``. Product and derivative
    of a row come from those of its halves, ``(p * q, dp * q + p * dq)``; back through these the gradient needs no
    division, and as many operations as a row can be halved.

    Args:
        g: Shape (rows, 1).
        x: Shape (rows, n), with n at least 1.
        c: The gradient by the output, likewise.
    Returns:
        The gradients by ``g`` and by ``x``, of which the latter is None for single elements: it is 0.
    """
    halves = []
    while (width := x.shape[1]) > 1:
        if width % 2:
            border = ((0, 0), (0, 1))
            x, c = pad(x, border, value=1.0), pad(c, border)
        (p, q), (dp, dq) = split(x, 2, axis=1), split(c, 2, axis=1)
        halves.append((width, p, q, dp, dq))
        x, c = times(p, q), plus(times(dp, q), times(p, dq))
    by_x = None
    for width, p, q, dp, dq in reversed(halves):
        by_p, by_q = [times(g, dq)], [times(g, dp)]
        if by_x is not None:
            by_p.append(times(by_x, q))
            by_q.append(times(by_x, p))
        by_x = _first(concat([plus(*by_p), plus(*by_q)], axis=1), width)
        g = _first(concat([times(g, q), times(g, p)], axis=1), width)
    return c, by_x


def _first(x: Blob, width: int) -> Blob:
    """The first columns."""
    return x if x.shape[1] == width else split(x, [width, x.shape[1] - width], axis=1)[0]


def prod(x: Blob, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Blob:
    """The product along axes.

    Args:
        x: Any shape, integer or floating.
        axis: One axis or several, negative ones counted from the end; by default all.
        keepdims: Whether the axes stay, with length 1.
        name: Name of the op.
    Returns:
        Blob of the remaining shape, of the dtype of ``x``; integers are multiplied in 64 bits.
    Raises:
        ShapeError: if ``x`` does not have the axes.
        DTypeError: if ``x`` is of another kind.
    Gradient: g times the product of all other elements.
    Source: `numpy.prod`.
    """
    return blob_of(ReduceProd(normal_axes(axis), keepdims), x, name=name)
