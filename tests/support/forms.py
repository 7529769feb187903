"""Expressions of one value or two, of any shapes, by their names: steps of random graphs and of random expressions.

They are for blobs and for lazy arrays. The elementwise ones are those of the table of operations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.ops.rows import Elementwise
from tests.operations import ROWS, Row

Form = Callable[..., Any]

#: Where a function must be defined, and not large, to be applied to what others have computed as it is.
POINTS = np.array([-2.9, -1.2, -0.4, 0.0, 0.3, 1.7, 3.1])
LARGE = 30.0
AXES = "sum mean max min prod"
TRUTHS = "all any"
POSITIONS = "argmax argmin count_nonzero"
LINES = "cumsum cumprod sort softmax log_softmax"


def within(low: float, high: float, x: Any) -> Any:
    """Numbers between two, which grow with others."""
    return low + (high - low) * ops.sigmoid(x)


def _is_defined(row: Row, count: int) -> bool:
    """Whether an operation has a result of moderate size for any moderate numbers."""
    assert row.numpy is not None
    points = np.meshgrid(*[POINTS] * count)
    with np.errstate(all="ignore"):
        found = row.numpy(*points, **row.first.parameters)
    return bool((np.abs(found) < LARGE).all())


def _applied(row: Row, bounds: list[tuple[float, float]]) -> Form:
    def form(*operands: Any) -> Any:
        if bounds:
            operands = tuple(within(*each, x) for each, x in zip(bounds, operands, strict=True))
        y = row.first.apply(*operands)
        return y if y.dtype.kind == "f" else ops.where(y, operands[0], operands[-1] * 0.5)

    return form


@cache
def elementwise(count: int) -> dict[str, Form]:
    """Operations of so many operands, which lie where these are defined; by conditions the first one is chosen."""
    forms = {}
    for row in ROWS.values():
        kind = row.kind
        if kind is None or not issubclass(kind, Elementwise) or "f" not in kind.kinds or kind.conditions:
            continue
        arrays = row.first.inputs("float64")
        (result,) = row.first.operation.infer(*row.first.specs("float64"))
        is_known = result.dtype.kind == "b" or (result.dtype.kind == "f" and kind.differentiable)
        if len(arrays) == count and is_known and row.numpy is not None:
            is_defined = _is_defined(row, count)
            forms[row.name] = _applied(row, [] if is_defined else [(float(x.min()), float(x.max())) for x in arrays])
    return forms


#: Python's operators, with numbers and between values.
ONE: dict[str, Form] = {
    **elementwise(1),
    "-x": operator.neg,
    "+x": operator.pos,
    "abs(x)": abs,
    "x**2": lambda x: x**2,
    "x**3": lambda x: x**3,
    "x**0.5": lambda x: within(0.5, 2.0, x) ** 0.5,
    "2**x": lambda x: 2.0**x,
    "1.5 - x": lambda x: 1.5 - x,
    "1 / x": lambda x: 1 / within(0.5, 2.0, x),
    "clip": lambda x: ops.clip(x, -0.7, 1.1),
}
TWO: dict[str, Form] = {
    **elementwise(2),
    "x + y": operator.add,
    "x - y": operator.sub,
    "x * y": operator.mul,
    "x / y": lambda x, y: x / within(0.5, 2.0, y),
    "x // y": lambda x, y: x // within(0.5, 2.0, y),
    "x % y": lambda x, y: x % within(0.5, 2.0, y),
    "x**y": lambda x, y: within(0.5, 2.0, x) ** within(-1.0, 1.0, y),
    "x < y": lambda x, y: ops.where(x < y, x * 2.0, y),
    "x >= 0.5": lambda x, y: ops.where(x >= 0.5, 0.25, y),
    "x > y": lambda x, y: (x > y).astype("float64") * x,
    "&, |, ~": lambda x, y: ops.where((x <= y) & ~(x < 0.1) | (y > 1.0), y, x),
    "^": lambda x, y: ops.where((x <= y) ^ (x < 0.1), y, x),
}


def over_axes(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Form]:
    """Reductions and the like, by functions and by methods."""
    rank = len(shape)
    axes = [None, *range(-rank, rank), *([(0, -1)] if rank > 1 else [])]
    axis, keep = axes[rng.integers(len(axes))], bool(rng.integers(2))
    one = axis if isinstance(axis, int) else None

    def called(name: str, x: Any, axis: Any = axis) -> Any:
        return getattr(ops, name)(x, axis=axis, keepdims=keep)

    def method(name: str, x: Any) -> Any:
        return getattr(x, name)(axis=axis, keepdims=keep)

    forms: dict[str, Form] = {name: partial(called, name) for name in AXES.split()}
    forms |= {f"{name}()": partial(method, name) for name in AXES.split()}
    forms |= {name: lambda x, name=name: method(name, x > 0.3).astype("float64") for name in TRUTHS.split()}
    forms |= {name: lambda x, name=name: called(name, x, one).astype("float64") * 0.5 for name in POSITIONS.split()}
    if one is not None:
        forms |= {name: lambda x, name=name: getattr(ops, name)(x, axis=one) for name in LINES.split()}
        forms["top_k"] = lambda x: ops.top_k(x, 1, axis=one)[0]
        forms["argsort"] = lambda x: ops.argsort(x, axis=one).astype("float64")
    return forms


def shapes(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Form]:
    """Other shapes, and parts."""
    rank, order = len(shape), [int(i) for i in rng.permutation(len(shape))]
    axis = int(rng.integers(-rank, rank)) if rank else 0
    forms: dict[str, Form] = {
        "reshape()": lambda x: x.reshape(*x.shape[::-1], 1),
        "reshape(-1)": lambda x: ops.reshape(x, (-1,)),
        "flatten()": lambda x: x.flatten(),
        "transpose()": lambda x: x.transpose(order),
        "x[None].squeeze()": lambda x: x[None].squeeze(axis=0) + x[..., None].squeeze(axis=-1),
        "squeeze()": lambda x: x.squeeze(),
        "expand_dims": lambda x: ops.expand_dims(x, axis=axis),
        "broadcast_to": lambda x: ops.broadcast_to(x, (2, *x.shape)),
        "stack": lambda x: ops.stack([x, x * 0.5], axis=axis),
        "flip": lambda x: ops.flip(x),
        "astype": lambda x: x.astype("float64"),
    }
    if rank:
        n = shape[axis]
        forms |= {
            "concat": lambda x: ops.concat([x, x * 2.0, x[:1] if axis % rank == 0 else x], axis=axis),
            "flip(axis)": lambda x: ops.flip(x, axis=axis),
            "x[1:]": lambda x: x[n - 1 if axis == 0 else 0 :],
            "x[..., ::-2]": lambda x: x[..., ::-2],
            "x[0]": lambda x: x[0],
            "x[..., -1, None]": lambda x: x[..., -1, None],
            "x[[...]]": lambda x: x[np.arange(3) % x.shape[0]],
            "x[..., [...]]": lambda x: x[..., [0, -1, 0]],
            "roll": lambda x: ops.roll(x, 1, axis=axis),
            "repeat": lambda x: ops.repeat(x, 2, axis=axis),
            "moveaxis": lambda x: ops.moveaxis(x, axis, 0),
            "isin": lambda x: ops.isin(x, ops.where(x > 0.3, x, 0.5)).astype("float64"),
            "searchsorted": lambda x: ops.searchsorted(ops.sort(x.reshape(-1)), x).astype("float64"),
            "unstack": lambda x: ops.unstack(x, axis=axis)[n - 1],
            "tile": lambda x: ops.tile(x, (2,)),
        }
    return forms


def products(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Form]:
    """Products of matrices."""
    if len(shape) < 2:
        return {}
    left, right = rng.standard_normal((2, shape[-2])), rng.standard_normal((shape[-1], 3))
    return {
        "x @ matrix": lambda x: x @ right,
        "matrix @ x": lambda x: left @ x,
        "x.mT @ x": lambda x: x.mT @ x,
        "matmul": lambda x: ops.matmul(x, x.mT),
        "tril": ops.tril,
        "triu": lambda x: ops.triu(x, k=1),
        "einsum": lambda x: ops.einsum("...ij,...kj->...ik", x, x * 0.5 + 1.0),
        "matrix_transpose": ops.matrix_transpose,
        "vecdot": lambda x: ops.vecdot(x, x * 0.5 + 1.0),
        "x.T": lambda x: x.reshape(-1, x.shape[-1]).T,
    }


def drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Form]:
    """One of these tables: of one operand, of two, or for a shape."""
    kind = rng.integers(6)
    if kind < 4:
        return ONE if kind < 2 else TWO
    return {name: form for make in (over_axes, shapes, products) for name, form in make(rng, shape).items()}
