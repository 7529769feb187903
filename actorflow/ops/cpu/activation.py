"""Kernels of `actorflow.ops.nn.activation`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, flat_blocks, in_float32, keep_where, scratch
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
#: ``erf(x) / x`` as a polynomial in ``x * x``, highest power first: the Maclaurin series, to 1e-17 for ``|x| < 0.5``.
_SERIES = tuple([2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in reversed(range(14))])

#: Zeros beside which elements are compared.
_ZEROS = {zeros.dtype: zeros for zeros in (np.zeros(1024, np.float32), np.zeros(1024, np.float64))}

_Function = Callable[..., None]


def _by_blocks(
    kind: type[Operation], inplace: bool = True, is_quiet: bool = True, passes: int = 4
) -> Callable[[_Function], _Function]:
    """Register a function of a block of ``x``, ``out`` and the parameters; a quiet one has infinities on its way.

    ``passes``: those of `elementwise`.
    """

    def register(function: _Function) -> _Function:
        @kernel(kind, inplace=inplace)
        @partial(elementwise, passes=passes)
        @in_float32
        def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
            with np.errstate(all="ignore") if is_quiet else nullcontext():
                for x, y in flat_blocks(inputs[0], outputs[0]):
                    function(x, y, **operation.parameters)

        return function

    return register


@_by_blocks(ops.NormalDensity, inplace=False)
def density(x: Array, out: Array) -> None:
    """``exp(-x * x / 2) / sqrt(2 * pi)``; ``out`` may not be ``x``."""
    np.multiply(x, x, out=out)
    np.multiply(out, -0.5, out=out)
    np.exp(out, out=out)
    np.multiply(out, 1 / math.sqrt(2 * math.pi), out=out)


def tail(x: Array, out: Array) -> Array:
    """The probability that a normal number is more than ``x``, which is not negative; ``x`` is overwritten."""
    first, *rest = reversed(_DOUBLE if x.dtype == np.float64 else _SINGLE)
    bell = scratch("bell", x.shape, x.dtype)
    np.multiply(x, x, out=bell)
    np.multiply(bell, -0.5, out=bell)
    np.exp(bell, out=bell)
    np.multiply(x, math.sqrt(0.5), out=x)
    np.add(x, 3, out=x)
    t = np.divide(3, x, out=x)
    np.multiply(bell, t, out=bell)
    s = np.multiply(t, 2, out=t)
    np.subtract(s, 1, out=s)
    out[...] = first
    for coefficient in rest:
        np.multiply(out, s, out=out)
        np.add(out, coefficient, out=out)
    np.multiply(out, bell, out=out)
    return np.multiply(out, 0.5, out=out)


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
    np.maximum(x[whole:], 0, out=y[whole:])


@kernel(ops.ReluDown, inplace=True)
@elementwise
def _relu_down(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
    for g, y, dx in flat_blocks(*inputs, outputs[0]):
        keep_where(np.greater(y, 0, out=scratch("kept", y.shape, np.bool_)), g, dx)


@_by_blocks(ops.Sigmoid)
def _logistic(x: Array, out: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)  # infinity gives the right limit, 0
    np.add(out, 1, out=out)
    np.divide(1, out, out=out)  # the same to the bit as a reciprocal, in half the time


@_by_blocks(ops.Silu)
def _silu(x: Array, out: Array) -> None:
    s = scratch("sigmoid", x.shape, x.dtype)
    _logistic(x, s)
    np.multiply(x, s, out=out)


@_by_blocks(ops.LeakyRelu, is_quiet=False)
def _leaky_relu(x: Array, out: Array, slope: float) -> None:
    if slope:
        low = np.multiply(x, slope, out=scratch("low", x.shape, x.dtype))
        (np.maximum if slope <= 1 else np.minimum)(x, low, out=out)
    else:  # infinity times 0 is NaN
        np.maximum(x, 0, out=out)


@_by_blocks(ops.Elu, is_quiet=False)
def _elu(x: Array, out: Array, alpha: float) -> None:
    low = np.minimum(x, 0, out=scratch("low", x.shape, x.dtype))
    Expm1.function(low, out=low)
    np.multiply(low, alpha, out=low)
    np.maximum(x, 0, out=out)
    np.add(out, low, out=out)


@_by_blocks(ops.Softplus, is_quiet=False)
def _softplus(x: Array, out: Array, beta: float, threshold: float) -> None:
    scaled = np.multiply(x, beta, out=scratch("scaled", x.shape, x.dtype))
    is_linear = np.greater(scaled, threshold, out=scratch("kept", x.shape, np.bool_))
    bend = np.abs(scaled, out=scratch("bend", x.shape, x.dtype))
    np.negative(bend, out=bend)
    np.exp(bend, out=bend)
    np.log1p(bend, out=bend)  # log(1 + exp(v)) = max(v, 0) + log(1 + exp(-|v|))
    np.maximum(scaled, 0, out=scaled)
    np.add(scaled, bend, out=scaled)
    np.divide(scaled, beta, out=scaled)
    np.copyto(scaled, x, where=is_linear)
    np.copyto(out, scaled)


@_by_blocks(ops.Gelu, passes=16)
def _gelu(x: Array, out: Array) -> None:
    """``max(x, 0) - |x| * P(N > |x|)``, which has all digits on both sides."""
    size, rest = scratch("size", x.shape, x.dtype), scratch("rest", x.shape, x.dtype)
    np.abs(x, out=size)
    tail(size, rest)
    np.abs(x, out=size)
    np.minimum(size, 100, out=size)  # where the tail is 0: infinity would make it NaN
    np.multiply(rest, size, out=rest)
    np.maximum(x, 0, out=out)
    np.subtract(out, rest, out=out)


@_by_blocks(ops.GeluTanh)
def _gelu_tanh(x: Array, out: Array) -> None:
    share = scratch("share", x.shape, x.dtype)
    np.multiply(x, x, out=share)
    np.multiply(share, ops.GELU_SLOPE * ops.GELU_CUBIC, out=share)
    np.add(share, ops.GELU_SLOPE, out=share)
    np.multiply(share, x, out=share)
    np.tanh(share, out=share)
    np.add(share, 1, out=share)
    np.multiply(share, 0.5, out=share)
    np.multiply(x, share, out=out)


@_by_blocks(Erf, inplace=False, passes=16)
def _error_function(x: Array, out: Array) -> None:
    """``1 - 2 * tail(sqrt(2) * |x|)`` with the sign of ``x``; its power series where that would lose digits."""
    size = scratch("size", x.shape, x.dtype)
    tail(np.multiply(np.abs(x, out=size), math.sqrt(2), out=size), out)
    np.multiply(out, -2, out=out)
    np.add(out, 1, out=out)
    np.copysign(out, x, out=out)
    inner = np.minimum(np.square(x, out=size), 0.25, out=size)
    series = scratch("series", x.shape, x.dtype)
    series[...] = _SERIES[0]
    for coefficient in _SERIES[1:]:
        np.multiply(series, inner, out=series)
        np.add(series, coefficient, out=series)
    np.multiply(series, x, out=series)
    np.copyto(out, series, where=np.less(np.abs(x), 0.5, out=scratch("kept", x.shape, np.bool_)))


@_by_blocks(ops.NormalCdf, inplace=False)
def _probability(x: Array, out: Array) -> None:
    """The probability that a normal number is at most ``x``: its tail, or 1 less the tail, by the sign of ``x``."""
    tail(np.abs(x, out=scratch("size", x.shape, x.dtype)), out)
    whole = np.copysign(0.5, x, out=scratch("whole", x.shape, x.dtype))
    np.add(whole, 0.5, out=whole)
    np.copysign(out, x, out=out)
    np.subtract(whole, out, out=out)
