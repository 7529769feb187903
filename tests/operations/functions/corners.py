"""Functions at kinks and corners, where there are no differences, and PyTorch's choice is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Corner(NamedTuple):
    """A function at a point.

    Attributes:
        name: Of the function.
        form: ``form(xp, *arrays)``.
        arrays: The point.
        slopes: Gradients of the sum of its results; None where those of PyTorch alone are compared.
    """

    name: str
    form: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    slopes: list[Any] | None

    def __str__(self) -> str:
        return self.name


def _spread(xp: Any, x: Any) -> Any:
    return xp.var(x, axis=1, correction=1) + xp.std(x, correction=1)


def _sign(xp: Any, x: Any) -> Any:
    return xp.sgn(x) if hasattr(xp, "sgn") else xp.sign(x)  # as PyTorch has it of complex numbers


def _norm(order: float) -> Callable[..., Any]:
    return lambda xp, x: xp.linalg.vector_norm(x, ord=order, axis=(0, 2), keepdims=True)


_ZEROS, _TIES = np.zeros((2, 2, 2)), np.array([[2.0], [1.0], [2.0], [1.0]])

CORNERS = [
    Corner(name, form, tuple(map(np.asarray, arrays)), slopes)
    for name, form, arrays, slopes in (
        ("abs", lambda xp, x: xp.abs(x), [np.zeros(3)], [[0, 0, 0]]),
        ("sqrt", lambda xp, x: xp.sqrt(x), [np.zeros(2)], [[np.inf, np.inf]]),
        ("sign of 0j", _sign, [np.zeros(2, complex)], [np.zeros(2)]),
        (
            "maximum",
            lambda xp, x, y: xp.maximum(x, y),
            [[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]],
            [[0.5, 1, 0.5], [0.5, 0, 0.5]],
        ),
        ("minimum", lambda xp, x, y: xp.minimum(x, y), [[[1.0, 2.0], [0.0, 2.0]], [1.0, 2.0]], None),
        ("clip", lambda xp, x: xp.clip(x, -0.5, 0.7), [[-0.5, 0.7, 0.0, -2.0, 2.0]], [[1, 1, 1, 0, 0]]),
        ("clip from below", lambda xp, x: xp.clip(x, min=0.0), [[0.0, -0.0, 1.0]], [[1, 1, 1]]),
        ("max", lambda xp, x: xp.max(x), [[[[1.0, 3.0], [3.0, 3.0]]]], [[[[0, 1 / 3], [1 / 3, 1 / 3]]]]),
        (
            "max along an axis",
            lambda xp, x: xp.max(x, axis=0, keepdims=True),
            [[[[1.0, 3.0]], [[1.0, 2.0]]]],
            [[[[0.5, 1]], [[0.5, 0]]]],
        ),
        ("min along axes", lambda xp, x: xp.min(x, axis=(0, 2)), [np.ones((2, 3, 2))], None),
        ("spread", _spread, [np.ones((2, 3))], [np.zeros((2, 3))]),
        (
            "pow",
            lambda xp, x, y: xp.pow(x, y),
            [[0.0, 0.0, 0.0, 2.0], [0.0, 2.0, 1.0, 0.0]],
            [[0, 0, 1, 0], [0, 0, 0, np.log(2)]],
        ),
        ("vector_norm 2", _norm(2), [_ZEROS], [_ZEROS]),
        ("vector_norm 1", _norm(1), [_ZEROS], [_ZEROS]),
        ("vector_norm 3", _norm(3), [[[[0.0, 2.0]], [[0.0, 1.0]]]], None),
        ("vector_norm inf", _norm(np.inf), [[[[2.0, -2.0]], [[0.0, 1.0]]]], None),
        ("matrix_norm", lambda xp, x: xp.linalg.matrix_norm(x), [np.zeros((1, 2, 2))], [np.zeros((1, 2, 2))]),
        ("sort", lambda xp, x: xp.sort(x, axis=0), [_TIES], None),
        ("sort downwards", lambda xp, x: xp.sort(x, axis=0, descending=True), [_TIES], None),
        ("cumulative_prod", lambda xp, x: xp.cumulative_prod(x, axis=1), [np.zeros((2, 4))], None),
        ("det of rank 1", lambda xp, x: xp.linalg.det(x), [[[1.0, 2.0], [2.0, 4.0]]], [[[4, -2], [-2, 1]]]),
        ("det of rank 2", lambda xp, x: xp.linalg.det(x), [np.diag([1.0, 2.0, 0.0])], [np.diag([0, 0, 2])]),
    )
]
