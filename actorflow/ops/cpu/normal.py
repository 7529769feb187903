"""The normal distribution, which NumPy does not have."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch

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


def density(x: Array, out: Array) -> Array:
    """``exp(-x * x / 2) / sqrt(2 * pi)``; ``out`` may not be ``x``."""
    np.multiply(x, x, out=out)
    np.multiply(out, -0.5, out=out)
    np.exp(out, out=out)
    return np.multiply(out, 1 / math.sqrt(2 * math.pi), out=out)


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
