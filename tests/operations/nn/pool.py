"""Maxima and means of windows, and their gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from tests.operations.nn.windows import axes, bordered, channels_last, out_of, pairs, per_axis, sliding, windows
from tests.operations.table import FLOATING, INTEGERS, Make, Row, Sample, Wrong, backward, normal, refused

#: Kernel, stride and so on of maxima, and sizes of images.
_MAXIMA: list[tuple[tuple[Any, ...], tuple[int, ...]]] = [
    ((3, 2, 1), (9, 8)),
    ((2,), (9, 8)),
    ((3, 1, ((0, 2), 1), True, 2), (9, 8)),
    ((3, 2), (11,)),
    ((2, 1, 1), (4, 5, 3)),
]
_MEANS: list[tuple[tuple[Any, ...], tuple[int, ...], int]] = [
    ((3, 2, 1), (9, 8), 1),
    ((3, 2, 1, True, False), (9, 8), 1),
    ((3, 2, ((0, 2), 1)), (4, 5), 1),
    ((2, 1, ((0, 1), 1), True, False), (9, 8), 3),
    ((3, 2, 1), (9, 8), 2),
    ((2, 2, 1), (4, 5, 3), 1),
]
#: Small ones, for differences.
_SMALL: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((5, 4), (2, 2)),
    ((5, 4), ((3, 2), (2, 1), ((1, 0), 1))),
    ((5, 4), (2, 3, 1, False)),
    ((7,), (3, 2, ((0, 2),))),
    ((3, 2, 3), (2, 1)),
    ((3, 4), ((3, 4),)),
]


def _ties(size: tuple[int, ...], channels: int = 5) -> Make:
    """Few different values: windows have several maxima."""
    return lambda random: [random.integers(-3, 4, (3, *size, channels)).astype(np.float64)]


def _no_ties(size: tuple[int, ...]) -> Make:
    return lambda random: [random.permutation(4 * int(np.prod(size))).reshape(2, *size, 2) / 10]


def flat(x: np.ndarray) -> np.ndarray:
    """Images with one axis of pixels."""
    return x.reshape(len(x), int(np.prod(x.shape[1:-1])), x.shape[-1])


def pooled(
    x: np.ndarray, kernel: Any, stride: Any, pad: Any, ceil: bool, dilation: Any, return_indices: bool = False
) -> Any:
    """The first maximum of each window, and where it is."""
    along = axes(x.shape[1:-1], kernel, stride, pad, ceil, dilation)
    shape = (x.shape[0], *out_of(along), x.shape[-1])
    y, at = np.full(shape, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min, x.dtype), np.full(shape, -1)
    places = np.arange(int(np.prod(x.shape[1:-1]))).reshape(x.shape[1:-1])
    for index, _, elements, _ in windows(along):
        seen = flat(x[(slice(None), *np.ix_(*elements))])
        if seen.shape[1]:
            first = seen.argmax(1)
            y[(slice(None), *index)] = np.take_along_axis(seen, first[:, None], 1)[:, 0]
            at[(slice(None), *index)] = places[np.ix_(*elements)].reshape(-1)[first]
    return (y, at) if return_indices else y


def pooled_down(g: np.ndarray, x: np.ndarray, y: np.ndarray, *how: Any, **more: Any) -> np.ndarray:
    """Each window's gradient, at its first maximum."""
    _, at = pooled(x, *how, **more, return_indices=True)
    dx = np.zeros((len(x), int(np.prod(x.shape[1:-1])), x.shape[-1]), g.dtype)
    by, at = flat(g), flat(at)
    n, i, c = np.nonzero(at >= 0)
    np.add.at(dx, (n, at[n, i, c], c), by[n, i, c])
    return dx.reshape(x.shape)


def averaged(
    x: np.ndarray, kernel: Any, stride: Any, pad: Any, ceil: bool, dilation: Any, count_pad: bool
) -> np.ndarray:
    """The mean of each window; 0 of those that see nothing."""
    along = axes(x.shape[1:-1], kernel, stride, pad, ceil, dilation)
    y = np.zeros((x.shape[0], *out_of(along), x.shape[-1]), x.dtype)
    for index, _, elements, size in windows(along):
        seen = flat(x[(slice(None), *np.ix_(*elements))])
        y[(slice(None), *index)] = seen.sum(1) / max(1, size if count_pad else seen.shape[1])
    return y


def averaged_down(g: np.ndarray, size: Any, *how: Any, **more: Any) -> np.ndarray:
    """Each window's gradient, over its elements: one image and channel at a time, as these do not meet."""
    basis = np.eye(int(np.prod(size))).reshape(-1, *size, 1)
    matrix = averaged(basis, *how, **more).reshape(len(basis), -1)
    found = np.einsum("iw,nwc->nic", matrix, flat(g))
    return found.reshape(len(g), *size, g.shape[-1])


def _backwards(how: tuple[Any, ...], make: Make) -> Make:
    def draw(random: np.random.Generator) -> list[np.ndarray]:
        (x,) = make(random)
        own = MaxPoolDown(*how)
        y = pooled(x, own.kernel, own.stride, own.pad, own.ceil, own.dilation)
        return [random.standard_normal(y.shape), x, y]

    return draw


def _maxima() -> tuple[list[Sample], list[Sample]]:
    forward, down = [], []
    for how, size in _MAXIMA:
        operation = ops.MaxPool(*how)
        forward += [
            Sample(each, _ties(size), smooth=False) for each in (operation, replace(operation, return_indices=True))
        ]
        down.append(Sample(MaxPoolDown(*how), _backwards(how, _ties(size)), wrt=(0,)))
    for size, how in _SMALL:
        forward.append(Sample(ops.MaxPool(*how), _no_ties(size)))
        down.append(Sample(MaxPoolDown(*how), _backwards(how, _no_ties(size)), wrt=(0,)))
    return forward, down


def _means() -> tuple[list[Sample], list[Sample]]:
    forward, down = [], []
    cases = [
        *((how, size, dilation, (3, 5)) for how, size, dilation in _MEANS),
        *((how, size, 1, (2, 2)) for size, how in _SMALL),
        ((2, 1, 1), (5, 4), 2, (2, 2)),
    ]
    for how, size, dilation, (batch, channels) in cases:
        for count_pad in (True, False) if len(how) < 5 else (how[4],):
            operation = ops.AveragePool(*how[:4], dilation=dilation, count_pad=count_pad)
            out = operation.windows(size).out
            forward.append(Sample(operation, normal((batch, *size, channels))))
            own = AveragePoolDown(*how[:4], dilation=dilation, count_pad=count_pad, size=size)
            down.append(Sample(own, normal((batch, *out, channels))))
    return forward, down


_MAX_FORWARD, _MAX_DOWN = _maxima()
_MEAN_FORWARD, _MEAN_DOWN = _means()


def _maxima_of_torch(torch: Any, x: Any, return_indices: bool, **how: Any) -> Any:
    """Of an image with a border, as torch's are as wide on both sides; its indices are those of the border, too."""
    operation, rank = ops.MaxPool(**how), x.ndim - 2
    border = pairs(operation.pad, rank)
    function = getattr(torch.nn.functional, f"max_pool{rank}d")
    given = bordered(torch, x if x.is_floating_point() else x.double(), operation.pad, -math.inf)
    kernel, stride, dilation = operation.kernel, operation.stride, per_axis(operation.dilation, rank)
    stride = kernel if stride is None else stride
    y, at = function(given, kernel, stride, 0, dilation, operation.ceil, return_indices=True)
    out = operation.windows(tuple(x.shape[1:-1])).out
    y, at = (each[(..., *(slice(n) for n in out))] for each in (y, at))
    y, at, is_empty = channels_last(y), channels_last(at), channels_last(y == -math.inf)
    if not x.is_floating_point():
        y = torch.where(is_empty, torch.iinfo(x.dtype).min, y).to(x.dtype)
    if not return_indices:
        return y
    found = torch.unravel_index(at, given.shape[2:])
    places = 0
    for index, n, (before, _) in zip(found, x.shape[1:-1], border, strict=True):
        places = places * n + index - before
    return y, torch.where(is_empty, -1, places)


def _means_of_torch(torch: Any, x: Any, count_pad: bool, **how: Any) -> Any:
    """Sums of windows over numbers of what they count; torch has no dilation, but convolutions have."""
    operation, rank = ops.AveragePool(**how), x.ndim - 2
    kernel, stride, dilation = (
        per_axis(each, rank) for each in (operation.kernel, operation.stride, operation.dilation)
    )
    stride = kernel if operation.stride is None else stride
    given, ones = (bordered(torch, each, operation.pad) for each in (x, torch.ones_like(x)))
    out = operation.windows(tuple(x.shape[1:-1])).out
    if dilation == (1,) * rank:
        function = getattr(torch.nn.functional, f"avg_pool{rank}d")
        y, seen = (function(each, kernel, stride, 0, operation.ceil, True) for each in (given, ones))
        y = y if count_pad else y / torch.where(seen == 0, 1.0, seen)
    else:
        function, weight = getattr(torch.nn.functional, f"conv{rank}d"), x.new_ones((x.shape[-1], 1, *kernel))
        behind = [n for s in reversed(stride) for n in (0, s)]  # windows may reach over the border

        def summed(each: Any) -> Any:
            return function(torch.nn.functional.pad(each, behind), weight, None, stride, 0, dilation, x.shape[-1])

        seen = summed(torch.ones_like(given) if count_pad else ones)
        y = summed(given) / torch.where(seen == 0, 1.0, seen)
    return channels_last(y[(..., *(slice(n) for n in out))])


@st.composite
def poolings(draw: st.DrawFn, is_even: bool = False) -> tuple[Sample, ...]:
    """Poolings of all kinds and their gradients. Few different values, so that many windows have several maxima."""
    windows = draw(sliding(True, is_even))
    how = (windows.kernel, windows.stride, windows.pad, draw(st.booleans()))
    count_pad, dilation = draw(st.booleans()), windows.dilation
    shape = (windows.batch, *windows.size, draw(st.integers(1, 3)))

    def images(random: np.random.Generator) -> list[np.ndarray]:
        return [random.integers(-2, 3, shape).astype(np.float64)]

    def backwards(random: np.random.Generator) -> list[np.ndarray]:
        (x,) = images(random)
        y = pooled(x, *how, dilation)
        return [random.standard_normal(y.shape), x, y]

    average = ops.AveragePool(*how, count_pad, dilation=dilation)
    means: Make = normal((windows.batch, *average.windows(windows.size).out, shape[-1]))
    return (
        Sample(ops.MaxPool(*how, dilation), images),
        Sample(ops.MaxPool(*how, dilation, return_indices=True), images),
        Sample(MaxPoolDown(*how, dilation), backwards),
        Sample(average, images),
        Sample(AveragePoolDown(*how, count_pad, size=windows.size, dilation=dilation), means),
    )


ROWS = [
    Row(ops.MaxPool, _MAX_FORWARD, numpy=pooled, torch=_maxima_of_torch, dtypes=(*FLOATING, *INTEGERS), onnx="MaxPool"),
    backward(MaxPoolDown, pooled_down, _MAX_DOWN, by_steps=True, particular=True),
    Row(
        ops.AveragePool,
        [Sample(ops.AveragePool((2, 2), (2, 2)), normal((2, 6, 6, 3))), *_MEAN_FORWARD],
        numpy=averaged,
        torch=_means_of_torch,
        dtypes=FLOATING,
        onnx="AveragePool",
    ),
    backward(
        AveragePoolDown,
        averaged_down,
        [Sample(AveragePoolDown((2, 2), (2, 2), size=(6, 6)), normal((2, 3, 3, 3))), *_MEAN_DOWN],
    ),
    Row(
        ops.GlobalAverage,
        [
            Sample(ops.GlobalAverage(), normal(shape))
            for shape in ((2, 6, 6, 3), (2, 3, 2, 4), (2, 4, 4), (3, 4, 5, 2, 6), (3, 8, 9, 40), (0, 2, 3, 1))
        ],
        numpy=lambda x: x.mean(tuple(range(1, x.ndim - 1))),
        torch=lambda torch, x: x.mean(tuple(range(1, x.ndim - 1))),
        dtypes=FLOATING,
        onnx="ReduceMean",
    ),
]

_IMAGE = (1, 4, 4, 1)


def _with(pool: Any, **how: Any) -> Any:
    return lambda x: pool(x, **how)


WRONG = [
    *refused(
        af.ShapeError,
        (ops.global_max, [(4, 4)], "global_max: x must have shape"),
        (MaxPoolDown(2), [(1, 3, 3, 1), _IMAGE, (1, 2, 2, 1)], r"MaxPoolDown: g must have shape \(1, 2, 2, 1\), got"),
        (AveragePoolDown(2, size=(4, 4)), [(1, 3, 3, 1)], r"AveragePoolDown: g must have spatial size \(2, 2\), got"),
        (ops.GlobalAverage(), [(1, 0, 2, 1)], "spatial size of at least 1"),
    ),
    Wrong(lambda: ops.global_max([1.0]), [], af.GraphError, "global_max: x must be a blob or an array, got list"),
    *refused(
        af.DTypeError,
        (ops.AveragePool(2), [("int64", 1, 4, 1)], "AveragePool: x must be floating, got int64"),
        (ops.MaxPool(2), [("bool", 1, 4, 1)], "MaxPool: x must be floating or integers, got bool"),
    ),
    *(
        Wrong(_with(pool, **how), [_IMAGE], error, match)
        for pool in (ops.max_pool, ops.average_pool)
        for how, error, match in (
            (
                {"kernel": 2, "pad": 2},
                af.GraphError,
                r"pad must be less than the kernel \(2, 2\), got \(\(2, 2\), \(2, 2\)\)",
            ),
            ({"kernel": 2, "pad": ((0, 2), 0)}, af.GraphError, "pad must be less than the kernel"),
            ({"kernel": 0}, af.GraphError, r"kernel must be at least 1, got \(0, 0\)"),
            ({"kernel": 5}, af.ShapeError, r"kernel \(5, 5\) is larger than the image \(4, 4\) with padding \(0, 0\)"),
            ({"kernel": (2, 2, 2)}, af.GraphError, "kernel must be a number, or one for each of 2 spatial axes"),
            ({"kernel": 2, "stride": (1, 0)}, af.GraphError, r"stride must be at least 1, got \(1, 0\)"),
        )
    ),
    *(
        Wrong(pool, [shape], af.ShapeError, match)
        for pool in (ops.MaxPool(2, pad=1), ops.AveragePool(2, pad=1))
        for shape, match in (
            ((4, 4), r"Pool: x must have shape \(batch, 1 to 3 spatial axes, channels\), got"),
            ((1, 0, 4, 1), "x must have a spatial size of at least 1"),
        )
    ),
]
