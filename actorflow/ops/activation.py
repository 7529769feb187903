"""Activations, elementwise; here those whose gradient is computed from the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, same_dtype
from actorflow.ops.terms import plus, scaled, times
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


class ActivationDown(Operation):
    """``dx`` from ``g`` and the output ``y``, elementwise; linear in ``g``."""

    arguments: ClassVar[tuple[str, ...]] = ("g", "y")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of the second input."""
        (g, value), other = inputs, self.arguments[1]
        same_dtype(self.kind, g=g, **{other: value})
        if g.shape != value.shape:
            raise ShapeError(f"{self.kind}: g must have {other}'s shape {value.shape}, got {g}")
        return (value,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """By ``g`` the same operation; by the other input what its second derivative says."""
        (c,), (g, value) = grads, op.inputs
        assert c is not None
        return [apply(self, c, value) if wanted[0] else None, self.curve(times(c, g), value) if wanted[1] else None]

    def curve(self, p: Blob, value: Blob) -> Blob | None:
        """``p`` times the derivative of the slope by ``value``; None where that is 0."""
        return None


@dataclass(frozen=True)
class ReluDown(ActivationDown):
    """``dx = g`` where ``y > 0``, else 0. Source: Purine2 ``ActivationDown`` (relu)."""


@dataclass(frozen=True)
class SigmoidDown(ActivationDown):
    """``dx = g * y * (1 - y)``. Source: Purine2 ``ActivationDown`` (sigmoid)."""

    def curve(self, p: Blob, value: Blob) -> Blob:
        """``p * (1 - 2 * y)``."""
        return plus(p, scaled(times(p, value), -2.0))


@dataclass(frozen=True)
class TanhDown(ActivationDown):
    """``dx = g * (1 - y * y)``. Source: Purine2 ``ActivationDown`` (tanh)."""

    def curve(self, p: Blob, value: Blob) -> Blob:
        """``-2 * p * y``."""
        return scaled(times(p, value), -2.0)


@dataclass(frozen=True)
class LeakyReluDown(ActivationDown):
    """``dx = g`` where ``y > 0``, else ``slope * g``.

    Attributes:
        slope: As in `LeakyRelu`.
    """

    slope: float = 0.01


@dataclass(frozen=True)
class EluDown(ActivationDown):
    """``dx = g`` where ``y > 0``, else ``g * (y + alpha)``.

    Attributes:
        alpha: As in `Elu`.
    """

    alpha: float = 1.0

    def curve(self, p: Blob, value: Blob) -> Blob | None:
        """``p`` where ``y <= 0``, else 0."""
        return plus(p, scaled(apply(ReluDown(), p, value), -1.0))


class Activation(Operation):
    """``y`` from ``x``, elementwise."""

    #: Whether the gradient is computed from ``y``, not from ``x``.
    from_output: ClassVar[bool] = True

    @property
    def down(self) -> Operation:
        """The operation of the gradient."""
        raise NotImplementedError

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_dtype(self.kind, x=inputs[0])
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`down`, from the output or the input."""
        assert grads[0] is not None
        return [apply(self.down, grads[0], (op.outputs if self.from_output else op.inputs)[0])]


@dataclass(frozen=True)
class Relu(Activation):
    """``y = max(x, 0)``; see `relu`."""

    @property
    def down(self) -> Operation:
        """`ReluDown`."""
        return ReluDown()


@dataclass(frozen=True)
class Sigmoid(Activation):
    """``y = 1 / (1 + exp(-x))``; see `sigmoid`."""

    @property
    def down(self) -> Operation:
        """`SigmoidDown`."""
        return SigmoidDown()


@dataclass(frozen=True)
class Tanh(Activation):
    """``y = tanh(x)``; see `tanh`."""

    @property
    def down(self) -> Operation:
        """`TanhDown`."""
        return TanhDown()


@dataclass(frozen=True)
class LeakyRelu(Activation):
    """``y = x`` where ``x > 0``, else ``slope * x``; see `leaky_relu`.

    Attributes:
        slope: Factor on what is not positive; not negative, so that ``y`` tells the sign of ``x``.
    """

    slope: float = 0.01

    @property
    def down(self) -> Operation:
        """`LeakyReluDown`."""
        return LeakyReluDown(self.slope)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        if not self.slope >= 0:
            raise GraphError(f"LeakyRelu: slope must not be negative, got {self.slope}")
        return super().infer(*inputs)


@dataclass(frozen=True)
class Elu(Activation):
    """``y = x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``; see `elu`.

    Attributes:
        alpha: What ``-y`` tends to for small ``x``; not negative, so that ``y`` tells the sign of ``x``.
    """

    alpha: float = 1.0

    @property
    def down(self) -> Operation:
        """`EluDown`."""
        return EluDown(self.alpha)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        if not self.alpha >= 0:
            raise GraphError(f"Elu: alpha must not be negative, got {self.alpha}")
        return super().infer(*inputs)


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
    return blob_of(Relu(), x, name=name)


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
    return blob_of(Sigmoid(), x, name=name)


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
    return blob_of(Tanh(), x, name=name)


def leaky_relu(x: Blob, slope: float = 0.01, name: str | None = None) -> Blob:
    """Relu that lets a share of what is not positive through: ``y = x`` where ``x > 0``, else ``slope * x``.

    Args:
        x: Any shape, floating.
        slope: Factor on what is not positive; not negative.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        GraphError: if ``slope`` is negative.
    Gradient: g where x > 0, else slope * g.
    Source: Maas, Hannun and Ng, Rectifier nonlinearities improve neural network acoustic models, 2013.
    """
    return blob_of(LeakyRelu(slope), x, name=name)


def elu(x: Blob, alpha: float = 1.0, name: str | None = None) -> Blob:
    """The exponential linear unit: ``y = x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``.

    Args:
        x: Any shape, floating.
        alpha: What ``-y`` tends to for small ``x``; not negative.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        GraphError: if ``alpha`` is negative.
    Gradient: g where x > 0, else g * (y + alpha).
    Source: Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by ELUs, 2015.
    """
    return blob_of(Elu(alpha), x, name=name)
