"""Statistics of arrays: for errors, the live page, and traces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_CHUNK = 1 << 14  # elements that are looked at together: they stay in a core's cache between one look and the next


class ValueStatistics(NamedTuple):
    """Statistics of an array; of complex numbers, of their absolute values.

    Attributes:
        minimum, maximum, mean, std: Of the elements that are finite; NaN if there are none, or no numbers.
    """

    shape: tuple[int, ...]  # length of each axis
    dtype: np.dtype[Any]  # type of the elements
    nan: int = 0  # number of NaN
    infinite: int = 0  # number of infinities
    minimum: float = math.nan
    maximum: float = math.nan
    mean: float = math.nan
    std: float = math.nan
    norm: float = math.nan  # square root of the sum of their squares

    @property
    def is_finite(self) -> bool:
        """True if there is neither a NaN nor an infinity."""
        return not (self.nan or self.infinite)

    @property
    def figures(self) -> dict[str, float]:
        """The numbers by short names."""
        return {
            "min": self.minimum,
            "max": self.maximum,
            "mean": self.mean,
            "std": self.std,
            "norm": self.norm,
            "nan": self.nan,
            "infinite": self.infinite,
        }

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        found = [f"{count} {what}" for count, what in ((self.nan, "NaN"), (self.infinite, "infinite")) if count]
        if not math.isnan(self.minimum):
            figures = ("min", self.minimum), ("max", self.maximum), ("mean", self.mean), ("std", self.std)
            found += [f"{name} {value:.4g}" for name, value in figures]
        return ": ".join([text, *([", ".join(found)] if found else [])])


@np.errstate(all="ignore")
def statistics_of(array: npt.NDArray[Any]) -> ValueStatistics:
    """Statistics of an array, in one pass over its memory and without a copy of it."""
    if not is_number(array.dtype):
        return ValueStatistics(array.shape, array.dtype)
    nan = infinite = count = 0
    low, high, total, squares = math.inf, -math.inf, 0.0, 0.0
    # Relative to a value of the array, so that little is lost where all of them are far from 0.
    shift = None
    for chunk in _chunks(array):
        if not math.isfinite(chunk.dot(chunk)):  # or squares that overflow; one pass, and nothing is made
            is_nan, is_infinite = np.isnan(chunk), np.isinf(chunk)
            nan += int(np.count_nonzero(is_nan))
            infinite += int(np.count_nonzero(is_infinite))
            chunk = chunk[~(is_nan | is_infinite)].astype(np.float64)
        if not chunk.size:
            continue
        if shift is None:
            shift = float(chunk[0])
        count += chunk.size
        low, high = min(low, float(chunk.min())), max(high, float(chunk.max()))
        apart = chunk - shift
        total += float(apart.sum())
        squares += float(apart.dot(apart))
    if shift is None:
        return ValueStatistics(array.shape, array.dtype, nan, infinite)
    apart_mean = total / count
    variance = max(0.0, squares / count - apart_mean * apart_mean)
    mean = shift + apart_mean
    norm = math.sqrt(count * (variance + mean * mean))
    return ValueStatistics(array.shape, array.dtype, nan, infinite, low, high, mean, math.sqrt(variance), norm)


class Histogram(NamedTuple):
    """Counts of finite elements in intervals of equal width, as `numpy.histogram` has them."""

    low: float
    high: float
    counts: Sequence[int]


@np.errstate(all="ignore")
def histogram_of(array: npt.NDArray[Any], statistics: ValueStatistics, bins: int) -> Histogram | None:
    """Histogram of the finite elements from the smallest to the largest; None if there are none, or it overflows.

    There is a single interval where the elements are too close to each other for so many.
    """
    low, high = statistics.minimum, statistics.maximum
    if not math.isfinite(high - low):
        return None
    counts = np.zeros(bins, np.int64)
    try:
        for chunk in _chunks(array):
            if not statistics.is_finite:
                chunk = chunk[np.isfinite(chunk)]
            if not np.isfinite(chunk.dtype.type(high) - chunk.dtype.type(low)):
                chunk = chunk.astype(np.float64)
            counts += np.histogram(chunk, bins, (low, high))[0]
    except ValueError:  # NumPy has no edges between neighbours among the floats
        return Histogram(low, high, [array.size - statistics.nan - statistics.infinite])
    if low == high:  # as NumPy widens it
        low, high = low - 0.5, high + 0.5
    return Histogram(low, high, counts.tolist())


@np.errstate(all="ignore")
def norm_of(array: npt.NDArray[Any], minus: npt.NDArray[Any] | None = None) -> float:
    """Euclidean norm of an array, or of its difference from another one."""
    flat, other = array.reshape(-1), None if minus is None else minus.reshape(-1)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    total = 0.0
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK].astype(wide)
        if other is not None:
            part -= other[begin : begin + _CHUNK].astype(wide)
        size = np.abs(part)
        total += float(size.dot(size))
    return math.sqrt(total) if total >= 0 else math.nan


@np.errstate(all="ignore")
def is_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether an array has neither a NaN nor an infinity; one of no numbers has none."""
    if array.dtype.kind in "biu" or not is_number(array.dtype):
        return True
    if array.dtype.kind == "f" and array.dtype.itemsize > 2 and array.flags.forc:
        flat = array.ravel("K")
        if math.isfinite(flat.dot(flat)):  # one pass, and nothing is made; squares may overflow, then it is counted
            return True
    return bool(np.isfinite(array).all())


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are numbers, ``ml_dtypes``' included."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.fields is None and dtype.type is not np.void)


def _chunks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The elements, as real numbers of at least 32 bits, in pieces of one axis."""
    if array.flags.forc:
        flat = array.ravel("K")  # a view
        pieces: Iterator[Any] = (flat[begin : begin + _CHUNK] for begin in range(0, flat.size, _CHUNK))
    else:
        flags: Any = ["external_loop", "buffered", "zerosize_ok", "refs_ok"]
        pieces = iter(np.nditer(array, flags=flags, buffersize=_CHUNK))
    kind, itemsize = array.dtype.kind, array.dtype.itemsize
    for piece in pieces:
        if kind == "c":
            yield np.abs(piece)
        elif kind == "f" and itemsize in {4, 8}:
            yield piece
        else:  # longdouble among them, which BLAS has not
            yield piece.astype(np.float32 if kind in "fV" and itemsize <= 2 else np.float64)
