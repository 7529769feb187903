"""Activations whose gradient is computed from the input, elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.errors import GraphError
from actorflow.ops.activation import Activation, ActivationDown, SigmoidDown, TanhDown, sigmoid, tanh
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, same_dtype
from actorflow.ops.terms import plus, scaled, times
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op

#: The tanh form of gelu: ``0.5 * x * (1 + tanh(GELU_SLOPE * (x + GELU_CUBIC * x ** 3)))``.
GELU_SLOPE = 0.7978845608028654  # sqrt(2 / pi)
GELU_CUBIC = 0.044715


@dataclass(frozen=True)
class GeluDown(ActivationDown):
    """``dx = g * gelu'(x)``, from the input ``x``.

    Attributes:
        tanh: As in `Gelu`.
    """

    arguments = ("g", "x")

    tanh: bool = False

    def curve(self, p: Blob, value: Blob) -> Blob | None:
        """``p * (2 - x * x) * density(x)``, or the same of the tanh form."""
        x, square = value, times(value, value)
        if not self.tanh:
            m = times(p, apply(NormalDensity(), x))
            return plus(scaled(m, 2.0), scaled(times(square, m), -1.0))

        def times_slope(v: Blob) -> Blob:  # of what the tanh is taken of
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
    """``dx = g * sigmoid(beta * x)``, and ``g`` where ``beta * x > threshold``, from the input ``x``.

    Attributes:
        beta: As in `Softplus`.
        threshold: As in `Softplus`.
    """

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
        """The type of ``x``."""
        same_dtype("NormalDensity", x=inputs[0])
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``-g * x * y``."""
        assert grads[0] is not None
        return [scaled(times(grads[0], times(op.inputs[0], op.outputs[0])), -1.0)]


@dataclass(frozen=True)
class Gelu(Activation):
    """``y = x * P(N <= x)`` for a normal N; see `gelu`.

    Attributes:
        tanh: Whether the probability is approximated with a tanh.
    """

    from_output = False

    tanh: bool = False

    @property
    def down(self) -> Operation:
        """`GeluDown`."""
        return GeluDown(self.tanh)


@dataclass(frozen=True)
class Silu(Activation):
    """``y = x * sigmoid(x)``; see `silu`."""

    from_output = False

    @property
    def down(self) -> Operation:
        """`SiluDown`."""
        return SiluDown()


@dataclass(frozen=True)
class Softplus(Activation):
    """``y = log(1 + exp(beta * x)) / beta``; see `softplus`.

    Attributes:
        beta: How sharp the bend is; positive.
        threshold: ``y = x`` where ``beta * x`` is more.
    """

    from_output = False

    beta: float = 1.0
    threshold: float = 20.0

    @property
    def down(self) -> Operation:
        """`SoftplusDown`."""
        return SoftplusDown(self.beta, self.threshold)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        if not self.beta > 0:
            raise GraphError(f"Softplus: beta must be positive, got {self.beta}")
        return super().infer(*inputs)


def gelu(x: Blob, tanh: bool = False, name: str | None = None) -> Blob:
    """The Gaussian error linear unit: ``y = x * P(N <= x)`` for a standard normal N.

    Args:
        x: Any shape, floating.
        tanh: Approximate: ``y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``. The default is exact to
            the dtype's last digits.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Gradient: g * (P(N <= x) + x * density(x)), or that of the tanh form.
    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016.
    """
    return blob_of(Gelu(tanh), x, name=name)


def silu(x: Blob, name: str | None = None) -> Blob:
    """The sigmoid linear unit, or swish: ``y = x * sigmoid(x)``.

    Args:
        x: Any shape, floating.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Gradient: g * s * (1 + x * (1 - s)) with s = sigmoid(x).
    Source: Elfwing, Uchibe and Doya, Sigmoid-weighted linear units, 2017.
    """
    return blob_of(Silu(), x, name=name)


def softplus(x: Blob, beta: float = 1.0, threshold: float = 20.0, name: str | None = None) -> Blob:
    """A smooth relu: ``y = log(1 + exp(beta * x)) / beta``, computed without overflow.

    Args:
        x: Any shape, floating.
        beta: How sharp the bend is; positive.
        threshold: ``y = x`` where ``beta * x`` is more, as in PyTorch.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        GraphError: if ``beta`` is not positive.
    Gradient: g * sigmoid(beta * x); g beyond the threshold.
    """
    return blob_of(Softplus(beta, threshold), x, name=name)
