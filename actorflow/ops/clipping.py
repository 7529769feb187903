"""Gradients limited by the norm of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.arithmetic import divide
from actorflow.ops.compare import less, where
from actorflow.ops.convert import cast
from actorflow.ops.functional import apply, whole
from actorflow.ops.operation import Operation, same_dtype
from actorflow.ops.powers import sqrt
from actorflow.ops.terms import plus, scaled, times, total
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op

_SCALAR = TensorSpec((), np.dtype(np.float64))


@dataclass(frozen=True)
class SquareSum(Operation):
    """``y = sum(x ** 2)`` over all elements, in float64 whatever the dtype of ``x``."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """A 0-d float64."""
        same_dtype("SquareSum", x=inputs[0])
        return (_SCALAR,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``2 * g * x``."""
        assert grads[0] is not None
        return [apply(ScaleBy(), op.inputs[0], scaled(grads[0], 2.0))]


@dataclass(frozen=True)
class NormFactor(Operation):
    """``y = min(1, max_norm / (sqrt(squares[0] + squares[1] + ...) + 1e-6))``; nan where the norm is.

    Attributes:
        max_norm: Norm that a gradient scaled by this has at most, positive.

    Source: PyTorch ``clip_grad_norm_``.
    """

    arguments = ("*squares",)

    max_norm: float

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """A 0-d float64.

        Raises:
            GraphError: if ``max_norm`` is not positive.
            ShapeError, DTypeError: if one of ``squares`` is no 0-d float64.
        """
        if not self.max_norm > 0:
            raise GraphError(f"NormFactor: max_norm must be positive, got {self.max_norm}")
        for i, spec in enumerate(inputs):
            _check_scalar("NormFactor", f"squares[{i}]", spec)
        return (_SCALAR,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``-g * y * y / (2 * max_norm * norm)`` for each, where the norm is limited, else 0."""
        (g,), (y,) = grads, op.outputs
        assert g is not None
        limits = less(y, 1.0)
        norm = sqrt(where(limits, plus(*op.inputs), 1.0))  # elsewhere it may be 0, where the root has no slope
        slope = divide(times(times(g, y), y), scaled(norm, -2.0 * self.max_norm))
        return [where(limits, slope, 0.0)] * len(op.inputs)


@dataclass(frozen=True)
class ScaleBy(Operation):
    """``y = factor * x``, with a factor that is computed."""

    arguments = ("x", "factor")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            ShapeError, DTypeError: if ``factor`` is no 0-d float64.
        """
        x, factor = inputs
        same_dtype("ScaleBy", x=x)
        _check_scalar("ScaleBy", "factor", factor)
        return (x,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient, scaled as well, and its product with ``x``, summed in float64."""
        (g,), (x, factor) = grads, op.inputs
        assert g is not None
        by_factor = total(times(cast(g, "float64"), cast(x, "float64"))) if wanted[1] else None
        return [apply(self, g, factor), by_factor]


@whole
def clip_by_global_norm(grads: Sequence[Blob], max_norm: float, name: str | None = None) -> list[Blob]:
    """Gradients scaled by one factor, so that the norm of all their elements together is at most ``max_norm``.

    Each gradient's share of the norm is summed as soon as it is there, on its place; no scaled gradient is there before
    all are.

    Args:
        grads: One or more blobs of any shapes, floating.
        max_norm: Positive.
        name: Name of the op that computes the factor.
    Returns:
        One blob per gradient, of its type.
    Raises:
        GraphError: if there are no gradients, or ``max_norm`` is not positive.
        DTypeError: if a gradient is not floating.
    Gradient: by all gradients, through the norm, too; the norm's share is 0 where it is not limited.
    Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013; the factor is
        that of PyTorch's ``clip_grad_norm_``.
    """
    if not grads:
        raise GraphError("clip_by_global_norm: give at least one gradient")
    root = grads[0].graph.root
    squares = []
    for grad in grads:
        with root.at(grad.place):
            squares.append(apply(SquareSum(), grad))
    places = {grad.place for grad in grads}
    with root.at(places.pop() if len(places) == 1 else "cpu"):
        factor = apply(NormFactor(max_norm), *squares, name=name)
    clipped = []
    for grad in grads:
        with root.at(grad.place):
            clipped.append(apply(ScaleBy(), grad, factor))
    return clipped


def _check_scalar(kind: str, name: str, spec: TensorSpec) -> None:
    if spec.shape:
        raise ShapeError(f"{kind}: {name} must have shape (), got {spec}")
    if spec.dtype != _SCALAR.dtype:
        raise DTypeError(f"{kind}: {name} must be float64, got {spec}")
