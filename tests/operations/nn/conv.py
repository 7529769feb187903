"""Convolutions and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from actorflow import ops
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from tests.operations.drawn import Axes
from tests.operations.nn.windows import axes, bordered, channels_last, out_of, per_axis, windows
from tests.operations.table import FLOATS, Row, Sample, normal

#: Kernel, and how: all of it two axes of 9 and 7, and 3 and 4 channels, if nothing else is said.
_HOWS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (1, {"stride": 2}),
    (3, {"pad": 1}),
    (5, {"stride": 2, "pad": 2}),
    (3, {"stride": 2, "pad": ((1, 0), 2), "dilation": 2}),
    (3, {"pad": 1, "groups": 2}),
    (3, {"pad": 1, "groups": 4, "channels": (1, 1)}),
    (3, {"stride": 2, "groups": 3, "channels": (1, 2)}),
    (3, {"stride": 2, "pad": 1, "size": (11,)}),
    (2, {"pad": 1, "size": (4, 5, 3), "groups": 2}),
]
#: Small ones, for differences: size, kernel, how, groups.
_SMALL: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], int]] = [
    ((4, 5), (3, 2), {"pad": (1, 0)}, 1),
    ((5, 4), (2, 3), {"stride": (2, 3), "pad": ((0, 0), (2, 1))}, 1),
    ((3, 3), (1, 1), {}, 1),
    ((4, 4), (2, 2), {"dilation": 2, "pad": 1, "groups": 2}, 2),
    ((3, 3), (3, 3), {"pad": 1, "groups": 4}, 4),
    ((6,), (3,), {"stride": 2, "pad": 1}, 1),
    ((2, 3, 2), (2, 2, 1), {"pad": 1, "stride": 2}, 1),
]


def _samples() -> tuple[list[Sample], list[Sample], list[Sample]]:
    """Of the convolution, and of its gradients by the image and by the weight."""
    found: tuple[list[Sample], list[Sample], list[Sample]] = ([], [], [])

    def add(how: dict[str, Any], x: tuple[int, ...], weight: tuple[int, ...]) -> None:
        size, kernel = x[1:-1], weight[:-2]
        g = (x[0], *ops.Conv(**how).windows(size, kernel).out, weight[-1])
        found[0].append(Sample(ops.Conv(**how), normal(x, weight)))
        found[1].append(Sample(ConvDown(**how, size=size), normal(g, weight)))
        found[2].append(Sample(ConvWeight(**how, kernel=kernel), normal(g, x)))

    add({"pad": (1, 1)}, (2, 6, 6, 3), (3, 3, 3, 4))
    for size, kernel, how, groups in _SMALL:
        add(how, (2, *size, 4), (*kernel, 4 // groups, 8))
    for side, given in _HOWS:
        how = dict(given)
        size, channels, groups = how.pop("size", (9, 7)), how.pop("channels", (3, 4)), how.get("groups", 1)
        add(how, (5, *size, channels[0] * groups), (*(side,) * len(size), channels[0], channels[1] * groups))
    return found


def convolved(x: np.ndarray, weight: np.ndarray, stride: Any, pad: Any, dilation: Any, groups: int) -> np.ndarray:
    """The sums over all windows."""
    along = axes(x.shape[1:-1], weight.shape[:-2], stride, pad, dilation=dilation)
    y = np.zeros((x.shape[0], *out_of(along), weight.shape[-1]), x.dtype)
    inputs, outputs = weight.shape[-2], weight.shape[-1] // groups
    for index, places, elements, _ in windows(along):
        seen, by = x[(slice(None), *np.ix_(*elements))], weight[np.ix_(*places)]
        for group in range(groups):
            into, out = slice(group * inputs, (group + 1) * inputs), slice(group * outputs, (group + 1) * outputs)
            rank = len(index)
            y[(slice(None), *index, out)] = np.tensordot(
                seen[..., into], by[..., out], (range(1, rank + 2), range(rank + 1))
            )
    return y


def _down(g: np.ndarray, weight: np.ndarray, size: Any, **how: Any) -> np.ndarray:
    """Image by image, as these do not meet."""
    shape = (*size, weight.shape[-2] * how["groups"])
    basis = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    found = np.tensordot(g, convolved(basis, weight, **how), (range(1, g.ndim), range(1, g.ndim)))
    return found.reshape(len(g), *shape)


def _by_weight(g: np.ndarray, x: np.ndarray, kernel: Any, groups: int, **how: Any) -> np.ndarray:
    along = axes(x.shape[1:-1], kernel, **how)
    inputs, outputs = x.shape[-1] // groups, g.shape[-1] // groups
    found = np.zeros((*kernel, inputs, g.shape[-1]), x.dtype)
    for index, places, elements, _ in windows(along):
        seen = x[(slice(None), *np.ix_(*elements))]
        for group in range(groups):
            into, out = slice(group * inputs, (group + 1) * inputs), slice(group * outputs, (group + 1) * outputs)
            by = np.tensordot(seen[..., into], g[(slice(None), *index, out)], (0, 0))
            found[(*np.ix_(*places), slice(None), out)] += by
    return found


def _of_torch(torch: Any, x: Any, weight: Any, stride: Any, pad: Any, dilation: Any, groups: int) -> Any:
    rank = x.ndim - 2
    function, weight = getattr(torch.nn.functional, f"conv{rank}d"), weight.movedim((-1, -2), (0, 1)).contiguous()
    how = (per_axis(stride, rank), 0, per_axis(dilation, rank), groups)
    return channels_last(function(bordered(torch, x, pad), weight, None, *how))


@st.composite
def _drawn(draw: st.DrawFn) -> Sample:
    axes = Axes(draw)
    kernel, dilation, before, after = axes(1, 3), axes(1, 2), axes(0, 2), axes(0, 2)
    least = [max(1, d * (k - 1) + 1 - b - a) for k, d, b, a in zip(kernel, dilation, before, after, strict=True)]
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3)) * groups
    size = tuple(n + more for n, more in zip(least, axes(0, 3), strict=True))
    operation = ops.Conv(axes(1, 3), tuple(zip(before, after, strict=True)), dilation, groups)
    batch = draw(st.integers(1, 2))
    return Sample(operation, normal((batch, *size, channels * groups), (*kernel, channels, outputs)))


_FORWARD, _DOWN, _WEIGHT = _samples()
_DTYPES = (*FLOATS, "bfloat16")
_TOLERANCE = {"float32": (1e-4, 1e-4), "float16": (4e-3, 8e-3)}
_GRADIENT = {"torch": "only gradients are made of it"}

ROWS = [
    Row(ops.Conv, _FORWARD, numpy=convolved, torch=_of_torch, dtypes=_DTYPES, orders=3, drawn=_drawn()),
    Row(ConvDown, _DOWN, numpy=_down, without=_GRADIENT, dtypes=_DTYPES),
    Row(ConvWeight, _WEIGHT, numpy=_by_weight, without=_GRADIENT, dtypes=_DTYPES),
]
