"""What normalizations by statistics share: checks, and the gradients of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.arithmetic import add, multiply, subtract
from actorflow.ops.basic import reshape
from actorflow.ops.broadcast import ReduceSum, sum_to
from actorflow.ops.convert import cast
from actorflow.ops.functional import apply
from actorflow.ops.powers import reciprocal, sqrt
from actorflow.ops.terms import scaled
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of statistics: at least float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def check_epsilon(kind: str, epsilon: float) -> None:
    """Check what is added to a variance.

    Raises:
        GraphError: if it is negative.
    """
    if not epsilon >= 0:
        raise GraphError(f"{kind}: epsilon must not be negative, got {epsilon}")


def shape_is(kind: str, shape: tuple[int, ...], of: str, **inputs: TensorSpec) -> None:
    """Check that inputs have the shape ``of`` what the message names.

    Raises:
        ShapeError: naming the argument that has not.
    """
    for name, spec in inputs.items():
        if spec.shape != shape:
            raise ShapeError(f"{kind}: {name} must have the shape of {of} {shape}, got {spec}")


def check_statistics(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], **inputs: TensorSpec) -> None:
    """Check that statistics have a shape, and the `wide_dtype` of what they are of.

    Raises:
        ShapeError, DTypeError: naming the argument that has not.
    """
    for name, spec in inputs.items():
        if spec != (shape, wide_dtype(dtype)):
            raise (ShapeError if spec.shape != shape else DTypeError)(
                f"{kind}: {name} must be {TensorSpec(shape, wide_dtype(dtype))}, got {spec}"
            )


class _Normalized:
    """What gradients of gradients are built from: ``x`` less its mean, over its deviation, of arrays that broadcast.

    Half precision is computed in the dtype of the statistics.
    """

    def __init__(self, x: Blob, mean: Blob, variance: Blob, epsilon: float) -> None:
        self.dtype = x.dtype
        self.deviations = reciprocal(sqrt(add(variance, epsilon)))
        self.x = multiply(subtract(self.wide(x), mean), self.deviations)

    def wide(self, x: Blob) -> Blob:
        """``x`` in the dtype of the statistics."""
        return x if x.dtype == wide_dtype(x.dtype) else cast(x, wide_dtype(x.dtype))

    def narrow(self, x: Blob) -> Blob:
        """``x`` in the dtype that it came in."""
        return x if x.dtype == self.dtype else cast(x, self.dtype)


def second(
    op: Op, grads: Sequence[Blob | None], axes: tuple[int, ...], epsilon: float, moved: bool
) -> Sequence[Blob | None]:
    """Gradients of ``(dx, dscale, dshift)`` of ``(g, x, scale, mean, variance)`` by ``g``, ``x`` and ``scale``.

    With ``n`` for the normalized ``x``, ``r`` for the inverse deviation, ``m`` for means and ``s = g * scale``:
    ``dx = P(s) = r * (s - m(s) - n * m(s * n))``, ``dscale = sum(g * n)`` and ``dshift = sum(g)``. Mean and variance
    follow ``x``, unless they are not ``moved``: then ``dx = r * s``.
    """
    g, x, scale, mean, variance = op.inputs
    keep = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    normal = _Normalized(x, reshape(mean, keep), reshape(variance, keep), epsilon)
    r, n = normal.deviations, normal.x
    count = math.prod(x.shape[i] for i in axes)

    def average(v: Blob) -> Blob:
        return scaled(apply(ReduceSum(axes, keepdims=True), v), 1 / max(count, 1))

    def project(v: Blob) -> Blob:
        if not moved:
            return multiply(r, v)
        rest = subtract(subtract(v, average(v)), multiply(n, average(multiply(v, n))))
        return multiply(r, rest)

    factor = normal.wide(scale)
    wide_g = normal.wide(g)
    s = multiply(wide_g, factor)
    c, c_scale, c_shift = (None if grad is None else normal.wide(grad) for grad in grads)
    by_g: list[Blob] = []
    by_n: list[Blob] = []  # what reaches x through n
    by_x: list[Blob] = []
    by_scale = None
    if c is not None:
        back = project(c)
        by_g.append(multiply(back, factor))
        by_scale = sum_to(multiply(back, wide_g), scale.shape)
        if moved:
            parts = [multiply(c, average(multiply(s, n))), multiply(s, average(multiply(c, n)))]
            by_n.append(scaled(multiply(r, add(*parts)), -1.0))
            by_x.append(scaled(multiply(multiply(r, n), average(multiply(c, project(s)))), -1.0))
    if c_scale is not None:
        by_g.append(multiply(n, c_scale))
        by_n.append(multiply(wide_g, c_scale))
    if c_shift is not None:
        by_g.append(add(multiply(n, 0.0), c_shift))
    by_x += [project(add(*by_n))] if by_n else []
    return [
        normal.narrow(add(*by_g)),
        normal.narrow(add(*by_x)) if by_x else None,
        None if by_scale is None else normal.narrow(by_scale),
        None,
        None,
    ]
