"""Sums, products, maxima, their positions, counts."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops import Operation
from tests.operations.elementwise import FEW_POINTS, POINTS, triples
from tests.operations.table import INTEGERS, Row, Sample, fixed, flags, integers, normal, refused, whole

AXES = (None, (0,), (1,), (2,), (0, 1), (0, 2))
NUMBERS = (*("float16", "bfloat16", "float32", "float64"), *INTEGERS)
_ZEROS = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]])
_LARGE = 70_000


def _wide(function: Any) -> Any:
    """A reduction whose result has the dtype of its input, which 16 bits are too few for."""
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims)


def _by_axes(kind: Any, *makes: Any, axes: Any = AXES) -> list[Sample]:
    """Along each of some axes; one of them stays. Few different values have many maxima."""
    return [
        Sample(kind(axis, axis == (1,)), make, smooth=kind in (ops.ReduceSum, ops.ReduceProd))
        for axis in axes
        for make in makes
    ]


def _of_torch(name: str) -> Any:
    def reduced(torch: Any, x: Any, axis: Any, keepdims: bool) -> Any:
        axes = tuple(range(x.ndim)) if axis is None else axis
        if name == "prod":
            for i in sorted((i % x.ndim for i in axes), reverse=True):
                x = torch.prod(x, i, keepdim=keepdims)
            return x
        return getattr(torch, name)(x, axes, keepdim=keepdims)

    return reduced


def _one_axis(name: str) -> Any:
    return lambda torch, x, axis, keepdims: getattr(torch, name)(x, None if axis is None else axis[0], keepdims)


_BLOCK = (4, 30, 6)
_SUMS = (whole(-1, _BLOCK), integers(_BLOCK, high=3))


def _reduction(kind: type[Operation], name: str, torch: Any, samples: list[Sample], **more: Any) -> Row:
    points = {"prod": FEW_POINTS, "sum": POINTS, "mean": POINTS, "max": POINTS, "min": POINTS}.get(name)
    return Row(
        kind,
        samples,
        corners=[Sample(kind((1,)), triples(points))] if points is not None else (),
        numpy=_wide(getattr(np, name)),
        torch=torch,
        standard=None if name in ("argmax", "argmin") else name,
        **{"dtypes": NUMBERS, "onnx": kind.__name__, **more},
    )


def _positions(name: str) -> Any:
    def found(x: np.ndarray, axis: Any, keepdims: bool) -> Any:
        return getattr(np, name)(x, axis=None if axis is None else axis[0], keepdims=keepdims)

    return found


ROWS = [
    _reduction(
        ops.ReduceSum,
        "sum",
        _of_torch("sum"),
        [
            Sample(ops.ReduceSum((0,)), normal((2, 3))),
            *_by_axes(ops.ReduceSum, *_SUMS),
            Sample(ops.ReduceSum(), integers((_LARGE,))),
        ],
        dtypes=(*NUMBERS, "complex64", "complex128"),
    ),
    _reduction(
        ops.ReduceMean,
        "mean",
        _of_torch("mean"),
        [
            Sample(ops.ReduceMean((1,), True), normal((2, 3))),
            *(Sample(ops.ReduceMean(axis), normal(_BLOCK)) for axis in AXES),
        ],
        dtypes=("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    ),
    *(
        _reduction(
            kind,
            name,
            _of_torch(torch),
            [
                Sample(kind((0,)), normal((4, 3))),
                Sample(kind(), normal((4, 3))),
                *_by_axes(kind, *_SUMS),
                Sample(kind(), whole(-3, (_LARGE,)), smooth=False),
            ],
        )
        for kind, name, torch in ((ops.ReduceMax, "max", "amax"), (ops.ReduceMin, "min", "amin"))
    ),
    _reduction(
        ops.ReduceProd,
        "prod",
        _of_torch("prod"),
        [
            Sample(ops.ReduceProd((1,)), fixed(_ZEROS)),
            Sample(ops.ReduceProd((2, 0), True), normal((3, 2, 5))),
            Sample(ops.ReduceProd(), normal((1,))),
            *_by_axes(ops.ReduceProd, *_SUMS),
            Sample(ops.ReduceProd(), lambda random: [random.choice([-1.0, 1.0], _LARGE)]),
        ],
        dtypes=(*NUMBERS, "complex64", "complex128"),
    ),
    _reduction(
        ops.CountNonzero,
        "count_nonzero",
        lambda torch, x, axis, keepdims: (x != 0).sum(tuple(range(x.ndim)) if axis is None else axis, keepdim=keepdims),
        [*_by_axes(ops.CountNonzero, *_SUMS), Sample(ops.CountNonzero(), whole(-3, (_LARGE,)))],
        onnx="",
    ),
    *(
        _reduction(
            kind,
            name,
            _of_torch(name),
            [Sample(kind(axis), flags(shape)) for shape in (_BLOCK, (4, 3, 1)) for axis in AXES],
            dtypes=("bool",),
            onnx=onnx,
        )
        for kind, name, onnx in ((ops.ReduceAny, "any", "ReduceMax"), (ops.ReduceAll, "all", "ReduceMin"))
    ),
    *(
        Row(
            kind,
            [
                Sample(kind(axis), make)
                for axis in (None, (0,), (1,), (2,))
                for make in (whole(-3, (4, 90, 6)), integers((4, 90, 6)))
            ],
            numpy=_positions(name),
            torch=_one_axis(name),
            standard=lambda xp, x, axis, keepdims, name=name: getattr(xp, name)(
                x, axis=None if axis is None else axis[0], keepdims=keepdims
            ),
            dtypes=NUMBERS,
            onnx=kind.__name__,
        )
        for kind, name in ((ops.ArgMax, "argmax"), (ops.ArgMin, "argmin"))
    ),
]

_X = (2, 3)

WRONG = [
    *refused(
        af.ShapeError,
        (lambda x: ops.sum(x, 2), [_X], "ReduceSum: axis must be from -2 to 1, got 2"),
        (lambda x: ops.sum(x, (0, -2)), [_X], "each axis can be given once"),
        (lambda x: ops.max(x, 0), [(0, 3)], "ReduceMax: x must have at least 1 element"),
    ),
    *refused(
        af.DTypeError,
        (ops.any, [_X], "ReduceAny: x must be bool"),
        (ops.mean, [("int64", 2)], "ReduceMean: x must be floating"),
    ),
]
