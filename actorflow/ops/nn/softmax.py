"""Softmax and log-softmax along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.errors import ShapeError
from actorflow.ops.elementwise import plus, scaled, times
from actorflow.ops.fills import constant_like
from actorflow.ops.operation import Application, Grads, Operation, apply, blob_of, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


def _check_axis(kind: str, axis: int, x: TensorSpec) -> None:
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise ShapeError(f"{kind}: x must have an axis {axis}, got {x}")
    if x.shape[axis] == 0:
        raise ShapeError(f"{kind}: x must have at least 1 element on axis {axis}, got {x}")


def _check_pair(kind: str, axis: int, **inputs: TensorSpec) -> TensorSpec:
    same_dtype(kind, **inputs)
    (first, value), (second, other) = inputs.items()
    if value.shape != other.shape:
        raise ShapeError(f"{kind}: {first} must have {second}'s shape {other.shape}, got {value}")
    _check_axis(kind, axis, other)
    return other


@dataclass(frozen=True)
class _Softmax(Operation):
    axis: int = -1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype(self.kind, x=inputs[0])
        _check_axis(self.kind, self.axis, inputs[0])
        return inputs


@dataclass(frozen=True)
class Softmax(_Softmax):
    """``y = exp(x) / sum(exp(x))`` along an axis; see `softmax`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(SoftmaxDown(self.axis), grads[0], op.outputs[0])]


@dataclass(frozen=True)
class SoftmaxDown(Operation):
    """``dx = y * (g - sum(g * y))`` along an axis: the gradient of `Softmax`.

    Source: Purine2 ``SoftmaxDown``.
    """

    arguments = ("g", "y")

    axis: int = -1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (_check_pair("SoftmaxDown", self.axis, g=inputs[0], y=inputs[1]),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """By ``g`` the same; by ``y``: ``c * (g - sum(g * y)) - g * sum(c * y)``."""
        (c,), (g, y) = grads, op.inputs
        dy = None
        if wanted[1]:
            products = [times(c, apply(Centered(self.axis), g, y)), times(g, apply(Centered(self.axis), c, y))]
            dy = plus(*products, scaled(times(g, c), -1.0))
        return [apply(self, c, y) if wanted[0] else None, dy]


@dataclass(frozen=True)
class LogSoftmax(_Softmax):
    """``y = x - log(sum(exp(x)))`` along an axis; see `log_softmax`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(LogSoftmaxDown(self.axis), grads[0], op.outputs[0])]


@dataclass(frozen=True)
class LogSoftmaxDown(Operation):
    """``dx = g - exp(y) * sum(g)`` along an axis: the gradient of `LogSoftmax`."""

    arguments = ("g", "y")

    axis: int = -1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (_check_pair("LogSoftmaxDown", self.axis, g=inputs[0], y=inputs[1]),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return self.products(grads[0], op.inputs[0], op.inputs[1], wanted)

    def products(self, c: Blob, g: Blob, y: Blob, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Gradients by ``g``, ``c - sum(c * exp(y))``, and by ``y``, ``-c * exp(y) * sum(g)``.

        ``exp(y)`` is the softmax of ``y``.
        """
        return [
            apply(Centered(self.axis), c, softmax(y, self.axis)) if wanted[0] else None,
            times(c, plus(apply(self, g, y), scaled(g, -1.0))) if wanted[1] else None,
        ]


@dataclass(frozen=True)
class Centered(Operation):
    """``y = x - sum(x * weight)`` along an axis: what the gradients of softmax's gradients are made of.

    Attributes:
        axis: The axis that is summed over.
    """

    arguments = ("x", "weight")

    axis: int = -1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (_check_pair("Centered", self.axis, weight=inputs[1], x=inputs[0]),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """By ``x``: ``g - weight * sum(g)``; by ``weight``: ``-x * sum(g)``."""
        (g,), (x, weight) = grads, op.inputs
        ones = constant_like(1.0, g)
        minus_sum = plus(apply(Centered(self.axis), g, ones), scaled(g, -1.0))
        return [plus(g, times(weight, minus_sum)) if wanted[0] else None, times(x, minus_sum) if wanted[1] else None]


def softmax(x: Blob, axis: int = -1, name: str | None = None) -> Blob:
    """Probabilities along an axis: ``y = exp(x) / sum(exp(x))``, computed without overflow.

    Args:
        x: Any shape with at least one axis, floating.
        axis: The axis that sums to 1: the last one for classes or channels.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axis.
    Gradient: y * (g - sum(g * y)).
    Source: Purine2 ``Softmax``.
    """
    return blob_of(Softmax(axis), x, name=name)


def log_softmax(x: Blob, axis: int = -1, name: str | None = None) -> Blob:
    """Logarithms of probabilities along an axis: ``y = x - log(sum(exp(x)))``, computed without overflow.

    Args:
        x: Any shape with at least one axis, floating.
        axis: The axis whose exponentials sum to 1: the last one for classes or channels.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axis.
    Gradient: g - exp(y) * sum(g).
    """
    return blob_of(LogSoftmax(axis), x, name=name)
