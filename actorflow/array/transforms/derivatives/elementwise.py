"""Rules of elementwise operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from actorflow.array import namespace as xp
from actorflow.array.array import Array
from actorflow.array.transforms.derivatives.rules import Application, conj, rule

Grads = list["Array | None"]


def _slope(name: str, function: Callable[[Array, Array], Array]) -> None:
    """The rule of a function of one complex variable that has a derivative; ``function`` gives it of x and y."""

    @rule(name)
    def derive(at: Application, g: Array) -> Grads:
        return [g * conj(function(at.inputs[0], at.output))]


def _acosh(x: Array, _: Array) -> Array:
    if x.dtype.kind == "c":  # one root of the product would be on another branch
        return 1.0 / (xp.sqrt(x - 1.0) * xp.sqrt(x + 1.0))
    return 1.0 / xp.sqrt(xp.square(x) - 1.0)


_slope("acos", lambda x, _: -1.0 / xp.sqrt(1.0 - xp.square(x)))
_slope("acosh", _acosh)
_slope("asin", lambda x, _: 1.0 / xp.sqrt(1.0 - xp.square(x)))
_slope("asinh", lambda x, _: 1.0 / xp.sqrt(1.0 + xp.square(x)))
_slope("atan", lambda x, _: 1.0 / (1.0 + xp.square(x)))
_slope("atanh", lambda x, _: 1.0 / (1.0 - xp.square(x)))
_slope("cos", lambda x, _: -xp.sin(x))
_slope("cosh", lambda x, _: xp.sinh(x))
_slope("exp", lambda _, y: y)
_slope("expm1", lambda _, y: y + 1.0)
_slope("log", lambda x, _: 1.0 / x)
_slope("log10", lambda x, _: (1.0 / math.log(10)) / x)
_slope("log1p", lambda x, _: 1.0 / (1.0 + x))
_slope("log2", lambda x, _: (1.0 / math.log(2)) / x)
_slope("reciprocal", lambda _, y: -xp.square(y))
_slope("sin", lambda x, _: xp.cos(x))
_slope("sinh", lambda x, _: xp.cosh(x))
_slope("sqrt", lambda _, y: 0.5 / y)
_slope("square", lambda x, _: 2.0 * x)
_slope("tan", lambda _, y: 1.0 + xp.square(y))
_slope("tanh", lambda _, y: 1.0 - xp.square(y))


rule("positive", "copy", "astype")(lambda _, g: [g])
rule("to_device")(lambda at, g: [g.to_device(at.params[0])])
rule("negative")(lambda _, g: [-g])
rule("ceil", "floor", "round", "trunc")(lambda _, __: [None])
rule("floor_divide")(lambda _, __: [None, None])
rule("abs")(lambda at, g: [g * xp.sign(at.inputs[0])])


@rule("sign")
def _sign(at: Application, g: Array) -> Grads:
    if g.dtype.kind != "c":
        return [None]
    # On the unit circle only the part along it counts.
    y, size = at.output, xp.abs(at.inputs[0])
    turn = xp.imag(xp.conj(y) * g) / xp.where(size == 0.0, 1.0, size)
    return [y * (turn * 1j)]


rule("conj")(lambda _, g: [conj(g)])
rule("real")(lambda _, g: [g])
rule("imag")(lambda _, g: [g * 1j])


# -- two operands -----------------------------------------------------------------------------------------------


rule("add")(lambda _, g: [g, g])
rule("subtract")(lambda _, g: [g, -g])


@rule("multiply")
def _multiply(at: Application, g: Array) -> Grads:
    a, b = at.inputs
    return [g * conj(b), g * conj(a)]


@rule("divide")
def _divide(at: Application, g: Array) -> Grads:
    share = g / conj(at.inputs[1])
    return [share, -share * conj(at.output)]


@rule("pow")
def _pow(at: Application, g: Array) -> Grads:
    """0 where the exponent is 0; by the exponent also where the base is 0 and the exponent positive (as PyTorch)."""
    a, b = at.inputs
    by_base = xp.where(b == 0.0, 0.0, b) * a ** xp.where(b == 0.0, 1.0, b - 1.0)
    is_zero = xp.logical_and(a == 0.0, xp.real(b) >= 0.0) if b.dtype.kind == "c" else (a == 0.0) & (b >= 0.0)
    by_exponent = xp.where(is_zero, 0.0, at.output * xp.log(xp.where(is_zero, 1.0, _floating(a, g))))
    return [g * conj(by_base), g * conj(by_exponent)]


def _floating(x: Array, like: Array) -> Array:
    return x if x.dtype.kind in "fc" else xp.astype(x, like.dtype)


@rule("remainder")
def _remainder(at: Application, g: Array) -> Grads:
    a, b = at.inputs
    return [g, -g * xp.floor_divide(a, b)]


@rule("copysign")
def _copysign(at: Application, g: Array) -> Grads:
    x = at.inputs[0]
    return [g * xp.where(x == 0.0, 0.0, xp.sign(x) * xp.sign(at.output)), None]


@rule("hypot")
def _hypot(at: Application, g: Array) -> Grads:
    """The gradient at the origin is 0, as that of the norm."""
    share = g / xp.where(at.output == 0.0, 1.0, at.output)
    return [share * x for x in at.inputs]


@rule("atan2")
def _atan2(at: Application, g: Array) -> Grads:
    a, b = at.inputs
    share = g / (xp.square(a) + xp.square(b))
    return [share * b, -share * a]


@rule("logaddexp")
def _logaddexp(at: Application, g: Array) -> Grads:
    a, b = at.inputs
    return [g / (1.0 + xp.exp(b - a)), g / (1.0 + xp.exp(a - b))]


@rule("maximum")
def _maximum(at: Application, g: Array) -> Grads:
    """Equal elements share the gradient by halves."""
    a, b = at.inputs
    return [_of_greater(a, b, g), _of_greater(b, a, g)]


@rule("minimum")
def _minimum(at: Application, g: Array) -> Grads:
    """Equal elements share the gradient by halves."""
    a, b = at.inputs
    return [_of_greater(b, a, g), _of_greater(a, b, g)]


def _of_greater(a: Array, b: Array, g: Array) -> Array:
    return xp.where(a > b, g, xp.where(a == b, 0.5 * g, 0.0))


@rule("clip")
def _clip(at: Application, g: Array) -> Grads:
    """The gradient at a bound is the array's."""
    stays = at.inputs[0] == at.output
    return [xp.where(stays, g, 0.0), xp.where(stays, 0.0, g)]


@rule("where")
def _where(at: Application, g: Array) -> Grads:
    chosen = at.inputs[0]
    return [None, xp.where(chosen, g, 0.0), xp.where(chosen, 0.0, g)]


@rule("std")
def _root(at: Application, g: Array) -> Grads:
    """The gradient at 0, the deviation of equal numbers, is 0, as in PyTorch."""
    y = at.output
    return [xp.where(y == 0.0, 0.0, g * 0.5 / xp.where(y == 0.0, 1.0, y))]
