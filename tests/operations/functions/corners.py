"""Functions at kinks and corners, where there are no differences, and PyTorch's choice is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.operations.elementwise import FEW_POINTS, triples
from tests.operations.functions.draws import found


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
    arrays: list[np.ndarray]
    slopes: list[Any] | None

    def __str__(self) -> str:
        return self.name


def _at(name: str, *arrays: Any, slopes: list[Any] | None = None, **parameters: Any) -> Corner:
    """A function by its name in the standard; that in PyTorch is another one for complex signs."""

    def form(xp: Any, *operands: Any) -> Any:
        own = xp.sgn if name == "sign" and hasattr(xp, "sgn") else found(xp, name)
        return own(*operands, **parameters)

    return Corner(name, form, [np.asarray(x) for x in arrays], slopes)


def _norm(point: Any, order: float, slopes: Any = None) -> Corner:
    return _at("linalg.vector_norm", point, slopes=slopes, ord=order, axis=(0, 2), keepdims=True)


_ZEROS, _TIES = np.zeros((2, 2, 2)), np.array([[2.0], [1.0], [2.0], [1.0]])

CORNERS = [
    _at("abs", [0.0, 0.0, 0.0], slopes=[[0, 0, 0]]),
    _at("sqrt", [0.0, 0.0], slopes=[[np.inf, np.inf]]),
    _at("sign", [0j, 0j], slopes=[[0, 0]]),
    _at("maximum", [1.0, 2.0, 0.0], [1.0, 0.0, 0.0], slopes=[[0.5, 1, 0.5], [0.5, 0, 0.5]]),
    _at("minimum", [[1.0, 2.0], [0.0, 2.0]], [1.0, 2.0]),
    _at("clip", [-0.5, 0.7, 0.0, -2.0, 2.0], slopes=[[1, 1, 1, 0, 0]], min=-0.5, max=0.7),
    _at("clip", [0.0, -0.0, 1.0], slopes=[[1, 1, 1]], min=0.0),
    _at("max", [[[1.0, 3.0], [3.0, 3.0]]], slopes=[[[[0, 1 / 3], [1 / 3, 1 / 3]]]]),
    _at("max", [[[1.0, 3.0]], [[1.0, 2.0]]], slopes=[[[[0.5, 1]], [[0.5, 0]]]], axis=0, keepdims=True),
    _at("min", np.ones((2, 3, 2)), axis=(0, 2)),
    _at("var", np.ones((2, 3)), slopes=[np.zeros((2, 3))], axis=1, correction=1),
    _at("var", *triples(FEW_POINTS)(np.random.default_rng(0)), axis=1),
    _at("std", [[2.0, 2.0, 2.0], [0.0, -0.0, 0.0], [1.0, 2.0, 2.0]], axis=1),
    _at("std", np.ones((2, 3)), slopes=[np.zeros((2, 3))], correction=1),
    _at("pow", [0.0, 0.0, 0.0, 2.0], [0.0, 2.0, 1.0, 0.0], slopes=[[0, 0, 1, 0], [0, 0, 0, np.log(2)]]),
    *(_norm(_ZEROS, order, [_ZEROS]) for order in (1, 2)),
    _norm([[[0.0, 2.0]], [[0.0, 1.0]]], 3),
    _norm([[[2.0, -2.0]], [[0.0, 1.0]]], np.inf),
    _at("linalg.matrix_norm", np.zeros((1, 2, 2)), slopes=[np.zeros((1, 2, 2))]),
    *(_at("sort", _TIES, axis=0, descending=descending) for descending in (False, True)),
    _at("cumulative_prod", np.zeros((2, 4)), axis=1),
    _at("linalg.det", [[1.0, 2.0], [2.0, 4.0]], slopes=[[[4, -2], [-2, 1]]]),
    _at("linalg.det", np.diag([1.0, 2.0, 0.0]), slopes=[np.diag([0, 0, 2])]),
]
