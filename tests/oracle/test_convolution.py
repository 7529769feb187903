"""Convolution, its transpose and pooling against PyTorch, to the second derivative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow import ops
from tests.oracle.comparison import check, drawn, examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")
F = torch.nn.functional

pytestmark = pytest.mark.oracle

dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32 - 1)
many = examples(25)


def first(x: Any) -> Any:
    """Channels first, and copied: torch 2.13 reads beside images of one channel that seem to have it last."""
    return x.movedim(-1, 1).clone(memory_format=torch.contiguous_format)


def last(x: Any) -> Any:
    """Channels last."""
    return x.movedim(1, -1)


def turned(weight: Any) -> Any:
    """(*kernel, in, out) as (out, in, *kernel)."""
    return weight.movedim((-1, -2), (0, 1)).contiguous()


def flat(pad: tuple[tuple[int, int], ...]) -> list[int]:
    """A border as ``F.pad`` takes it."""
    return [width for pair in reversed(pad) for width in pair]


class Axes:
    """Draws values for each spatial axis."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.rank = draw(st.sampled_from([1, 2, 2, 3]))
        self.draw = draw

    def __call__(self, low: int, high: int) -> tuple[int, ...]:
        return self.draw(st.tuples(*[st.integers(low, high)] * self.rank))


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    axes = Axes(draw)
    kernel, dilation, before, after = axes(1, 3), axes(1, 2), axes(0, 2), axes(0, 2)
    least = [max(1, d * (k - 1) + 1 - b - a) for k, d, b, a in zip(kernel, dilation, before, after, strict=True)]
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3)) * groups
    return {
        "x": (draw(st.integers(1, 2)), *(n + m for n, m in zip(least, axes(0, 3), strict=True)), channels * groups),
        "weight": (*kernel, channels, outputs),
        "stride": axes(1, 3),
        "pad": tuple(zip(before, after, strict=True)),
        "dilation": dilation,
        "groups": groups,
    }


@many
@given(convolutions(), dtypes, seeds)
def test_convolution(case, dtype, seed) -> None:
    how = {name: case[name] for name in ("stride", "dilation", "groups")}
    function = (F.conv1d, F.conv2d, F.conv3d)[len(case["pad"]) - 1]

    def oracle(x: Any, weight: Any) -> Any:
        return last(function(F.pad(first(x), flat(case["pad"])), turned(weight), **how))

    arrays = drawn(seed, case["x"], case["weight"], dtype=dtype)
    check(lambda x, weight: ops.conv(x, weight, pad=case["pad"], **how), oracle, arrays, orders=3)


@st.composite
def transposed(draw: st.DrawFn) -> dict[str, Any]:
    axes = Axes(draw)
    kernel, dilation, stride = axes(1, 3), axes(1, 3), axes(1, 3)
    groups = draw(st.sampled_from([1, 1, 2]))
    inputs, outputs = draw(st.integers(1, 3)) * groups, draw(st.integers(1, 3))
    pad = tuple(min(p, d * (k - 1) // 2) for p, d, k in zip(axes(0, 2), dilation, kernel, strict=True))
    return {
        "x": (draw(st.integers(1, 2)), *axes(1, 4), inputs),
        "weight": (*kernel, outputs, inputs),
        "stride": stride,
        "pad": pad,
        "dilation": dilation,
        "groups": groups,
        "output_pad": tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)),
    }


@many
@given(transposed(), dtypes, seeds)
def test_transposed_convolution(case, dtype, seed) -> None:
    how = {name: case[name] for name in ("stride", "dilation", "groups")}
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(case["pad"]) - 1]

    def oracle(x: Any, weight: Any) -> Any:
        border = {"padding": case["pad"], "output_padding": case["output_pad"]}
        return last(function(first(x), turned(weight), **border, **how))

    def ours(x: Any, weight: Any) -> Any:
        return ops.conv_transpose(x, weight, pad=case["pad"], output_pad=case["output_pad"], **how)

    check(ours, oracle, drawn(seed, case["x"], case["weight"], dtype=dtype), orders=3)


@st.composite
def poolings(draw: st.DrawFn) -> dict[str, Any]:
    axes = Axes(draw)
    kernel = axes(1, 4)
    pad = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    size = tuple(k + more for k, more in zip(kernel, axes(0, 4), strict=True))
    return {
        "x": (draw(st.integers(1, 2)), *size, draw(st.integers(1, 3))),
        "kernel": kernel,
        "stride": axes(1, 4),
        "pad": pad,
        "ceil": draw(st.booleans()),
    }


@many
@given(poolings(), st.booleans(), dtypes, seeds)
def test_max_pool(case, ties, dtype, seed) -> None:
    how = (case["kernel"], case["stride"], case["pad"])
    # As torch does, a window that reaches over the border may be dilated only without one.
    dilation = 1 if any(case["pad"]) or any(2 * k - 1 > n for k, n in zip(case["kernel"], case["x"][1:-1])) else 2  # noqa: B905
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(case["pad"]) - 1]

    def oracle(x: Any) -> Any:
        y, indices = function(first(x * x * x), *how, dilation, case["ceil"], return_indices=True)
        return last(y), last(indices)

    def ours(x: Any) -> Any:
        return ops.max_pool(ops.multiply(ops.multiply(x, x), x), *how, case["ceil"], dilation, return_indices=True)

    (x,) = drawn(seed, case["x"], dtype=dtype)
    x = np.round(x) if ties else x
    check(ours, oracle, [x])


@many
@given(poolings(), st.booleans(), dtypes, seeds)
def test_average_pool(case, count_pad, dtype, seed) -> None:
    how = (case["kernel"], case["stride"], case["pad"])
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(case["pad"]) - 1]

    def oracle(x: Any) -> Any:
        return last(function(first(x * x), *how, case["ceil"], count_pad))

    def ours(x: Any) -> Any:
        return ops.average_pool(ops.multiply(x, x), *how, case["ceil"], count_pad)

    # Of squares, so that there is a second derivative.
    check(ours, oracle, drawn(seed, case["x"], dtype=dtype))


@many
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans(), dtypes, seeds)
def test_global_pooling(size, ties, dtype, seed) -> None:
    (x,) = drawn(seed, (2, *size, 3), dtype=dtype)
    x = np.round(x) if ties else x
    axes = tuple(range(1, len(size) + 1))
    check(lambda x: ops.global_average(ops.multiply(x, x)), lambda x: (x * x).mean(axes), [x])
    function = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[len(size) - 1]
    check(ops.global_max, lambda x: function(first(x), 1).flatten(1), [x])
