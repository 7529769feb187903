"""Activations: relu, sigmoid, tanh, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import ShapeError
from actorflow.ops.functional import apply
from actorflow.ops.operation import Operation, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.node import Blob, Op

__all__ = [
    "Relu",
    "ReluDown",
    "Sigmoid",
    "SigmoidDown",
    "Softmax",
    "SoftmaxDown",
    "Tanh",
    "TanhDown",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]


class _Down(Operation):
    """``dx`` from ``g`` and the output ``y``, elementwise."""

    arguments = ("g", "y")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``y``."""
        g, y = inputs
        same_dtype(self.kind, g=g, y=y)
        if g.shape != y.shape:
            raise ShapeError(f"{self.kind}: g must have y's shape {y.shape}, got {g}")
        return (y,)


@dataclass(frozen=True)
class ReluDown(_Down):
    """``dx = g`` where ``y > 0``, else 0. Source: Purine2 ``ActivationDown`` (relu)."""


@dataclass(frozen=True)
class SigmoidDown(_Down):
    """``dx = g * y * (1 - y)``. Source: Purine2 ``ActivationDown`` (sigmoid)."""


@dataclass(frozen=True)
class TanhDown(_Down):
    """``dx = g * (1 - y * y)``. Source: Purine2 ``ActivationDown`` (tanh)."""


class _Activation(Operation):
    """``y`` from ``x``, elementwise."""

    down: ClassVar[Operation]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_dtype(self.kind, x=inputs[0])
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """From the output."""
        assert grads[0] is not None
        return [apply(self.down, grads[0], op.outputs[0])]


@dataclass(frozen=True)
class Relu(_Activation):
    """``y = max(x, 0)``; see `relu`."""

    down = ReluDown()


@dataclass(frozen=True)
class Sigmoid(_Activation):
    """``y = 1 / (1 + exp(-x))``; see `sigmoid`."""

    down = SigmoidDown()


@dataclass(frozen=True)
class Tanh(_Activation):
    """``y = tanh(x)``; see `tanh`."""

    down = TanhDown()


@dataclass(frozen=True)
class Softmax(Operation):
    """``y = exp(x) / sum(exp(x))`` along an axis; see `softmax`.

    Attributes:
        axis: The axis that sums to 1.
    """

    axis: int = -1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            ShapeError: if ``x`` does not have the axis, or nothing on it.
        """
        (x,) = inputs
        same_dtype("Softmax", x=x)
        rank = len(x.shape)
        if not -rank <= self.axis < rank:
            raise ShapeError(f"Softmax: x must have an axis {self.axis}, got {x}")
        if x.shape[self.axis] == 0:
            raise ShapeError(f"Softmax: x must have at least 1 element on axis {self.axis}, got {x}")
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`SoftmaxDown`."""
        assert grads[0] is not None
        return [apply(SoftmaxDown(self.axis), grads[0], op.outputs[0])]


@dataclass(frozen=True)
class SoftmaxDown(_Down):
    """``dx = y * (g - sum(g * y))`` along an axis: the gradient of `Softmax`.

    Source: Purine2 ``SoftmaxDown``.

    Attributes:
        axis: As in `Softmax`.
    """

    axis: int = -1


def relu(x: Blob, name: str | None = None) -> Blob:
    """The positive part: ``y = max(x, 0)``.

    Args:
        x: Any shape, floating.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Gradient: g where x > 0, else 0.
    Source: Purine2 ``Activation`` (relu).
    """
    y: Blob = apply(Relu(), x, name=name)
    return y


def sigmoid(x: Blob, name: str | None = None) -> Blob:
    """The logistic function: ``y = 1 / (1 + exp(-x))``.

    Args:
        x: Any shape, floating.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Gradient: g * y * (1 - y).
    Source: Purine2 ``Activation`` (sigmoid).
    """
    y: Blob = apply(Sigmoid(), x, name=name)
    return y


def tanh(x: Blob, name: str | None = None) -> Blob:
    """The hyperbolic tangent.

    Args:
        x: Any shape, floating.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Gradient: g * (1 - y * y).
    Source: Purine2 ``Activation`` (tanh).
    """
    y: Blob = apply(Tanh(), x, name=name)
    return y


def softmax(x: Blob, axis: int = -1, name: str | None = None) -> Blob:
    """Probabilities along an axis: ``y = exp(x) / sum(exp(x))``, computed without overflow.

    Args:
        x: Any shape with at least one axis, floating.
        axis: The axis that sums to 1: the last one for classes or channels.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axis.
    Gradient: y * (g - sum(g * y)).
    Source: Purine2 ``Softmax``.
    """
    y: Blob = apply(Softmax(axis), x, name=name)
    return y
