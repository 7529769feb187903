"""Kernels of `actorflow.ops.nn.activation`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, flat_blocks, in_float32, keep_where, loops_for, scratch
from actorflow.ops.cpu.parallel import elementwise
from actorflow.ops.elementwise import Erf, Expm1
from actorflow.ops.nn import activation as ops
from actorflow.ops.operation import Operation
from actorflow.ops.registry import kernel

#: ``erfc(z) * exp(z * z) / t`` for ``t = 3 / (3 + z)`` as a polynomial in ``2 * t - 1``: the Chebyshev series over all
#: ``z >= 0``, computed with 60 digits, cut where the rest is below the dtype's precision, in powers.
_SINGLE = (
    *(0.35800230410450451, 0.29446481506229316, 0.19674265853470232, 0.10348916310367173, 0.03984410023021237),
    *(0.0089417900375430848, -0.00041079034720134451, -0.0010091414855283153, -0.00016928352617058944),
    *(8.832780724181984e-05, 2.2609878524025781e-05, -6.5519701868292946e-06),
)
_DOUBLE = (
    *(0.35800230236277991, 0.29446481772329447, 0.19674278570136933, 0.1034890873001944, 0.039842587095666314),
    *(0.0089424115413504722, -0.00040413887394316183, -0.001011353998686046, -0.00018276991424949872),
    *(9.2259271340713663e-05, 3.5853923636812829e-05, -1.0132683861908937e-05, -5.8238574076360061e-06),
    *(1.5830094253678585e-06, 9.2258296402014064e-07, -3.3293900476369915e-07, -1.3722842699705352e-07),
    *(7.7951226697135082e-08, 1.6652640553590825e-08, -1.7060807323373566e-08, -1.1893885619092368e-09),
    *(2.8979247563452761e-09, 2.3183140775046786e-12, -2.7035624320633309e-10),
)
_SINGLE_POWERS = np.array(_SINGLE, np.float32)
#: ``erf(x) / x`` as a polynomial in ``x * x``: the Maclaurin series, to 1e-17 for ``|x| < 0.5``.
_SERIES = tuple([2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(14)])

#: Zeros beside which elements are compared.
_ZEROS = {zeros.dtype: zeros for zeros in (np.zeros(1024, np.float32), np.zeros(1024, np.float64))}

_Function = Callable[..., None]


def _by_blocks(kind: type[Operation], is_quiet: bool = True, passes: int = 4) -> Callable[[_Function], _Function]:
    """Register a function of a block of the inputs, ``out`` and the parameters; a quiet one has infinities on its way.

    ``passes``: as of `elementwise`.
    """

    def register(function: _Function) -> _Function:
        @kernel(kind, inplace=True)
        @partial(elementwise, passes=passes)
        @in_float32
        def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
            y = outputs[0]
            arrays = [*[x if x.shape == y.shape else np.broadcast_to(x, y.shape) for x in inputs], y]
            with np.errstate(all="ignore") if is_quiet else nullcontext():
                # NumPy's functions make numbers of arrays without axes.
                for block in flat_blocks(*[each if each.ndim else each.reshape(1) for each in arrays]):
                    function(*block, **operation.parameters)

        return function

    return register


@_by_blocks(ops.NormalDensity)
def density(x: Array, out: Array) -> None:
    """``exp(-x * x / 2) / sqrt(2 * pi)``."""
    np.multiply(np.exp(x * x * -0.5), 1 / math.sqrt(2 * math.pi), out=out)


def tail(x: Array) -> Array:
    """The probability that a normal number is more than ``x``, which is not negative."""
    loops = loops_for(x := np.ascontiguousarray(x))
    if loops is not None:
        out = np.empty(x.shape, np.float32)
        loops.normal_tail(x.reshape(-1), out.reshape(-1), _SINGLE_POWERS)
        return out
    t = 3 / (x * math.sqrt(0.5) + 3)
    return _polynomial(_DOUBLE if x.dtype == np.float64 else _SINGLE, t * 2 - 1) * (np.exp(x * x * -0.5) * t) * 0.5


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total


@kernel(ops.Relu, inplace=True)
@elementwise
def _relu(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
    x, y = inputs[0], outputs[0]
    zeros = _ZEROS.get(x.dtype)
    if zeros is None or x.size < zeros.size or not (x.flags.c_contiguous and y.flags.c_contiguous):
        np.maximum(x, 0, out=y)
        return
    # Beside a number NumPy takes four times as long as beside an array.
    whole = x.size - x.size % zeros.size
    x, y = x.reshape(-1), y.reshape(-1)
    np.maximum(x[:whole].reshape(-1, zeros.size), zeros, out=y[:whole].reshape(-1, zeros.size))
    if whole < x.size:
        np.maximum(x[whole:], 0, out=y[whole:])


@kernel(ops.ReluDown, inplace=True)
@elementwise
def _relu_down(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
    for g, y, dx in flat_blocks(*inputs, outputs[0]):
        keep_where(np.greater(y, 0, out=scratch("kept", y.shape, np.bool_)), g, dx)


@_by_blocks(ops.Sigmoid)
def _logistic(x: Array, out: Array) -> None:
    np.divide(1, np.exp(-x) + 1, out=out)  # infinity gives the right limit, 0


@_by_blocks(ops.Silu)
def _silu(x: Array, out: Array) -> None:
    np.multiply(x, 1 / (np.exp(-x) + 1), out=out)


@_by_blocks(ops.LeakyRelu, is_quiet=False)
def _leaky_relu(x: Array, out: Array, slope: float) -> None:
    # Infinity times a slope of 0 is NaN.
    (np.maximum if slope <= 1 else np.minimum)(x, x * slope if slope else 0, out=out)


@_by_blocks(ops.Elu, is_quiet=False)
def _elu(x: Array, out: Array, alpha: float) -> None:
    low = np.minimum(x, 0)
    Expm1.function(low, out=low)
    np.add(np.maximum(x, 0), low * alpha, out=out)


@_by_blocks(ops.Softplus, is_quiet=False)
def _softplus(x: Array, out: Array, beta: float, threshold: float) -> None:
    scaled = x * beta
    # log(1 + exp(v)) = max(v, 0) + log(1 + exp(-|v|))
    bent = (np.maximum(scaled, 0) + np.log1p(np.exp(-np.abs(scaled)))) / beta
    np.copyto(out, np.where(scaled > threshold, x, bent))


@_by_blocks(ops.Gelu, passes=16)
def _gelu(x: Array, out: Array) -> None:
    """``max(x, 0) - |x| * P(N > |x|)``, which has all digits on both sides."""
    size = np.abs(x)
    # From 100 on the tail is 0: infinity would make it NaN.
    np.subtract(np.maximum(x, 0), tail(size) * np.minimum(size, 100), out=out)


@_by_blocks(ops.GeluDown, passes=8)
def _gelu_down(g: Array, x: Array, out: Array) -> None:
    loops = loops_for(g, x, out)
    if loops is not None:
        loops.gelu_down(g.reshape(-1), x.reshape(-1), out.reshape(-1), _SINGLE_POWERS)
        return
    slope, below = np.empty_like(x), np.empty_like(x)
    density(x, slope)
    _probability(x, below)
    np.multiply(x * slope + below, g, out=out)


@_by_blocks(ops.GeluTanh)
def _gelu_tanh(x: Array, out: Array) -> None:
    inner = (x * x * (ops.GELU_SLOPE * ops.GELU_CUBIC) + ops.GELU_SLOPE) * x
    np.multiply(x, (np.tanh(inner) + 1) * 0.5, out=out)


@_by_blocks(Erf, passes=16)
def _error_function(x: Array, out: Array) -> None:
    """``1 - 2 * tail(sqrt(2) * |x|)`` with the sign of ``x``; its power series where that would lose digits."""
    size = np.abs(x)
    series = _polynomial(_SERIES, np.minimum(x * x, 0.25)) * x
    np.copyto(out, np.where(size < 0.5, series, np.copysign(tail(size * math.sqrt(2)) * -2 + 1, x)))


@_by_blocks(ops.NormalCdf)
def _probability(x: Array, out: Array) -> None:
    """The probability that a normal number is at most ``x``: its tail, or 1 less the tail, by the sign of ``x``."""
    np.subtract(np.copysign(0.5, x) + 0.5, np.copysign(tail(np.abs(x)), x), out=out)
