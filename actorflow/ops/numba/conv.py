"""Convolutions: products with packed weights, and depthwise ones in the order of additions of NumPy's kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.depthwise import is_depthwise, window_pieces
from actorflow.ops.cpu.parallel import Finish, product_ns, spread
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.windows import MOST_AXES, Windows
from actorflow.ops.numba import depthwise
from actorflow.ops.numba.dense import convolve, convolve_back
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.outer import add_outer
from actorflow.ops.numba.routine import Routine
from actorflow.ops.numba.taps import MOST_TAPS, Fold, Slide, bounds, forwards, geometry, slide, unpacked, volumes

_PRODUCTS = Fold("products", "0", "{t} + {v} * f", "{t}", weighted=True, border=0.0)


def _can(operation: Conv | ConvDown, weight: Array) -> bool:
    """Return whether the weight is of a depthwise convolution, and a border of zeros adds nothing."""
    if not is_depthwise(operation.groups, weight.shape[-2]) or math.prod(weight.shape[:-2]) > MOST_TAPS:
        return False
    return bool(np.isfinite(weight).all())


@lru_cache(maxsize=4096)
def _backwards(w: Windows) -> Slide:
    """The windows of an image's elements over the gradients that reach them, between which there are gaps."""
    axes = zip(w.pad, w.kernel, w.dilation, strict=True)
    start = tuple(before - (k - 1) * d for (before, _), k, d in axes)
    return Slide(
        volumes(w.out, 1),
        volumes(w.stride, 1),
        volumes(w.kernel, 1),
        volumes(start, 0),
        (1,) * MOST_AXES,
        volumes(w.dilation, 1),
        volumes(w.size, 1),
        is_turned=True,
    )


@kernel(Conv, keeps=True)
def _conv(operation: Conv, inputs: list[Array], outputs: list[Array], finish: Finish | None = None) -> bool:
    (x, weight), (y,) = inputs, outputs
    if not are_plain([x, weight, y], x.dtype):
        return False
    if not is_depthwise(operation.groups, weight.shape[-2]):
        return convolve(operation, x, weight, y, finish)
    if x.shape[-1] == y.shape[-1]:
        return depthwise.forward(operation, x, weight, y, finish)
    if not _can(operation, weight):
        return False
    return slide(_PRODUCTS, forwards(operation.windows(x.shape[1:-1], weight.shape[:-2])), x, weight, y, finish)


@kernel(ConvDown)
def _conv_down(operation: ConvDown, inputs: list[Array], outputs: list[Array], finish: Finish | None = None) -> bool:
    (g, weight), (dx,) = inputs, outputs
    if not are_plain([g, weight, dx], g.dtype):
        return False
    if not is_depthwise(operation.groups, weight.shape[-2]):
        return convolve_back(operation, g, weight, dx, finish)
    if g.shape[-1] != dx.shape[-1] or not _can(operation, weight):
        return False
    return slide(_PRODUCTS, _backwards(operation.windows(dx.shape[1:-1], weight.shape[:-2])), g, weight, dx, finish)


#: Sums over the windows of a row, then over the rows of a piece, as NumPy's kernel has them: all taps of a row of the
#: kernel at once. Windows whose taps are all inside go by fours, those at the ends of a row one by one.
_WEIGHT = """
def weight(g, x, total, sums, geometry, piece):
    nothing = np.{dtype}(0)
    {unpacked}
    for i in range(taps_z * taps_y * taps_x * channels):
        total[i] = nothing
    {ranges}
    whole = first + (last - first) // 4 * 4
    for tap in range(taps_z * taps_y):
        shift_z, shift_y = start_z + tap // taps_y * apart_z, start_y + tap % taps_y * apart_y
        for n in range(piece[0], piece[1]):
            for z in range(piece[2], piece[3]):
                at_z = z * step_z + shift_z
                if at_z < 0 or at_z >= depth:
                    continue
                for y in range(piece[4], piece[5]):
                    at_y = y * step_y + shift_y
                    if at_y < 0 or at_y >= height:
                        continue
                    a = ((n * count_z + z) * count_y + y) * count_x * channels
                    b = (((n * depth + at_z) * height + at_y) * width + start_x) * channels
                    for i in range(taps_x * channels):
                        sums[i] = nothing
                    {before}
                    for o in range(first, whole, 4):
                        for c in range(channels):
                            {middle}
                    {after}
                    for i in range(taps_x * channels):
                        total[tap * taps_x * channels + i] += sums[i]
"""


@lru_cache(maxsize=256)
def _weight_routine(taps: int, stride: int, dilation: int, dtype: str) -> Routine:
    ranges, places = [], [k * dilation for k in range(taps)]
    for k, place in enumerate(places):  # the windows whose tap is inside
        ranges += [
            f"begin{k} = max(piece[6], min(piece[7], -((start_x + {place}) // {stride})))",
            f"end{k} = max(begin{k}, min(piece[7], (width - 1 - start_x - {place}) // {stride} + 1))",
        ]
    ranges.append(f"first = max({', '.join(['piece[6]', *[f'begin{k}' for k in range(taps)]])})")
    ranges.append(f"last = max(first, min({', '.join(['piece[7]', *[f'end{k}' for k in range(taps)]])}))")
    middle = [f"g{n} = g[a + (o + {n}) * channels + c]" for n in range(4)]
    seen = sorted({n * stride + place for n in range(4) for place in places})
    middle += [f"x{at} = x[b + (o * {stride} + {at}) * channels + c]" for at in seen]
    for k, place in enumerate(places):
        products = "".join(f" + g{n} * x{n * stride + place}" for n in range(4))
        middle.append(f"sums[{k} * channels + c] = sums[{k} * channels + c]{products}")

    def alone(begin: str, end: str) -> list[str]:
        lines = []
        for k, place in enumerate(places):
            factors = f"g[a + o * channels + c] * x[b + (o * {stride} + {place}) * channels + c]"
            lines += [
                f"for o in range({begin.format(k)}, {end.format(k)}):",
                "    for c in range(channels):",
                f"        sums[{k} * channels + c] += {factors}",
            ]
        return lines

    text = _WEIGHT.format(
        dtype=dtype,
        unpacked=_indented(unpacked("geometry"), 4),
        ranges=_indented(ranges, 4),
        before=_indented(alone("begin{0}", "min(first, end{0})"), 20),
        middle=_indented(middle, 28),
        after=_indented(alone("max(whole, begin{0})", "end{0}"), 20),
    )
    return Routine(text, "weight", (*[f"{dtype}*"] * 4, "int64*", "int64*"))


def _indented(lines: Sequence[str], columns: int) -> str:
    return f"\n{' ' * columns}".join(lines)


@kernel(ConvWeight)
def _conv_weight(operation: ConvWeight, inputs: list[Array], outputs: list[Array]) -> bool:
    (g, x), (dweight,) = inputs, outputs
    if not are_plain([g, x, dweight], g.dtype):
        return False
    if not is_depthwise(operation.groups, dweight.shape[-2]):
        return add_outer(operation, g, x, dweight)
    w = operation.windows(x.shape[1:-1], operation.kernel)
    if x.shape[-1] != g.shape[-1] or w.kernel[-1] > MOST_TAPS:
        return False
    function = _weight_routine(w.kernel[-1], w.stride[-1], w.dilation[-1], g.dtype.name).function
    if function is None:
        return False
    pieces, each = window_pieces(w, g), geometry(w, g.shape[-1])
    partial = np.empty((len(pieces), dweight.size), g.dtype)

    def part(index: int) -> None:
        sums, total, piece = (
            scratch("sums", (w.kernel[-1] * g.shape[-1],), g.dtype),
            partial[index],
            bounds(pieces[index]),
        )
        function(id(g), id(x), id(total), id(sums), id(each), id(piece))

    spread(range(len(pieces)), part, product_ns(g.size, math.prod(w.kernel), 1))
    flat = dweight.reshape(-1)
    flat.fill(0)
    for share in partial:
        np.add(flat, share, out=flat)
    return True
