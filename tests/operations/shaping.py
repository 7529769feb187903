"""Shapes: reshaping, transposing, broadcasting, joining and splitting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from tests.operations.table import COMPLEX, FLOATS, INTEGERS, Row, Sample, Wrong, normal, refused

ANYTHING = ("bool", *INTEGERS, *FLOATS, "bfloat16", *COMPLEX)


def _ends(lengths: Sequence[int]) -> list[int]:
    return [int(n) for n in np.cumsum(lengths)[:-1]]


def _joined(*parts: np.ndarray, axis: int, new: bool) -> np.ndarray:
    return np.stack(parts, axis) if new else np.concatenate(parts, axis)


ROWS = [
    Row(
        ops.Reshape,
        [
            Sample(ops.Reshape((2, -1)), normal((4, 6))),
            *(
                Sample(ops.Reshape(new), normal(shape))
                for shape, new in (
                    ((4, 3, 5), (6, -1)),
                    ((2, 6), (3, 4)),
                    ((2, 6), (-1,)),
                    ((2, 6), (4, -1)),
                    ((), (1, 1)),
                    ((0, 3), (0,)),
                )
            ),
        ],
        numpy=lambda x, shape, not_one: x.reshape(shape),
        torch=lambda torch, x, shape, not_one: x.reshape(shape),
        standard=lambda xp, x, shape, not_one: xp.reshape(x, shape),
        dtypes=ANYTHING,
        onnx="Reshape",
    ),
    Row(
        ops.Transpose,
        [
            Sample(ops.Transpose((2, 0, 1)), normal((4, 3, 5))),
            Sample(ops.Transpose((0, 3, 1, 2)), normal((2, 6, 6, 3))),
        ],
        numpy=np.transpose,
        torch=lambda torch, x, axes: x.permute(axes),
        standard="permute_dims",
        dtypes=ANYTHING,
        onnx="Transpose",
    ),
    Row(
        ops.BroadcastTo,
        [
            Sample(ops.BroadcastTo(to), normal(shape))
            for to, shape in (((3, 5, 4), (5, 1)), ((3, 2, 4), (2, 1)), ((3,), ()), ((2, 0, 4), (0, 1)))
        ],
        numpy=np.broadcast_to,
        torch=lambda torch, x, shape: x.expand(shape),
        standard="broadcast_to",
        dtypes=ANYTHING,
        onnx="Expand",
    ),
    Row(
        ops.Concat,
        [
            Sample(ops.Concat(1), normal((2, 3), (2, 1))),
            Sample(ops.Concat(-1), normal((2, 3), (2, 0), (2, 1), (2, 2))),
            *(Sample(ops.Concat(axis), normal((4, 3, 5), (4, 3, 5), (4, 3, 5))) for axis in (0, 1, -1)),
            *(Sample(ops.Concat(axis, True), normal((4, 3), (4, 3))) for axis in (0, 1, -1)),
        ],
        numpy=_joined,
        torch=lambda torch, *parts, axis, new: (torch.stack if new else torch.cat)(parts, axis),
        standard=lambda xp, *parts, axis, new: (xp.stack if new else xp.concat)(parts, axis=axis),
        dtypes=ANYTHING,
        onnx="Concat",
    ),
    Row(
        ops.Split,
        [
            Sample(ops.Split((1, 2), 1), normal((2, 3))),
            *(Sample(ops.Split((1, 0, 2), axis), normal((3, 3, 3))) for axis in (0, 1, -1)),
        ],
        numpy=lambda x, lengths, axis: np.split(x, _ends(lengths), axis),
        torch=lambda torch, x, lengths, axis: torch.split(x, lengths, axis),
        dtypes=ANYTHING,
        onnx="Split",
    ),
]


def parts(found: Any) -> list[Any]:
    """The results of a reference."""
    return [*found] if isinstance(found, tuple | list) else [found]


_X, _Y = (2, 3), (4, 5)

WRONG = [
    *refused(
        af.ShapeError,
        (ops.flatten, [()], r"flatten: x must have shape \(batch, ...\)"),
        (ops.BroadcastTo((2, 4)), [_X], r"BroadcastTo: x must broadcast to shape \(2, 4\)"),
        (lambda x: ops.squeeze(x, 1), [_X], "squeeze: x must have length 1 on axis 1"),
        (lambda x: ops.expand_dims(x, 3), [_X], "expand_dims: axis must be from -3 to 2"),
        (ops.Concat(), [_X, _Y], r"Concat: parts\[1\] must have parts\[0\]'s shape beside"),
        (lambda *x: ops.concat(x), [], "concat: give at least one part"),
        (lambda *x: ops.stack(x), [_X, _Y], r"stack: parts\[1\] must have parts\[0\]'s shape"),
        (lambda x: ops.split(x, 2, 1), [_X], "split: x must have a length on axis 1 that 2 divides"),
        (ops.Split((1, 3), 1), [_X], r"Split: lengths \(1, 3\) must add up"),
        (lambda x: ops.roll(x, (1, 2), 0), [(3, 4)], "roll: give one shift, or one for each of 1 axes"),
    ),
    Wrong(ops.Concat(), [_X, ("int64", 2, 3)], af.DTypeError, r"Concat: parts\[1\] must have parts\[0\]'s dtype"),
    *(
        Wrong(ops.Reshape(new), [(2, 6)], af.ShapeError, "Reshape: x of 12 elements cannot have shape")
        for new in [(5,), (-1, -1), (-1, 5), (0, -1), (-2, 6)]
    ),
]
