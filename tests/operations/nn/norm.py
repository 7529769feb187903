"""Normalization over batches and over elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.norm import BatchNormDown, BatchNormInferenceDown, LayerNormDown
from tests.operations.table import FLOATING, Row, Sample, Wrong, backward, normal, positive, refused

_X, _ROW = (5, 9, 7), (4, 5, 70)
_SMALL = (4, 3)
_OF_STATISTICS = {"differences": "its statistics move with x: gradients of gradients of its row are compared"}


def _batch_norm(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, mean: Any, variance: Any, epsilon: float, momentum: float
) -> list[np.ndarray]:
    over = tuple(range(x.ndim - 1))
    of_batch, spread = x.mean(over), x.var(over)
    count = math.prod(x.shape[:-1])
    y = (x - of_batch) / np.sqrt(spread + epsilon) * scale + shift
    # What is kept for later batches is not biased.
    moved = [
        (1 - momentum) * old + momentum * new
        for old, new in ((mean, of_batch), (variance, spread * count / (count - 1)))
    ]
    return [y, of_batch, spread, *moved]


def _inference(x: Any, scale: Any, shift: Any, mean: Any, variance: Any, epsilon: float) -> np.ndarray:
    return (x - mean) / np.sqrt(variance + epsilon) * scale + shift


def _down(g: Any, x: Any, scale: Any, mean: Any, variance: Any, epsilon: float) -> list[np.ndarray]:
    over, deviation = tuple(range(x.ndim - 1)), np.sqrt(variance + epsilon)
    y = (x - mean) / deviation
    by_scale, by_shift, count = (g * y).sum(over), g.sum(over), math.prod(x.shape[:-1])
    return [scale / deviation * (g - (by_shift + y * by_scale) / count), by_scale, by_shift]


def _inference_down(g: Any, x: Any, scale: Any, mean: Any, variance: Any, epsilon: float) -> list[np.ndarray]:
    over, deviation = tuple(range(x.ndim - 1)), np.sqrt(variance + epsilon)
    return [g * scale / deviation, (g * (x - mean) / deviation).sum(over), g.sum(over)]


def _layer_norm(x: Any, scale: Any, shift: Any, axes: int, epsilon: float) -> list[np.ndarray]:
    over = tuple(range(-axes, 0))
    mean, variance = x.mean(over, keepdims=True), x.var(over, keepdims=True)
    y = (x - mean) / np.sqrt(variance + epsilon) * scale + shift
    return [y, mean.reshape(x.shape[:-axes]), variance.reshape(x.shape[:-axes])]


def _layer_down(g: Any, x: Any, scale: Any, mean: Any, variance: Any, axes: int, epsilon: float) -> list[np.ndarray]:
    own, rows = tuple(range(-axes, 0)), tuple(range(x.ndim - axes))
    mean, variance = (each.reshape(*each.shape, *(1,) * axes) for each in (mean, variance))
    deviation = np.sqrt(variance + epsilon)
    y, scaled = (x - mean) / deviation, g * scale
    inner = scaled - scaled.mean(own, keepdims=True) - y * (scaled * y).mean(own, keepdims=True)
    return [inner / deviation, (g * y).sum(rows), g.sum(rows)]


def _batch_norm_of_torch(
    torch: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, epsilon: float, momentum: float
) -> Any:
    """The result, then statistics of the batch, which torch tells nobody, and those that it moves in place."""
    moved, over, seen = [mean.clone(), variance.clone()], tuple(range(x.ndim - 1)), x.detach()
    y = torch.nn.functional.batch_norm(x.movedim(-1, 1), *moved, scale, shift, True, momentum, epsilon).movedim(1, -1)
    return [y, seen.mean(over), seen.var(over, correction=0), *moved]


@st.composite
def _batches(draw: st.DrawFn) -> Sample:
    sides = hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=5)
    shape = draw(sides.filter(lambda shape: math.prod(shape[:-1]) > 1))
    channels, offset = shape[-1:], draw(st.sampled_from([0.0, 50.0]))
    few = np.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1) if math.prod(shape[:-1]) < 4 else 0.0

    def make(random: np.random.Generator) -> list[np.ndarray]:
        x, *rest = positive(shape, *[channels] * 4, first=3)(random)
        return [x + offset + few, *rest]  # few are not nearly equal

    return Sample(ops.BatchNorm(0.01, 0.3), make, (3, 4), wrt=(0, 1, 2))


def _layer_norm_of_torch(torch: Any, x: Any, scale: Any, shift: Any, axes: int, epsilon: float) -> Any:
    over, seen = tuple(range(-axes, 0)), x.detach()
    y = torch.nn.functional.layer_norm(x, scale.shape, scale, shift, epsilon)
    mean = seen.mean(over, keepdim=True)
    return [y, mean.reshape(x.shape[:-axes]), ((seen - mean) ** 2).mean(over)]  # torch.var warns of nothing


def _over_batches(kind: Any, down: bool = False) -> list[Sample]:
    found = []
    for shape in (_SMALL, _X, (2, 3, 1, 4)):
        channels = shape[-1:]
        arrays = [shape, shape, channels] if down else [shape, channels, channels]
        more = (0.01, 0.3) if kind is ops.BatchNorm else (0.01,)
        found.append(Sample(kind(*more), positive(*arrays, channels, channels, first=3), wide=(3, 4)))
    return found


ROWS = [
    Row(
        ops.BatchNorm,
        [Sample(each.what, each.make, each.wide, wrt=(0, 1, 2)) for each in _over_batches(ops.BatchNorm)],
        numpy=_batch_norm,
        torch=_batch_norm_of_torch,
        slopes=1,
        dtypes=FLOATING,
    ),
    backward(
        BatchNormDown,
        _down,
        [Sample(each.what, each.make, each.wide, smooth=False) for each in _over_batches(BatchNormDown, down=True)],
        without=_OF_STATISTICS,
    ),
    Row(
        ops.BatchNormInference,
        [Sample(each.what, each.make, each.wide, wrt=(0, 1, 2)) for each in _over_batches(ops.BatchNormInference)],
        numpy=_inference,
        torch=lambda torch, x, scale, shift, mean, variance, epsilon: torch.nn.functional.batch_norm(
            x.movedim(-1, 1), mean, variance, scale, shift, eps=epsilon
        ).movedim(1, -1),
        dtypes=FLOATING,
        onnx="BatchNormalization",
    ),
    backward(
        BatchNormInferenceDown,
        _inference_down,
        [
            Sample(each.what, each.make, each.wide, wrt=(0, 1, 2))
            for each in _over_batches(BatchNormInferenceDown, down=True)
        ],
    ),
    Row(
        ops.LayerNorm,
        [
            *(Sample(ops.LayerNorm(n), normal((2, 3, 4), *[(2, 3, 4)[-n:]] * 2)) for n in (1, 2)),
            *(Sample(ops.LayerNorm(n, 0.01), normal(_ROW, *[_ROW[-n:]] * 2)) for n in (1, 2, 3)),
            *(Sample(ops.LayerNorm(n, 0.01), normal(x, *[x[-n:]] * 2)) for x, n in (((0, 3), 1), ((2, 1, 4, 3), 4))),
        ],
        numpy=_layer_norm,
        onnx="LayerNormalization",
        torch=_layer_norm_of_torch,
        slopes=1,
        dtypes=FLOATING,
    ),
    backward(
        LayerNormDown,
        _layer_down,
        [
            Sample(
                LayerNormDown(n, 0.01),
                positive(shape, shape, shape[-n:], *[shape[:-n]] * 2, first=3),
                wide=(3, 4),
                smooth=False,
            )
            for shape in ((2, 3, 4), _ROW)
            for n in (1, 2)
        ],
        without=_OF_STATISTICS,
    ),
]


def _batches(x: tuple[int, ...], statistic: int, channels: int = 3) -> list[tuple[int, ...]]:
    return [x, (channels,), (channels,), (statistic,), (statistic,)]


WRONG = [
    Wrong(
        ops.BatchNorm(),
        [("float16", 4, 2), *[("float16", 2)] * 3, (2,)],
        af.DTypeError,
        r"running_mean must be float32\[2\], got float16\[2\]",
    ),
    *refused(
        af.GraphError,
        (lambda x: ops.layer_norm(x, epsilon=-1.0), [(2, 3)], "LayerNorm: epsilon must not be negative, got"),
        (lambda x: ops.lrn(x, size=0), [(2, 3)], "LRN: size must be at least 1, got 0"),
    ),
    *refused(
        af.ShapeError,
        (ops.layer_norm, [(2, 3), (2, 3)], r"scale must have the shape of x's last axes \(3,\), got float32"),
        (lambda x: ops.group_norm(x, 4), [(2, 6)], "group_norm: x must have shape .* and 4 groups"),
    ),
    *(
        Wrong(ops.BatchNorm(), operands, af.ShapeError, match)
        for operands, match in (
            (_batches((), 1, 1), r"x must have shape \(..., channels\)"),
            (_batches((1, 3), 3), r"BatchNorm: x must have at least 2 elements per channel .*, got float32\[1, 3\]"),
            (_batches((0, 3), 3), "x must have at least 2 elements per channel"),
            (_batches((4, 3), 2), r"running_mean must be float32\[3\], got float32\[2\]"),
        )
    ),
    *(
        Wrong(lambda x, axes=axes: ops.layer_norm(x, axes=axes), [(2, 3)], af.ShapeError, f"1 to x's 2, got {axes}")
        for axes in (3, 0)
    ),
]
