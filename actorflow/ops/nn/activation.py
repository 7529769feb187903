"""Activations: elementwise operations, most of them rows like `actorflow.ops.elementwise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorflow.errors import GraphError
from actorflow.ops.elementwise import add, clip, greater, multiply, scale, square, tanh, where
from actorflow.ops.operation import X, blob_of, public_names
from actorflow.ops.rows import ZERO, binary, operation_class, slope, unary

_REAL = "fV"
#: The tanh form of gelu: ``0.5 * x * (1 + tanh(GELU_SLOPE * (x + GELU_CUBIC * x ** 3)))``.
GELU_SLOPE = 0.7978845608028654  # sqrt(2 / pi)
GELU_CUBIC = 0.044715
_GELU_TANH = f"tanh(W({GELU_SLOPE!r}) * W(x) * (W(1) + W({GELU_CUBIC!r}) * W(x) * W(x)))"
_DENSITY = "W(0.39894228040143268) * exp(W(-0.5) * W(x) * W(x))"
_CDF = "W(0.5) * W(erfc(-W(x) * W(0.70710678118654752)))"


def _silu_slope(x: Any) -> Any:
    s = sigmoid(x)
    return s * (x * (1.0 - s) + 1.0)


def _gelu_tanh_slope(x: Any) -> Any:
    t = tanh((x + x * square(x) * GELU_CUBIC) * GELU_SLOPE)
    return (t + 1.0 + x * (1.0 - square(t)) * (square(x) * (3 * GELU_CUBIC * GELU_SLOPE) + GELU_SLOPE)) * 0.5


# fmt: off
ReluDown, relu_down = binary(
    "relu_down", "``g`` where ``y`` is positive, else 0: relu's gradient. Source: Purine2 ``ActivationDown`` (relu).",
    None, lambda c, g, y: relu_down(c, y), ZERO, arguments=("g", "y"), kinds=_REAL, cuda="y > T(0) ? g : T(0)")
Relu, relu = unary(
    "relu", "The positive part: ``max(x, 0)``. Source: Purine2 ``Activation`` (relu).",
    None, lambda g, x, y: relu_down(g, y), kinds=_REAL, cuda="x < T(0) ? T(0) : x",
    example=("[-1.0, 2.0]", "[0. 2.]"))
Sigmoid, sigmoid = unary(
    "sigmoid", "The logistic function: ``1 / (1 + exp(-x))``. Source: Purine2 ``Activation`` (sigmoid).",
    None, slope(lambda x, y: y * (1.0 - y)), kinds=_REAL, cuda="W(1) / (W(1) + exp(-W(x)))",
    example=("[0.0, 2.0]", "[0.5        0.88079708]"))
Silu, silu = unary(
    "silu", "The sigmoid linear unit, or swish: ``x * sigmoid(x)``. "
    "Source: Elfwing, Uchibe and Doya, Sigmoid-weighted linear units, 2017.",
    None, slope(_silu_slope), kinds=_REAL, cuda="W(x) * (W(1) / (W(1) + exp(-W(x))))",
    example=("[-1.0, 0.0, 2.0]", "[-0.26894142  0.          1.76159416]"))
NormalDensity, normal_density = unary(
    "normal_density", "The density of the normal distribution: ``exp(-x * x / 2) / sqrt(2 * pi)``.",
    None, lambda g, x, y: -g * (x * y), kinds=_REAL, cuda=_DENSITY,
    example=("[0.0, 1.0]", "[0.39894228 0.24197072]"))
NormalCdf, normal_cdf = unary(
    "normal_cdf", "The probability that a normal number is at most ``x``, exact to the last digits on both sides.",
    None, slope(lambda x: normal_density(x)), kinds=_REAL, cuda=_CDF,
    example=("[0.0, 1.96]", "[0.5       0.9750021]"))
GeluDown, gelu_down = binary(
    "gelu_down", "``g * (normal_cdf(x) + x * normal_density(x))``: gelu's gradient.",
    None, lambda c, g, x: gelu_down(c, x), lambda c, g, x: c * g * normal_density(x) * (2.0 - square(x)),
    arguments=("g", "x"), kinds=_REAL, cuda=f"W(g) * ({_CDF} + W(x) * ({_DENSITY}))")
Gelu, _gelu = unary(
    "gelu", "The Gaussian error linear unit: ``x * normal_cdf(x)``.",
    None, lambda g, x, y: gelu_down(g, x), kinds=_REAL,
    cuda=f"W(x) < W(-100) ? W(0) : W(x) * ({_CDF})")  # of -infinity, too, as on the CPU
GeluTanh, _gelu_tanh = unary(
    "gelu_tanh", "The tanh form of `gelu`.",
    None, slope(_gelu_tanh_slope), kinds=_REAL, cuda=f"W(0.5) * W(x) * (W(1) + {_GELU_TANH})")
# fmt: on


def gelu(x: X, tanh: bool = False, name: str | None = None) -> X:
    """The Gaussian error linear unit: ``y = x * P(N <= x)`` for a standard normal N.

    Args:
        x: Any shape, floating.
        tanh: Approximate: ``y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``. The default is exact to
            the dtype's last digits, or to 1e-6 where oneDNN computes it.
        name: Name of the op.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is not floating.
    Gradient: of any order.
    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016.
    Example:
        >>> af.ops.gelu(xp.asarray([-1.0, 0.0, 1.0]))
        Array([-0.15865525,  0.        ,  0.84134475], dtype=float64)
    """
    return (_gelu_tanh if tanh else _gelu)(x, name=name)


def _check_leaky(slope: float) -> None:
    if not slope >= 0:
        raise GraphError(f"LeakyRelu: slope must not be negative, got {slope}")


def _check_elu(alpha: float) -> None:
    if not alpha >= 0:
        raise GraphError(f"Elu: alpha must not be negative, got {alpha}")


def _check_softplus(beta: float, threshold: float) -> None:  # noqa: ARG001  any threshold will do
    if not beta > 0:
        raise GraphError(f"Softplus: beta must be positive, got {beta}")


# fmt: off
LeakyRelu = operation_class(
    "leaky_relu", "``x`` where it is positive, else ``slope * x``.",
    None, lambda g, x, y, *, slope: where(greater(y, 0), g, scale(g, slope) if slope else 0.0),
    kinds=_REAL, parameters={"slope": 0.01}, check=_check_leaky, module=__name__,
    cuda="x > T(0) || x != x ? x : slope == 0 ? T(0) : T(W(x) * W(slope))")
Elu = operation_class(
    "elu", "``x`` where it is positive, else ``alpha * (exp(x) - 1)``.",
    None, lambda g, x, y, *, alpha: where(greater(y, 0), g, g * (y + alpha)),
    kinds=_REAL, parameters={"alpha": 1.0}, check=_check_elu, module=__name__,
    cuda="x > T(0) ? x : T(W(alpha) * W(expm1(W(x))))")
Softplus = operation_class(
    "softplus", "A smooth relu: ``log(1 + exp(beta * x)) / beta``.",
    None, lambda g, x, *, beta, threshold: where(greater(x * beta, threshold), g, g * sigmoid(x * beta)),
    kinds=_REAL, parameters={"beta": 1.0, "threshold": 20.0}, check=_check_softplus, module=__name__,
    cuda="W(beta) * W(x) > W(threshold) ? x : T(((W(beta) * W(x) > W(0) ? W(beta) * W(x) : W(0)) "
    "+ log1p(exp(-fabs(W(beta) * W(x))))) / W(beta))")
# fmt: on


def leaky_relu(x: X, slope: float = 0.01, name: str | None = None) -> X:
    """A leaky rectifier: ``y = x`` where ``x > 0``, else ``slope * x``.

    Args:
        x: Any shape, floating.
        slope: Slope for negative ``x``; not negative.
        name: Name of the op.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        GraphError: if ``slope`` is negative.
    Gradient: g where ``x`` is positive, else g times the slope.
    Source: Maas, Hannun and Ng, Rectifier nonlinearities improve neural network acoustic models, 2013.
    Example:
        >>> af.ops.leaky_relu(xp.asarray([-2.0, 3.0]), slope=0.25)
        Array([-0.5,  3. ], dtype=float64)
    """
    return blob_of(LeakyRelu(slope), x, name=name)


def elu(x: X, alpha: float = 1.0, name: str | None = None) -> X:
    """The exponential linear unit: ``y = x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``.

    Args:
        x: Any shape, floating.
        alpha: Limit of ``-y`` for small ``x``; not negative.
        name: Name of the op.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        GraphError: if ``alpha`` is negative.
    Gradient: g where ``x`` is positive, else ``g * (y + alpha)``.
    Source: Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by ELUs, 2015.
    Example:
        >>> af.ops.elu(xp.asarray([-1.0, 3.0]))
        Array([-0.63212056,  3.        ], dtype=float64)
    """
    return blob_of(Elu(alpha), x, name=name)


def softplus(x: X, beta: float = 1.0, threshold: float = 20.0, name: str | None = None) -> X:
    """A smooth relu: ``y = log(1 + exp(beta * x)) / beta``, computed without overflow.

    Args:
        x: Any shape, floating.
        beta: Sharpness of the bend; positive.
        threshold: ``y = x`` where ``beta * x`` is more, as in PyTorch.
        name: Name of the op.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        GraphError: if ``beta`` is not positive.
    Gradient: ``g * sigmoid(beta * x)``; g above the threshold.
    Example:
        >>> af.ops.softplus(xp.asarray([0.0, 1000.0]))
        Array([6.93147181e-01, 1.00000000e+03], dtype=float64)
    """
    return blob_of(Softplus(beta, threshold), x, name=name)


def hard_sigmoid(x: X, slope: float = 1 / 6, offset: float = 0.5, name: str | None = None) -> X:
    """Straight lines: ``min(max(slope * x + offset, 0), 1)``; by default PyTorch's, ONNX's slope is 0.2.

    Args:
        x: Any shape, floating.
        slope: Slope of the line in the middle.
        offset: Its value at 0.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is not floating.
    Gradient: g times the slope between the bounds, else 0.
    Source: `torch.nn.functional.hardsigmoid`, ONNX ``HardSigmoid``.
    Example:
        >>> af.ops.hard_sigmoid(xp.asarray([-4.0, 0.0, 1.5]))
        Array([0.  , 0.5 , 0.75], dtype=float64)
    """
    return clip(add(scale(x, slope), offset), 0.0, 1.0, name=name or "hardsigmoid")


def hard_swish(x: X, name: str | None = None) -> X:
    """``x * hard_sigmoid(x)``.

    Args:
        x: Any shape, floating.
    Returns:
        Blob or array of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is not floating.
    Gradient: through both factors.
    Source: Howard and others, Searching for MobileNetV3, 2019.
    Example:
        >>> af.ops.hard_swish(xp.asarray([-4.0, 1.5, 6.0]))
        Array([-0.   ,  1.125,  6.   ], dtype=float64)
    """
    return multiply(x, hard_sigmoid(x), name=name or "hardswish")


if not TYPE_CHECKING:  # which takes all public names
    __all__ = public_names(globals(), without=("ReluDown", "relu_down", "GeluDown", "gelu_down"))  # noqa: PLE0605
