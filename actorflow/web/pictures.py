"""Small views of values for the page: pictures of possible images, rows of matrices, lines of vectors."""

from __future__ import annotations

import base64
import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.trace.values import ValueStatistics, histogram_of, is_number

_Array = npt.NDArray[Any]

BINS = 64
#: Longest side of a picture in elements.
_SIDE = 64
#: Images shown; of images with many channels, how many images and channels.
_IMAGES, _DEEP_IMAGES, _CHANNELS = 12, 4, 6
#: Rows and columns of a matrix.
_ROWS, _COLUMNS = 64, 256
#: Elements of a vector that are shown one by one; of a longer one, parts with their smallest and largest elements.
_POINTS, _PARTS = 512, 256
_COLOURS = 3


def described(array: _Array, statistics: ValueStatistics, is_kernel: bool) -> dict[str, Any]:
    """Description of a value for the page: shape, dtype, statistics, histogram, and a picture or a line of it.

    Args:
        statistics: The array's.
        is_kernel: Whether it has a kernel of images: shape (height, width, inputs, outputs).
    """
    histogram = histogram_of(array, statistics, BINS) if is_number(array.dtype) else None
    return {
        "shape": array.shape,
        "dtype": str(array.dtype),
        **{name: finite(value) for name, value in statistics.figures.items()},
        "histogram": histogram and histogram._asdict(),
        "view": _view(array, is_kernel),
    }


def finite(value: float) -> float | None:
    """A number as JSON has it: None for one that is not finite."""
    return value if math.isfinite(value) else None


def _view(array: _Array, is_kernel: bool) -> dict[str, Any] | None:
    if not is_number(array.dtype) or array.size <= 1:
        return None
    if is_kernel and array.ndim == 4:
        array = array.transpose(3, 0, 1, 2)
    elif array.ndim == 4 and array.shape[1] in (1, _COLOURS) and array.shape[3] not in (1, _COLOURS):
        array = np.moveaxis(array, 1, -1)  # channels first, as in files of other libraries
    while array.ndim > 4:
        array = array[0]
    array = array.squeeze()
    if not array.ndim:
        return None
    if array.ndim == 1:
        return _line(array)
    if array.ndim == 2:
        step = -(-array.shape[1] // _COLUMNS)
        tiles, whole, steps, each = array[None, :_ROWS, ::step], array.shape, (1, step), 1
    else:
        if array.ndim == 3:
            is_coloured = array.shape[-1] == _COLOURS < min(array.shape[:2])
            array = array[None] if is_coloured else array[..., None]
        whole, channels = array.shape, array.shape[-1]
        step = max(1, -(-max(whole[1:3]) // _SIDE))
        each = channels if channels in (1, _COLOURS) else min(channels, _CHANNELS)
        images = array[: _IMAGES if each in (1, _COLOURS) else _DEEP_IMAGES, ::step, ::step, :each]
        tiles = images if each == _COLOURS else np.concatenate([*images.transpose(0, 3, 1, 2)])
        steps = step, step
    levels, low, high = _levels(tiles)
    return {
        "kind": "picture",
        "of": whole,
        "steps": steps,
        "low": finite(low),
        "high": finite(high),
        "count": levels.shape[0],
        "each": each if levels.ndim == 3 else 1,
        "height": levels.shape[1],
        "width": levels.shape[2],
        "channels": levels.shape[3] if levels.ndim == 4 else 1,
        "levels": base64.b64encode(levels.tobytes()).decode(),
    }


@np.errstate(all="ignore")
def _levels(tiles: _Array) -> tuple[npt.NDArray[np.uint8], float, float]:
    """Elements as numbers from 1, for the smallest of them, to 255, for the largest, and these two; 0 is not finite."""
    values = (np.abs(tiles) if tiles.dtype.kind == "c" else tiles).astype(np.float64)
    is_finite = np.isfinite(values)
    low = float(values.min(initial=math.inf, where=is_finite))
    high = float(values.max(initial=-math.inf, where=is_finite))
    span = high / 2 - low / 2  # halves do not overflow
    share = (values / 2 - low / 2) / span if span else np.full(values.shape, 0.5)
    return np.where(is_finite, 1 + np.rint(254 * share), 0).astype(np.uint8), low, high


def _line(array: _Array) -> dict[str, Any]:
    ends = np.linspace(0, array.size, (array.size if array.size <= _POINTS else _PARTS) + 1).astype(np.int64).tolist()
    low: list[float | None] = []
    high: list[float | None] = []
    for begin, end in pairwise(ends):
        part = array[begin:end]
        part = (np.abs(part) if part.dtype.kind == "c" else part).astype(np.float64)
        part = part[np.isfinite(part)]
        low.append(float(part.min()) if part.size else None)
        high.append(float(part.max()) if part.size else None)
    return {"kind": "line", "size": array.size, "low": low, "high": high}
