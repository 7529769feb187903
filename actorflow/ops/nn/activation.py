"""Activations, elementwise; their gradients are computed from the output, or from the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.elementwise import plus, scaled, times
from actorflow.ops.operation import Application, Grads, Operation, apply, blob_of, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


class ActivationDown(Operation):
    """``dx`` from ``g`` and the output ``y``, elementwise; linear in ``g``."""

    arguments: ClassVar[tuple[str, ...]] = ("g", "y")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (g, value), other = inputs, self.arguments[1]
        same_dtype(self.kind, g=g, **{other: value})
        if g.shape != value.shape:
            raise ShapeError(f"{self.kind}: g must have {other}'s shape {value.shape}, got {g}")
        return (value,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """By ``g`` the same operation; by the other input what its second derivative says."""
        (c,), (g, value) = grads, op.inputs
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
    """``dx = g`` where ``y > 0``, else ``slope * g``."""

    slope: float = 0.01


@dataclass(frozen=True)
class EluDown(ActivationDown):
    """``dx = g`` where ``y > 0``, else ``g * (y + alpha)``."""

    alpha: float = 1.0

    def curve(self, p: Blob, value: Blob) -> Blob | None:
        """``p`` where ``y <= 0``, else 0."""
        return plus(p, scaled(apply(ReluDown(), p, value), -1.0))


class Activation(Operation):
    """``y`` from ``x``, elementwise."""

    #: Whether the gradient is computed from ``y``, not from ``x``.
    from_output: ClassVar[bool] = True

    #: The operation of the gradient, which has the same fields.
    backward: ClassVar[type[ActivationDown]]

    @property
    def down(self) -> ActivationDown:
        """The operation of the gradient, with the parameters of this one."""
        return self.backward(**vars(self))

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype(self.kind, x=inputs[0])
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(self.down, grads[0], (op.outputs if self.from_output else op.inputs)[0])]


@dataclass(frozen=True)
class Relu(Activation):
    """``y = max(x, 0)``; see `relu`."""

    backward = ReluDown


@dataclass(frozen=True)
class Sigmoid(Activation):
    """``y = 1 / (1 + exp(-x))``; see `sigmoid`."""

    backward = SigmoidDown


@dataclass(frozen=True)
class Tanh(Activation):
    """``y = tanh(x)``; see `tanh`."""

    backward = TanhDown


@dataclass(frozen=True)
class LeakyRelu(Activation):
    """``y = x`` where ``x > 0``, else ``slope * x``; see `leaky_relu`."""

    slope: float = 0.01

    backward = LeakyReluDown

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not self.slope >= 0:
            raise GraphError(f"LeakyRelu: slope must not be negative, got {self.slope}")
        return super().infer(*inputs)


@dataclass(frozen=True)
class Elu(Activation):
    """``y = x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``; see `elu`."""

    alpha: float = 1.0

    backward = EluDown

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not self.alpha >= 0:
            raise GraphError(f"Elu: alpha must not be negative, got {self.alpha}")
        return super().infer(*inputs)


def relu(x: Blob, name: str | None = None) -> Blob:
    """The positive part: ``y = max(x, 0)``.

    Args:
        x: Any shape, floating.
    Returns:
        Blob of the type of ``x``.
    Gradient: g where x > 0, else 0.
    Source: Purine2 ``Activation`` (relu).
    """
    return blob_of(Relu(), x, name=name)


def sigmoid(x: Blob, name: str | None = None) -> Blob:
    """The logistic function: ``y = 1 / (1 + exp(-x))``.

    Arguments and result: those of `relu`.
    Gradient: g * y * (1 - y).
    Source: Purine2 ``Activation`` (sigmoid).
    """
    return blob_of(Sigmoid(), x, name=name)


def tanh(x: Blob, name: str | None = None) -> Blob:
    """The hyperbolic tangent.

    Arguments and result: those of `relu`.
    Gradient: g * (1 - y * y).
    Source: Purine2 ``Activation`` (tanh).
    """
    return blob_of(Tanh(), x, name=name)


def leaky_relu(x: Blob, slope: float = 0.01, name: str | None = None) -> Blob:
    """Relu that lets a share of negative numbers through: ``y = x`` where ``x > 0``, else ``slope * x``.

    Args:
        x: Any shape, floating.
        slope: Factor on negative numbers; not negative itself.
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
        alpha: Limit of ``-y`` for small ``x``; not negative.
    Returns:
        Blob of the type of ``x``.
    Raises:
        GraphError: if ``alpha`` is negative.
    Gradient: g where x > 0, else g * (y + alpha).
    Source: Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by ELUs, 2015.
    """
    return blob_of(Elu(alpha), x, name=name)


#: The tanh form of gelu: ``0.5 * x * (1 + tanh(GELU_SLOPE * (x + GELU_CUBIC * x ** 3)))``.
GELU_SLOPE = 0.7978845608028654  # sqrt(2 / pi)
GELU_CUBIC = 0.044715


@dataclass(frozen=True)
class GeluDown(ActivationDown):
    """``dx = g * gelu'(x)``, from the input ``x``."""

    arguments = ("g", "x")

    tanh: bool = False

    def curve(self, p: Blob, value: Blob) -> Blob | None:
        """``p * (2 - x * x) * density(x)``, or the same of the tanh form."""
        x, square = value, times(value, value)
        if not self.tanh:
            m = times(p, apply(NormalDensity(), x))
            return plus(scaled(m, 2.0), scaled(times(square, m), -1.0))

        def times_slope(v: Blob) -> Blob:  # the slope of the argument of the tanh
            return plus(scaled(v, GELU_SLOPE), scaled(times(square, v), 3 * GELU_SLOPE * GELU_CUBIC))

        t = tanh(scaled(plus(x, scaled(times(square, x), GELU_CUBIC)), GELU_SLOPE))
        q = apply(TanhDown(), p, t)
        first = times_slope(q)
        second = scaled(times(square, q), 3 * GELU_SLOPE * GELU_CUBIC)
        return plus(first, second, scaled(times(times(x, t), times_slope(first)), -1.0))


@dataclass(frozen=True)
class SiluDown(ActivationDown):
    """``dx = g * s * (1 + x * (1 - s))`` with ``s = sigmoid(x)``, from the input ``x``."""

    arguments = ("g", "x")

    def curve(self, p: Blob, value: Blob) -> Blob | None:
        """``p * s * (1 - s) * (2 + x * (1 - 2 * s))``."""
        s = sigmoid(value)
        r = apply(SigmoidDown(), p, s)
        product = times(value, r)
        return plus(scaled(r, 2.0), product, scaled(times(s, product), -2.0))


@dataclass(frozen=True)
class SoftplusDown(ActivationDown):
    """``dx = g * sigmoid(beta * x)``, and ``g`` where ``beta * x > threshold``, from the input ``x``."""

    arguments = ("g", "x")

    beta: float = 1.0
    threshold: float = 20.0

    def curve(self, p: Blob, value: Blob) -> Blob | None:
        """``p * beta * s * (1 - s)``, which is 0 to 8 digits beyond the usual threshold."""
        return scaled(apply(SigmoidDown(), p, sigmoid(scaled(value, self.beta))), self.beta)


@dataclass(frozen=True)
class NormalDensity(Operation):
    """``y = exp(-x * x / 2) / sqrt(2 * pi)``, the density of the normal distribution: the gradients of gelu need it."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype("NormalDensity", x=inputs[0])
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``-g * x * y``."""
        return [scaled(times(grads[0], times(op.inputs[0], op.outputs[0])), -1.0)]


@dataclass(frozen=True)
class Gelu(Activation):
    """``y = x * P(N <= x)`` for a normal N; see `gelu`."""

    from_output = False

    tanh: bool = False

    backward = GeluDown


@dataclass(frozen=True)
class Silu(Activation):
    """``y = x * sigmoid(x)``; see `silu`."""

    from_output = False

    backward = SiluDown


@dataclass(frozen=True)
class Softplus(Activation):
    """``y = log(1 + exp(beta * x)) / beta``; see `softplus`."""

    from_output = False

    beta: float = 1.0
    threshold: float = 20.0

    backward = SoftplusDown

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not self.beta > 0:
            raise GraphError(f"Softplus: beta must be positive, got {self.beta}")
        return super().infer(*inputs)


def gelu(x: Blob, tanh: bool = False, name: str | None = None) -> Blob:
    """The Gaussian error linear unit: ``y = x * P(N <= x)`` for a standard normal N.

    Args:
        x: Any shape, floating.
        tanh: Approximate: ``y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``. The default is exact to
            the dtype's last digits.
    Returns:
        Blob of the type of ``x``.
    Gradient: g * (P(N <= x) + x * density(x)), or that of the tanh form.
    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016.
    """
    return blob_of(Gelu(tanh), x, name=name)


def silu(x: Blob, name: str | None = None) -> Blob:
    """The sigmoid linear unit, or swish: ``y = x * sigmoid(x)``.

    Arguments and result: those of `relu`.
    Gradient: g * s * (1 + x * (1 - s)) with s = sigmoid(x).
    Source: Elfwing, Uchibe and Doya, Sigmoid-weighted linear units, 2017.
    """
    return blob_of(Silu(), x, name=name)


def softplus(x: Blob, beta: float = 1.0, threshold: float = 20.0, name: str | None = None) -> Blob:
    """A smooth relu: ``y = log(1 + exp(beta * x)) / beta``, computed without overflow.

    Args:
        x: Any shape, floating.
        beta: Sharpness of the bend; positive.
        threshold: ``y = x`` where ``beta * x`` is more, as in PyTorch.
    Returns:
        Blob of the type of ``x``.
    Raises:
        GraphError: if ``beta`` is not positive.
    Gradient: g * sigmoid(beta * x); g beyond the threshold.
    """
    return blob_of(Softplus(beta, threshold), x, name=name)
