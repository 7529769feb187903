"""Windows that slide over images, one row of them at a time: routines for convolution and pooling.

Images are copied into a border, some rows at a time that stay in the cache; so all windows are alike. Their elements,
the taps, are written out one by one, for several windows side by side: what windows share is loaded once, sums stay in
registers, and channels, which lie side by side in memory, are computed many at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.parallel import Finish, even_cuts, product_ns, spread
from actorflow.ops.cpu.windows import Piece
from actorflow.ops.nn.windows import MOST_AXES, Windows
from actorflow.ops.numba.machine import Function
from actorflow.ops.numba.routine import Routine

#: Of a border and the rows in it.
_BAND_BYTES = 384 << 10
#: With more taps, code gets too long.
MOST_TAPS = 64


class Slide(NamedTuple):
    """Windows over images, each attribute (depth, height, width).

    Attributes:
        size: Size of the images.
        gap: Distance of their elements, between which there are zeros.
        kernel: Taps of a window.
        start: Where the first window begins, counted with the gaps; before the images it is negative.
        stride: Distance of windows.
        dilation: Distance of taps.
        out: Number of windows.
        is_turned: Whether the taps of a window are in reverse order of its elements.
    """

    size: tuple[int, ...]
    gap: tuple[int, ...]
    kernel: tuple[int, ...]
    start: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]
    is_turned: bool = False

    @property
    def has_border(self) -> bool:
        """True if a window sees what is not of the images."""
        ends = zip(self.start, self.out, self.stride, self.kernel, self.dilation, strict=True)
        last = [first + (n - 1) * s + (k - 1) * d for first, n, s, k, d in ends]
        inside = all(a >= 0 and b < n for a, b, n in zip(self.start, last, self.size, strict=True))
        return not inside or any(gap > 1 for gap in self.gap)


_BORDER = """
def border(
    x, to, base, value, planes, rows, width,
    z, z_step, z_gap, depth, y, y_gap, height, x0, x_gap, length, channels, times,
):
    each = channels * times
    for p in range(planes):
        iz = z + p * z_step
        for r in range(rows):
            iy = y + r
            o = (p * rows + r) * width * each
            if iz < 0 or iz % z_gap or iz // z_gap >= depth or iy < 0 or iy % y_gap or iy // y_gap >= height:
                for i in range(width * each):
                    to[o + i] = value
                continue
            row = base + (iz // z_gap * height + iy // y_gap) * length * channels
            if x_gap == 1 and times == 1:
                first = min(width, max(0, -x0))
                stop = max(first, min(width, length - x0))
                for i in range(first * each):
                    to[o + i] = value
                a = row + x0 * each
                for i in range(first * each, stop * each):
                    to[o + i] = x[a + i]
                for i in range(stop * each, width * each):
                    to[o + i] = value
                continue
            for j in range(width):
                ix = x0 + j
                if ix < 0 or ix % x_gap or ix // x_gap >= length:
                    for i in range(each):
                        to[o + j * each + i] = value
                elif times == 1:
                    a = row + ix // x_gap * channels
                    for i in range(channels):
                        to[o + j * each + i] = x[a + i]
                else:
                    a = row + ix // x_gap * channels
                    for i in range(channels):
                        for n in range(times):
                            to[o + j * each + i * times + n] = x[a + i]
"""


@cache
def _border(dtype: str) -> Routine:
    return Routine(_BORDER, "border", (f"{dtype}*", f"{dtype}*", "intp", dtype, *["intp"] * 15))


class Fold(NamedTuple):
    """What becomes of the taps of a window; each is a line of Python.

    Attributes:
        name: Name of the routine.
        first: What ``t`` is at first.
        add: What ``t`` becomes with the element ``v``, and its weight ``f`` where there are weights.
        last: What is written.
        weighted: Whether each tap has a weight per channel; else ``w`` is one number per window.
        border: What an element outside of the images is.
    """

    name: str
    first: str
    add: str
    last: str
    weighted: bool
    border: float


@lru_cache(maxsize=256)
def routine(fold: Fold, kernel: tuple[int, ...], stride: int, dilation: int, is_turned: bool, dtype: str) -> Routine:
    """The routine for some rows of windows of a plane of an image."""
    several = 4 if math.prod(kernel) <= 25 else 2
    lines = [
        f"def {fold.name}(x, w, y, base, plane, step, tap_row, rows, width, channels, first, w_first):",
        f"    nothing = np.{dtype}({fold.first})",
        "    for row in range(rows):",
        f"        whole = width // {several} * {several}",
        f"        for i in range(0, whole, {several}):",
        *_windows(fold, kernel, stride, dilation, is_turned, several),
        "        for i in range(whole, width):",
        *_windows(fold, kernel, stride, dilation, is_turned, 1),
    ]
    arrays = [f"{dtype}*"] * 3
    return Routine("\n".join(lines), fold.name, (*arrays, *["intp"] * 9))


def _windows(
    fold: Fold, kernel: tuple[int, ...], stride: int, dilation: int, is_turned: bool, several: int
) -> Iterator[str]:
    depth, height, width = kernel
    yield "            o = row * width + i"
    yield f"            q = base + row * step + i * {stride} * channels"
    if not fold.weighted:
        yield from (f"            f{n} = w[w_first + o + {n}]" for n in range(several))
    yield "            o = (first + o) * channels"
    yield "            for c in range(channels):"
    for n in range(several):
        yield f"                t{n} = nothing"
    number = 0
    for z in range(depth):
        for y in range(height):
            if is_turned:
                z_at, y_at = depth - 1 - z, height - 1 - y
            else:
                z_at, y_at = z, y
            at = [(width - 1 - i if is_turned else i) * dilation for i in range(width)]
            for place in sorted({n * stride + x for n in range(several) for x in at}):
                yield f"                v{place} = x[q + {z_at} * plane + {y_at} * tap_row + {place} * channels + c]"
            for x in at:
                if fold.weighted:
                    yield f"                f = w[{number} * channels + c]"
                    number += 1
                for n in range(several):
                    yield f"                t{n} = {fold.add.format(t=f't{n}', v=f'v{n * stride + x}')}"
    for n in range(several):
        yield f"                y[o + {n} * channels + c] = {fold.last.format(t=f't{n}', f=f'f{n}')}"


def volumes(values: Sequence[int], missing: int) -> tuple[int, ...]:
    """A value for each of three axes; ``missing`` for those in front that there are not."""
    return (missing,) * (MOST_AXES - len(values)) + tuple(values)


@lru_cache(maxsize=4096)
def forwards(w: Windows) -> Slide:
    """The windows over the images that `Windows` has."""
    start = [-before for before, _ in w.pad]
    gap = (1,) * MOST_AXES
    return Slide(
        volumes(w.size, 1),
        gap,
        volumes(w.kernel, 1),
        volumes(start, 0),
        volumes(w.stride, 1),
        volumes(w.dilation, 1),
        volumes(w.out, 1),
    )


#: What `geometry` has, in order: of each axis, and the number of channels.
_AXES = [
    ("depth", "height", "width"),
    *[tuple(f"{name}_{axis}" for axis in "zyx") for name in ("count", "taps", "step", "apart", "start")],
]
_NAMES = [*[name for names in _AXES for name in names], "channels"]


@lru_cache(maxsize=4096)
def geometry(w: Windows, channels: int) -> Array:
    """The windows as routines take them that go through them one by one."""
    s = forwards(w)
    return np.array([*s.size, *s.out, *s.kernel, *s.stride, *s.dilation, *s.start, channels], np.int64)


def unpacked(array: str) -> list[str]:
    """Lines of Python that name what is in an array that `geometry` has made."""
    return [f"{name} = {array}[{index}]" for index, name in enumerate(_NAMES)]


def bounds(piece: Piece) -> Array:
    """A piece as routines take it: where images, planes, rows and windows begin and end."""
    image, *axes = ((cut.start, cut.stop) for cut in piece)
    return np.array([image, *[(0, 1)] * (MOST_AXES - len(axes)), *axes], np.int64)


def slide(fold: Fold, s: Slide, x: Array, w: Array, y: Array, finish: Finish | None = None) -> bool:
    """Write what ``fold`` makes of all windows of the images ``x``; False if that is not compiled yet.

    Args:
        fold: What to compute.
        s: The windows.
        x: Images, (batch, *size, channels).
        w: Weights, (*taps, channels of ``y``), or a number per window.
        y: Results, (batch, *out, channels), whose channels are a multiple of the images'.
        finish: Takes rows of the results that are there; see `Kernel.finishes`.
    """
    dtype = x.dtype.name
    compute = routine(fold, s.kernel, s.stride[-1], s.dilation[-1], s.is_turned, dtype).function
    border = _border(dtype).function
    if compute is None or border is None:
        return False
    if y.size:
        _slide(fold, s, x, w, y, compute, border, finish)
    return True


def _slide(
    fold: Fold, s: Slide, x: Array, w: Array, y: Array, compute: Function, border: Function, finish: Finish | None
) -> None:
    (depth, height, length), channels, times = s.size, y.shape[-1], y.shape[-1] // x.shape[-1]
    planes, taps_y, taps_x = s.kernel
    windows_z, windows_y, windows_x = s.out
    halo = (taps_y - 1) * s.dilation[1]
    is_copied = times > 1 or s.has_border
    width = (windows_x - 1) * s.stride[2] + (taps_x - 1) * s.dilation[2] + 1
    lines = max(1, (_BAND_BYTES // (planes * width * channels * x.itemsize) - halo) // s.stride[1])
    cuts = even_cuts(windows_y, -(-windows_y // lines))
    given, weights, result = id(x), id(w), id(y)

    def part(piece: tuple[int, int, slice]) -> None:
        n, z, cut = piece
        count, z0, y0 = cut.stop - cut.start, s.start[0] + z * s.stride[0], s.start[1] + cut.start * s.stride[1]
        if is_copied:
            rows = (count - 1) * s.stride[1] + halo + 1
            row = width * channels
            to = scratch("band", (planes * rows * row,), x.dtype)
            at = (z0, s.dilation[0], s.gap[0], depth, y0, s.gap[1], height, s.start[2], s.gap[2], length)
            image = n * depth * height * length * x.shape[-1]
            border(given, id(to), image, fold.border, planes, rows, width, *at, x.shape[-1], times)
            source, base, plane = id(to), 0, rows * row
        else:
            row = length * channels
            source, base = given, ((n * depth + z0) * height + y0) * row + s.start[2] * channels
            plane = s.dilation[0] * height * row
        window = (z * windows_y + cut.start) * windows_x
        first = n * windows_z * windows_y * windows_x + window
        steps = (plane, s.stride[1] * row, s.dilation[1] * row)
        compute(source, weights, result, base, *steps, count, windows_x, channels, first, window)
        if finish is not None:
            finish(first, first + count * windows_x)

    pieces = [(n, z, cut) for n in range(len(y)) for z in range(windows_z) for cut in cuts]
    spread(pieces, part, product_ns(y.size, math.prod(s.kernel), 1))
