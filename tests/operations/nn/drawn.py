"""Strategies of windows over images and of resizings: of any sizes and parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from actorflow.ops.nn.resize import MODES, ROUNDINGS, Resize, ResizeDown
from tests.operations.nn.resize import COORDINATES
from tests.operations.table import Sample, normal


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
