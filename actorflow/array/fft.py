"""The Fourier transforms of the standard, by the operations of `actorflow.ops.fft`, and the frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.array.namespace.creation import asarray
from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.fft import fft, fftn, fftshift, hfft, ifft, ifftn, ifftshift, ihfft, irfft, irfftn, rfft, rfftn

if TYPE_CHECKING:
    from actorflow.array.array import Array

# fmt: off
__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]
# fmt: on


def fftfreq(n: int, /, *, d: float = 1.0, dtype: npt.DTypeLike | None = None, device: Any = None) -> Array:
    """As `numpy.fft.fftfreq`: the frequencies of the elements of an `fft` of ``n`` points with distance ``d``.

    Raises:
        ShapeError, DTypeError: if ``n`` is not positive, or ``dtype`` not real and floating.
    Example:
        >>> xp.fft.fftfreq(4, d=0.5)
        Array([ 0. ,  0.5, -1. , -0.5], dtype=float64)
    """
    return _frequencies(np.fft.fftfreq, n, d, dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: npt.DTypeLike | None = None, device: Any = None) -> Array:
    """As `numpy.fft.rfftfreq`: the frequencies of the elements of an `rfft`. Errors: those of `fftfreq`.

    Example:
        >>> xp.fft.rfftfreq(4, d=0.5)
        Array([0. , 0.5, 1. ], dtype=float64)
    """
    return _frequencies(np.fft.rfftfreq, n, d, dtype, device)


def _frequencies(function: Any, n: int, d: float, dtype: npt.DTypeLike | None, device: Any) -> Array:
    if n < 1:
        raise ShapeError(f"{function.__name__}: n must be positive, got {n}")
    kind = np.dtype(np.float64 if dtype is None else dtype)
    if kind.kind != "f":
        raise DTypeError(f"{function.__name__}: dtype must be real and floating, got {kind}")
    return asarray(function(n, d).astype(kind), device=device)
