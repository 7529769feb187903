"""Strategies of further samples of what is done to images: of any sizes and parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from actorflow import ops
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from actorflow.ops.nn.resize import MODES, ROUNDINGS, Resize, ResizeDown
from tests.operations.nn.conv import samples_of
from tests.operations.nn.pool import pooled
from tests.operations.nn.resize import COORDINATES
from tests.operations.table import Make, Sample, normal


class Sliding(NamedTuple):
    """Images, and windows over them."""

    batch: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[Any, ...]
    dilation: tuple[int, ...]


@st.composite
def sliding(draw: st.DrawFn, is_pooled: bool, is_even: bool) -> Sliding:
    """Windows that fit; the border of pooled ones is less than the kernel, that of even ones the same on both sides."""
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    axis = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    kernel, dilation = draw(axis(1, 4 if is_pooled else 3)), draw(axis(1, 2))
    sides = [[draw(st.integers(0, k - 1 if is_pooled else 2)) for _ in range(1 if is_even else 2)] for k in kernel]
    least = [max(1, d * (k - 1) + 1 - p[0] - p[-1]) for k, d, p in zip(kernel, dilation, sides, strict=True)]
    size = tuple(n + more for n, more in zip(least, draw(axis(0, 5)), strict=True))
    pad = tuple(p[0] if is_even else tuple(p) for p in sides)
    return Sliding(draw(st.integers(0, 3)), size, kernel, draw(axis(1, 5)), pad, dilation)


@st.composite
def convolutions(draw: st.DrawFn, is_even: bool = False) -> tuple[Sample, ...]:
    """A convolution and its gradients."""
    windows = draw(sliding(False, is_even))
    inputs, outputs = draw(st.tuples(st.sampled_from([1, 2, 3, 17]), st.integers(1, 4)))
    groups = draw(st.sampled_from([1, 1, 2, 3, 4]))
    how = {"stride": windows.stride, "pad": windows.pad, "dilation": windows.dilation, "groups": groups}
    return samples_of(how, (windows.batch, *windows.size, inputs * groups), (*windows.kernel, inputs, outputs * groups))


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


@st.composite
def resizings(draw: st.DrawFn) -> tuple[Sample, ...]:
    """A resizing along an axis, and its gradient."""
    n, axis = draw(st.integers(1, 9)), draw(st.integers(0, 3))
    scale = draw(st.sampled_from([None, None, 0.5, 0.75, 1.5, 2.0, 3.0]))
    size = draw(st.integers(1, 24)) if scale is None else max(1, int(n * scale))
    names = (draw(st.sampled_from(known)) for known in (MODES, COORDINATES, [*ROUNDINGS]))
    operation = Resize(axis, size, *names, draw(st.sampled_from([-0.75, -0.5])), scale)
    shape = [draw(st.integers(0, 3)), 2, 3, 2]
    before, after = ((*shape[:axis], length, *shape[axis + 1 :]) for length in (n, size))
    return Sample(operation, normal(before)), Sample(ResizeDown(operation, n), normal(after))
