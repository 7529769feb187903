"""Convolutions and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from tests.operations.nn.windows import axes, bordered, channels_last, out_of, per_axis, sliding, windows
from tests.operations.table import FLOATING, Row, Sample, Wrong, backward, normal, refused

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


def samples_of(how: dict[str, Any], x: tuple[int, ...], weight: tuple[int, ...]) -> tuple[Sample, Sample, Sample]:
    """A convolution of these shapes, and its gradients by the images and by the weight."""
    size, kernel = x[1:-1], weight[:-2]
    g = (x[0], *ops.Conv(**how).windows(size, kernel).out, weight[-1])
    return (
        Sample(ops.Conv(**how), normal(x, weight)),
        Sample(ConvDown(**how, size=size), normal(g, weight)),
        Sample(ConvWeight(**how, kernel=kernel), normal(g, x)),
    )


def _samples() -> tuple[list[Sample], list[Sample], list[Sample]]:
    """Of the convolution, and of its gradients by the image and by the weight."""
    found: tuple[list[Sample], list[Sample], list[Sample]] = ([], [], [])

    def add(how: dict[str, Any], x: tuple[int, ...], weight: tuple[int, ...]) -> None:
        for into, sample in zip(found, samples_of(how, x, weight), strict=True):
            into.append(sample)

    add({"pad": (1, 1)}, (2, 6, 6, 3), (3, 3, 3, 4))
    # Without channels or images sums are 0, and where there is nothing but a border.
    add({}, (1, 3, 3, 0), (2, 2, 0, 1))
    add({}, (0, 3, 3, 2), (2, 2, 2, 3))
    add({"pad": 1}, (2, 0, 3, 2), (2, 2, 2, 3))
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


def convolved_down(g: np.ndarray, weight: np.ndarray, size: Any, **how: Any) -> np.ndarray:
    """The gradient by the images: one by one, as these do not meet."""
    shape = (*size, weight.shape[-2] * how["groups"])
    size = int(np.prod(shape))
    basis = np.eye(size).reshape(size, *shape)
    found = np.tensordot(g, convolved(basis, weight, **how), (range(1, g.ndim), range(1, g.ndim)))
    return found.reshape(len(g), *shape)


def convolved_by_weight(g: np.ndarray, x: np.ndarray, kernel: Any, groups: int, **how: Any) -> np.ndarray:
    """The gradient by the weight."""
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
    if x.shape[-1] == 0:  # a sum of nothing is 0, where torch has no channels at all
        x, weight = torch.nn.functional.pad(x, (0, 1)), torch.nn.functional.pad(weight, (0, 0, 0, 1))
    function, weight = getattr(torch.nn.functional, f"conv{rank}d"), weight.movedim((-1, -2), (0, 1)).contiguous()
    how = (per_axis(stride, rank), 0, per_axis(dilation, rank), groups)
    return channels_last(function(bordered(torch, x, pad), weight, None, *how))


@st.composite
def convolutions(draw: st.DrawFn, is_even: bool = False) -> tuple[Sample, ...]:
    """A convolution and its gradients."""
    windows = draw(sliding(False, is_even))
    inputs, outputs = draw(st.tuples(st.sampled_from([1, 2, 3, 17]), st.integers(1, 4)))
    groups = draw(st.sampled_from([1, 1, 2, 3, 4]))
    how = {"stride": windows.stride, "pad": windows.pad, "dilation": windows.dilation, "groups": groups}
    return samples_of(how, (windows.batch, *windows.size, inputs * groups), (*windows.kernel, inputs, outputs * groups))


_FORWARD, _DOWN, _WEIGHT = _samples()


ROWS = [
    Row(ops.Conv, _FORWARD, numpy=convolved, torch=_of_torch, dtypes=FLOATING, onnx="Conv", orders=3),
    backward(ConvDown, convolved_down, _DOWN, onnx="ConvTranspose"),
    backward(ConvWeight, convolved_by_weight, _WEIGHT),
]

_IMAGE, _ONE = (1, 4, 4, 1), (1, 1, 1, 1)


def _conv(**how: Any) -> Any:
    return lambda x, weight: ops.conv(x, weight, **how)


def _transpose(**how: Any) -> Any:
    return lambda x, weight: ops.conv_transpose(x, weight, **how)


WRONG = [
    *refused(
        af.GraphError,
        (
            lambda x: ops.conv_transpose(x, np.ones((3, 1, 2))),
            [(1, 4, 2)],
            "conv_transpose: weight must be a blob or an array, got ndarray",
        ),
        (ops.conv, [(1, 4, 4, 4), (0, 1, 4, 3)], r"Conv: kernel must be at least 1, got \(0, 1\)"),
    ),
    *refused(
        af.DTypeError,
        (ops.conv, [(1, 4, 1), ("float64", 1, 1, 1)], "Conv: weight must have x's dtype float32, got"),
        (ops.conv, [("int64", 1, 4, 1), (1, 1, 1)], "Conv: x must be floating, got int64"),
    ),
    *(
        Wrong(_transpose(**how), [x, weight], error, match)
        for x, weight, how, error, match in (
            (
                (1, 4, 2),
                (3, 1, 2),
                {"output_pad": 1},
                af.GraphError,
                r"output_pad must be less than the stride \(1,\) or the dilation \(1,\), got",
            ),
            ((1, 4, 2), (3, 1, 3), {}, af.ShapeError, r"weight must have shape \(\*kernel, out_ch"),
            ((1, 2, 2), (1, 1, 2), {"pad": 1}, af.ShapeError, r"nothing is left of \(2,\) with kernel"),
            ((1, 0, 2), (1, 1, 2), {}, af.ShapeError, "x must have a spatial size of at least 1"),
            ((1, 4, 3), (3, 1, 3), {"groups": 2}, af.ShapeError, "channels, 3, must be a multiple of groups, 2"),
        )
    ),
    *(
        Wrong(_conv(**how), [(1, 2, 6, 1), (5, 5, 1, 1)], af.ShapeError, match)
        for how, match in (
            ({"pad": 1}, r"Conv: kernel \(5, 5\) is larger than the image \(2, 6\) with padding \(1, 1\)"),
            ({"pad": ((0, 1), 0)}, r"is larger than the image \(2, 6\) with padding \(\(0, 1\), \(0, 0\)\)"),
            ({"dilation": 2, "pad": 3}, r"with dilation \(2, 2\), \(9, 9\) in all, is larger than the image"),
        )
    ),
    *(
        Wrong(_conv(groups=groups), [x, weight], af.ShapeError, f"Conv: {match}")
        for x, weight, groups, match in (
            ((1, 4), (1, 1), 1, r"x must have shape \(batch, 1 to 3 spatial axes, channels\)"),
            ((1, 1, 1, 1, 1, 1), (1,) * 6, 1, "x must have shape"),
            ((1, 4, 4, 2), (1, 1, 2), 1, r"weight must have shape \(\*kernel, in_.* with x's 4 axes, got"),
            ((1, 4, 4, 2), (1, 1, 3, 1), 1, r"weight must have x's 2 channels on axis -2, got float32"),
            ((1, 4, 4, 4), (1, 1, 4, 2), 2, "weight must have x's 4 channels / 2 groups on axis -2, got"),
            ((1, 4, 4, 3), (1, 1, 1, 2), 2, "x's channels, 3, must be a multiple of groups, 2"),
            ((1, 4, 4, 4), (1, 1, 2, 3), 2, "weight's output channels, 3, must be a multiple of groups, 2"),
        )
    ),
    *(
        Wrong(_conv(**how), [_IMAGE, _ONE], af.GraphError, match)
        for how, match in (
            ({"stride": 0}, "stride must be at least 1, got"),
            ({"stride": 1.5}, "stride must be at least 1, got"),
            ({"stride": (1, 1, 1)}, r"stride must be a number, or one for each of 2 spatial axes, got"),
            ({"dilation": 0}, "dilation must be at least 1"),
            ({"pad": -1}, "pad must be at least 0, got -1"),
            ({"pad": ((1, 2, 3), 0)}, r"pad must be a number, or a number or \(before, after\) for each"),
            ({"groups": 0}, "groups must be at least 1, got 0"),
        )
    ),
    *(
        Wrong(operation, operands, error, match)
        for operation, operands, error, match in (
            (
                ConvDown(size=(5, 5)),
                [(1, 2, 2, 3), (3, 3, 2, 3)],
                af.ShapeError,
                r"ConvDown: g must have shape \(batch, 3, 3, 3\), got",
            ),
            (
                ConvWeight(kernel=(3, 3)),
                [(1, 2, 2, 3), (1, 5, 5, 2)],
                af.ShapeError,
                r"ConvWeight: g must have shape \(1, 3, 3, out_channels\), got",
            ),
            (
                ConvDown(),
                [(1, 2, 2, 3), (3, 3, 2, 3)],
                af.GraphError,
                "ConvDown: size must be a number, or one for each of 2 spatial axes",
            ),
        )
    ),
]
