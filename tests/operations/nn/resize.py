"""Resizing along an axis."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.resize import MODES, Resize, ResizeDown
from tests.operations.table import FLOATING, Row, Sample, Wrong, backward, normal, refused

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_RESIZED = [
    *(Resize(1, size, mode) for mode in ("linear", "nearest", "cubic") for size in (3, 1, 6, 13)),
    *(Resize(1, 9, "linear", coordinates) for coordinates in COORDINATES[1:]),
    *(Resize(1, 9, "nearest", "asymmetric", how) for how in ("floor", "ceil", "round_prefer_ceil")),
    Resize(1, 8, "cubic", cubic=-0.5, scale=1.45),
    *(
        Resize(axis, 7, mode, scale=scale)
        for axis, mode, scale in ((0, "linear", 2.5), (3, "cubic", None), (2, "nearest", 3.5))
    ),
]
#: Lengths before and after, for differences.
_SMALL = [(3, 7), (5, 2), (1, 4), (4, 1), (4, 4)]


def place_of(i: int, n: int, size: int, coordinates: str, scale: float | None) -> Fraction:
    """Where an element of a result lies, as the documentation says it."""
    step = Fraction(n, size) if scale is None else 1 / Fraction(scale)
    if coordinates == "align_corners":
        return Fraction(i * (n - 1), size - 1) if size > 1 else Fraction(0)
    if coordinates == "asymmetric":
        return i * step
    if coordinates == "pytorch_half_pixel" and size == 1:
        return Fraction(0)
    return (i + Fraction(1, 2)) * step - Fraction(1, 2)


def keys(d: float, a: float) -> float:
    """Keys' kernel."""
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def rounded(place: Fraction, rounding: str) -> int:
    """The nearest element."""
    floor, ceil = math.floor(place), math.ceil(place)
    if rounding in ("floor", "ceil"):
        return floor if rounding == "floor" else ceil
    if place - floor == ceil - place:
        return floor if rounding == "round_prefer_floor" else ceil
    return round(place)


def matrix(n: int, size: int, mode: str, coordinates: str, rounding: str, cubic: float, scale: Any) -> np.ndarray:
    """The result as a product with this matrix."""
    found = np.zeros((size, n))
    for i in range(size):
        place = place_of(i, n, size, coordinates, scale)
        if mode == "nearest":
            weights = {rounded(place, rounding): 1.0}
        elif mode == "linear":
            weights = {j: float(1 - abs(place - j)) for j in range(math.floor(place), math.floor(place) + 2)}
        else:
            near = range(math.floor(place) - 1, math.floor(place) + 3)
            weights = {j: keys(float(place - j), cubic) for j in near}
        for j, weight in weights.items():
            found[i, min(max(j, 0), n - 1)] += weight
    return found


def along(weights: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    """The product along an axis."""
    return np.moveaxis(np.tensordot(weights, x, (1, axis)), 0, axis)


def parameters_of(operation: Resize) -> dict[str, Any]:
    """What the matrix follows from, besides the length."""
    return {name: getattr(operation, name) for name in ("size", "mode", "coordinates", "rounding", "cubic", "scale")}


def _resized(x: np.ndarray, axis: int, **how: Any) -> np.ndarray:
    return along(matrix(x.shape[axis], **how), x, axis)


def _down(g: np.ndarray, forward: Resize, length: int) -> np.ndarray:
    return along(matrix(length, **parameters_of(forward)).T, g, forward.axis)


_SHAPE = (3, 6, 2, 5)


def _down_of(operation: Resize) -> Sample:
    g = tuple(operation.size if axis == operation.axis else n for axis, n in enumerate(_SHAPE))
    return Sample(ResizeDown(operation, _SHAPE[operation.axis]), normal(g))


_FEW = [
    (Resize(1, size, mode, how), n) for mode in MODES for (n, size), how in zip(_SMALL, COORDINATES * 2, strict=False)
]

ROWS = [
    Row(
        Resize,
        [
            *(Sample(operation, normal(_SHAPE)) for operation in _RESIZED),
            *(Sample(operation, normal((2, n, 2))) for operation, n in _FEW),
        ],
        numpy=_resized,
        without={"torch": "its images are channels-first: tests/oracle"},
        dtypes=FLOATING,
        onnx="Resize",
    ),
    backward(
        ResizeDown,
        _down,
        [
            *map(_down_of, _RESIZED),
            *(Sample(ResizeDown(operation, n), normal((2, operation.size, 2))) for operation, n in _FEW),
        ],
    ),
]

_IMAGE = (1, 4, 4, 1)

WRONG = [
    *refused(
        af.ShapeError,
        (lambda x: ops.resize(x, 2), [(1, 0, 4, 1)], "Resize: x must have at least 1 element on axis 1"),
        (ResizeDown(Resize(1, 3), 2), [(1, 4, 1)], "ResizeDown: g must have length 3 on axis 1, got"),
    ),
    Wrong(lambda x: ops.resize(x, 2), [("int64", 1, 4, 1)], af.DTypeError, "Resize: x must be floating, got int64"),
    *refused(
        af.GraphError,
        (lambda: ops.resize([1.0], 2), [], "resize: x must be a blob or an array, got list"),
        (lambda x: ops.resize(x, 2), [(4, 1)], r"one for each spatial axis, got 2 and None; x is float32\[4, 1\]"),
    ),
    *(
        Wrong(lambda x, how=how: ops.resize(x, **how), [_IMAGE], af.GraphError, match)
        for how, match in (
            ({}, "resize: either size or scale must be a number, or one for each spatial axis, got None and"),
            ({"size": 2, "scale": 2.0}, "either size or scale must be a number"),
            ({"size": (2, 2, 2)}, r"got \(2, 2, 2\) and None; x is float32\[1, 4, 4, 1\]"),
            ({"size": 0}, "size must be at least 1 and scale positive, got 0 and None"),
            ({"scale": 0.1}, "size must be at least 1 and scale positive, got 0 and 0.1"),
            ({"scale": -1.0}, "size must be at least 1 and scale positive"),
            ({"size": 2, "mode": "area"}, "mode must be one of nearest, linear, cubic, got 'area'"),
            ({"size": 2, "coordinates": "other"}, "coordinates must be one of half_pixel, pytorch_half_pixel"),
            ({"size": 2, "rounding": "up"}, "rounding must be one of floor, ceil, round_prefer_floor"),
        )
    ),
]
