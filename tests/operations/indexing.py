"""Parts of arrays by keys and indices, writing into them, borders."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.indexing import INDEX, AddAt, Gather, PadDown, TakeAlongAxisDown, TakeDown, numpy_key
from tests.operations.shaping import ANYTHING
from tests.operations.table import (
    FLOATS,
    INTEGERS,
    Make,
    Row,
    Sample,
    adjoint,
    backward,
    fixed,
    integers,
    normal,
    refused,
)

NUMBERS = ("float16", "bfloat16", "float32", "float64", *INTEGERS)
PLACES = (INDEX, (None, None, -1), INDEX)
KEYS = [((1, 4, 2), (0, 3, None), (2, None, -2)), (-1, None, (0, 0, None)), ()]
MODES = ("set", "add", "mul", "min", "max")
_WIDTHS = ((2, 1), (0, 3), (1, 0))
_BORDER = ((3, 4, 5), tuple(n + before + after for n, (before, after) in zip((3, 4, 5), _WIDTHS, strict=True)))
_FUNCTIONS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _placed(*shapes: tuple[int, ...]) -> Make:
    """Arrays, and indices of the first and of the third axis, of length 4 and 5."""
    return lambda random: [
        *(random.integers(-3, 4, shape).astype(np.float64) for shape in shapes),
        random.integers(0, 4, 6),
        random.integers(-5, 5, 6),
    ]


def _picked(shape: tuple[int, ...], picked: tuple[int, ...], length: int, dtype: str = "int64") -> Make:
    low = 0 if dtype[0] == "u" else -length
    return lambda random: [
        np.asarray(random.standard_normal(shape)),
        np.asarray(random.integers(low, length, picked)).astype(dtype),
    ]


def _key(key: Any, indices: Any) -> Any:
    return numpy_key(key, indices)


def _added(g: np.ndarray, *indices: np.ndarray, key: Any, shape: Any) -> np.ndarray:
    y = np.zeros(shape, g.dtype)
    np.add.at(y, _key(key, indices), g)
    return y


def _put(x: np.ndarray, values: np.ndarray, *indices: np.ndarray, key: Any, mode: str) -> np.ndarray:
    y, at = x.copy(), _key(key, indices)
    if mode == "set":
        y[at] = values
    else:
        _FUNCTIONS[mode].at(y, at, values)
    return y


def _taken_down(g: np.ndarray, indices: np.ndarray, length: int, axis: int) -> np.ndarray:
    last = np.moveaxis(g, range(axis, axis + indices.ndim), range(indices.ndim))
    y = np.zeros((length, *last.shape[indices.ndim :]), g.dtype)
    np.add.at(y, indices, last)
    return np.moveaxis(y, 0, axis)


def _along_down(g: np.ndarray, indices: np.ndarray, length: int, axis: int) -> np.ndarray:
    shape = tuple(length if i == axis else n for i, n in enumerate(g.shape))
    y = np.zeros(shape, g.dtype)
    at = list(np.indices(g.shape, sparse=True))
    at[axis] = indices
    np.add.at(y, tuple(at), g)
    return y


def _padded(x: np.ndarray, widths: Any, mode: str, value: float) -> np.ndarray:
    return np.pad(x, widths, mode, **({"constant_values": value} if mode == "constant" else {}))  # type: ignore[call-overload]


def _pad_down(g: np.ndarray, widths: Any, mode: Any) -> np.ndarray:
    shape = tuple(n - sum(pair) for n, pair in zip(g.shape, widths, strict=True))
    return adjoint(lambda x: np.pad(x, widths, mode), shape, g)


ROWS = [
    Row(
        ops.Slice,
        [
            Sample(ops.Slice(((0, 2, 1), (1, 3, 2))), normal((2, 3))),
            *(Sample(ops.Slice(key), normal((4, 3, 5))) for key in KEYS),
        ],
        numpy=lambda x, key: x[_key(key, ())],
        without={"torch": "PyTorch has no negative steps"},
        dtypes=ANYTHING,
        onnx="Slice",
    ),
    Row(
        AddAt,
        [
            Sample(AddAt(((0, 2, 1), (1, 3, 2)), (2, 3)), normal((2, 1))),
            *(Sample(AddAt(key, (4, 3, 5)), normal(np.empty((4, 3, 5))[numpy_key(key)].shape)) for key in KEYS),
            Sample(AddAt(PLACES, (4, 3, 5)), _placed((6, 3))),
        ],
        numpy=_added,
        without={"torch": "PyTorch has no negative steps"},
        dtypes=NUMBERS,
    ),
    Row(
        Gather,
        [Sample(Gather(PLACES), _placed((4, 3, 5)))],
        numpy=lambda x, *indices, key, count: x[_key(key, indices)],
        without={"torch": "PyTorch has no negative steps"},
        dtypes=ANYTHING,
    ),
    Row(
        ops.Scatter,
        [
            Sample(ops.Scatter(PLACES, mode), _placed((4, 3, 5), (6, 3)), smooth=mode in ("set", "add"))
            for mode in MODES
        ],
        numpy=_put,
        without={"torch": "of what is written to one place the last one counts here, all of it there"},
        dtypes=NUMBERS,
    ),
    Row(
        ops.Flip,
        [Sample(ops.Flip(axis), normal((4, 3, 5))) for axis in ((1,), None)],
        numpy=np.flip,
        torch=lambda torch, x, axis: torch.flip(x, tuple(range(x.ndim)) if axis is None else axis),
        standard="flip",
        dtypes=ANYTHING,
        onnx="Slice",
    ),
    Row(
        ops.Pad,
        [
            Sample(ops.Pad(((1, 0), (2, 1)), "constant", 3.0), normal((2, 3))),
            Sample(ops.Pad(((1, 0), (2, 1)), "reflect"), normal((2, 3))),
            Sample(ops.Pad(((1, 2), (2, 3)), "wrap"), normal((2, 3))),
            *(
                Sample(ops.Pad(_WIDTHS, mode, 1.5), normal(_BORDER[0]))
                for mode in ("constant", "reflect", "edge", "wrap")
            ),
            *(
                Sample(ops.Pad(widths, mode), normal((3, 4, 5)))
                for mode in ("constant", "reflect", "edge", "wrap")
                for widths in (((2, 1), (0, 3), (2, 2)), ((0, 0), (3, 0), (0, 2)), ((0, 0), (0, 0), (0, 0)))
            ),
        ],
        numpy=_padded,
        without={"torch": "its modes are of the last axes alone"},
        dtypes=ANYTHING,
        onnx="Pad",
    ),
    backward(
        PadDown,
        _pad_down,
        [
            Sample(PadDown(((1, 0), (2, 1)), "edge"), normal((3, 6))),
            Sample(PadDown(((1, 2), (2, 3)), "wrap"), normal((5, 8))),
            *(Sample(PadDown(_WIDTHS, mode), normal(_BORDER[1])) for mode in ("reflect", "edge", "wrap")),
        ],
        dtypes=FLOATS,
    ),
    Row(
        ops.Take,
        [
            Sample(ops.Take(1), fixed(np.random.default_rng(0).standard_normal((2, 3)), [[0, 2], [0, -3]])),
            *(Sample(ops.Take(axis), _picked((4, 4, 4), (7, 2), 4)) for axis in (0, 1, -1)),
            Sample(ops.Take(), _picked((3, 2), (), 3, "int8")),
            Sample(ops.Take(), _picked((3, 2), (0, 2), 3, "uint8")),
        ],
        numpy=lambda x, indices, axis: np.take(x, indices, axis),
        torch=lambda torch, x, indices, axis: x.movedim(axis, 0)[indices.long()].movedim(
            tuple(range(indices.ndim)), tuple(range(axis % x.ndim, axis % x.ndim + indices.ndim))
        ),
        dtypes=ANYTHING,
        onnx="Gather",
    ),
    backward(
        TakeDown,
        _taken_down,
        [
            Sample(TakeDown(3, 1), fixed(np.random.default_rng(0).standard_normal((2, 4)), [0, 2, 0, 0])),
            *(
                Sample(TakeDown(4, axis), _picked((*(4,) * axis, 7, 2, *(4,) * (2 - axis)), (7, 2), 4))
                for axis in (0, 1, 2)
            ),
        ],
        dtypes=NUMBERS,
    ),
    Row(
        ops.TakeAlongAxis,
        [
            Sample(ops.TakeAlongAxis(1), fixed(np.random.default_rng(0).standard_normal((2, 3)), [[0, 0], [1, 2]])),
            *(Sample(ops.TakeAlongAxis(axis), _picked((4, 4, 4), (4, 4, 4), 4)) for axis in (0, 1, -1)),
            Sample(ops.TakeAlongAxis(1), _picked((2, 3), (2, 5), 3, "int8")),
            Sample(ops.TakeAlongAxis(1), _picked((2, 3), (2, 0), 3, "uint8")),
        ],
        numpy=np.take_along_axis,
        torch=lambda torch, x, indices, axis: torch.gather(x, axis, indices.long() % x.shape[axis]),
        standard="take_along_axis",
        dtypes=ANYTHING,
        onnx="GatherElements",
    ),
    backward(
        TakeAlongAxisDown,
        _along_down,
        [
            Sample(TakeAlongAxisDown(3, 1), fixed(np.random.default_rng(0).standard_normal((2, 2)), [[0, 0], [1, 2]])),
            *(Sample(TakeAlongAxisDown(5, axis), _picked((4, 4, 4), (4, 4, 4), 5)) for axis in (0, 1, 2)),
        ],
        dtypes=NUMBERS,
    ),
    Row(
        ops.OneHot,
        [Sample(ops.OneHot(4, np.dtype(dtype)), integers((5, 3))) for dtype in ("float32", "int64", "bool")],
        numpy=lambda indices, depth, dtype: np.eye(depth, dtype=dtype)[indices],
        torch=lambda torch, indices, depth, dtype: torch.nn.functional.one_hot(indices.long(), depth).to(
            getattr(torch, np.dtype(dtype).name)
        ),
        dtypes=INTEGERS,
        onnx="OneHot",
    ),
]

_X, _N = (2, 3), ("int64", 2, 3)
_CUBE, _PAIRS = ("float64", 3, 4, 5), ("int64", 2, 2)

WRONG = [
    *refused(
        af.ShapeError,
        (lambda x: ops.slice(x, 2), [_X], "index 2 is out of bounds for an axis of length 2"),
        (lambda x: ops.slice(x, np.s_[0, 0, 0]), [_X], "3 indices for an array of shape"),
        (lambda x: x[[3]], [_CUBE], "index 3 is out of bounds for an axis of length 3"),
        (lambda x: ops.flip(x, 2), [_X], "flip: axis must be from -2 to 1"),
        (lambda x: ops.pad(x, 2, "reflect"), [_X], r"Pad: widths \(2, 2\) on axis 0 must be at most 1"),
        (lambda x: ops.pad(x, 4, "wrap"), [_X], r"Pad: widths \(4, 4\) on axis 0 must be at most 2"),
        (ops.take, [(0, 3), _N], "Take: x must have at least 1 element"),
        (ops.take_along_axis, [(4, 5), _N], "TakeAlongAxis: indices must have|must broadcast"),
        (ops.embedding, [_N, (3,)], r"embedding: weight must have shape \(rows, f"),
        (ops.scatter_nd, [_CUBE, _PAIRS, _CUBE], r"Scatter: values of shape \(3, 4, 5\) do not broadcast"),
        (lambda x, i: ops.gather_nd(x, i, 1), [_CUBE, _PAIRS], "gather_nd: indices must have shape"),
        (lambda x: ops.repeat(x, (1, 2), 0), [_CUBE], "repeat: repeats must be one number or 3 numbers"),
        (ops.tril, [(5,)], r"tril: x must have shape \(..., rows, columns\)"),
    ),
    *refused(
        af.GraphError,
        (lambda x: ops.slice(x, "a"), [_X], "slice: an index must be an integer, slice, array, "),
        (lambda x: ops.pad(x, 1, "around"), [_X], "mode must be 'constant', 'reflect', 'edge' or 'wrap'"),
        (ops.OneHot(0, np.dtype("f4")), [_N], "OneHot: depth must be at least 1"),
        (
            lambda x, i, v: ops.scatter_nd(x, i, v, "sub"),
            [_CUBE, _PAIRS, ("float64", 2, 5)],
            "mode must be 'set', 'add'",
        ),
    ),
    *refused(
        af.DTypeError,
        (ops.slice, [_X, (4, 5)], "an index must be of integers or bools, got float32"),
        (ops.slice, [_X, ("bool", 2, 3)], "that only the values tell"),
        (lambda x: x[x > 0.0], [_CUBE], "that only the values tell"),
        (ops.take, [_X, (4, 5)], "Take: indices must be of integers"),
        (ops.scatter_nd, [_CUBE, _PAIRS, _PAIRS], "Scatter: values must have x's dtype float64"),
    ),
]
