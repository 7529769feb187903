"""Weight gradients of convolutions and inner products: sums of outer products, without columns and without packing.

For each tap of a kernel, the gradient is a matrix (input, output): the sum over all windows of what the tap sees times
the window's gradient. For a tile, some inputs and a few vectors of outputs, all sums stay in registers while the loop
goes along the windows: channels are last, so each step loads vectors of the gradient and multiplies them with a few
elements that lie side by side in the image. Windows whose tap is outside of the image are left out: nothing is copied,
unless several taps are computed as one, where images have few channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product as combinations
from typing import NamedTuple

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.parallel import MOST_PIECES, even_cuts, product_ns
from actorflow.ops.cpu.windows import put_in_border
from actorflow.ops.linalg import InnerWeight
from actorflow.ops.nn.conv import ConvWeight
from actorflow.ops.nn.windows import Windows
from actorflow.ops.numba.assembly import (
    Text,
    Vectors,
    entry,
    first_lanes,
    fused_multiply_add,
    leave,
    load_vector,
    routine,
    store_vector,
    vectors,
)
from actorflow.ops.numba.assembly import spread as to_all_lanes
from actorflow.ops.numba.crew import spread
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.product import TILE_ROWS, ready, tiles_of
from actorflow.ops.numba.routine import Routine

#: Windows that are added up one after the other before that is added to the result.
_DEPTH = 256
#: Taps along the last axis are computed as one where so few inputs would leave registers empty.
_FEW_INPUTS = 12
#: Products of a piece that a thread computes, at least: a tenth of a millisecond.
_PIECE_PRODUCTS = 5 << 20
#: Rows of a piece, at least, and the most pieces that each go through all windows.
_PIECE_ROWS, _MOST_PIECES = 48, 12
#: Where all that the windows see is larger than so many results, each piece goes through some of the windows.
_MOST_SUMS = 8
#: Entries of each part, and of what a call is told before its panels.
_OF_PART, _TOLD = 6, 8


def _tile(rows: int, width: int, v: Vectors) -> str:
    """The function of one tile: ``to = (to or 0) + sum of outer products``."""
    arguments = [("ptr", name) for name in ("x", "g", "to", "told")]
    numbers = [("i64", name) for name in ("images", "lines", "windows", "valid", "begun")]
    text = Text(_name(rows, width), [*arguments, *numbers], is_inner=True)
    columns, *steps = [text.load("i64", "%told", i) for i in range(7)]
    places = [(r, n) for r in range(rows) for n in range(width)]
    sums = {place: text.variable(v.vector, "zeroinitializer") for place in places}
    mask = first_lanes(text, v, text.let(f"sub i64 %valid, {(width - 1) * v.lanes}"))

    def vector(address: str, n: int) -> str:
        return load_vector(text, v, text.at(v.element, address, n * v.lanes), mask if n == width - 1 else None)

    image = text.variable("ptr", "%x"), text.variable("ptr", "%g")
    with text.loop(0, "%images"):
        line = [text.variable("ptr", text.load("ptr", each)) for each in image]
        with text.loop(0, "%lines"):
            here = [text.variable("ptr", text.load("ptr", each)) for each in line]
            with text.loop(0, "%windows"):
                x, g = (text.load("ptr", each) for each in here)
                factors = [vector(g, n) for n in range(width)]
                for r in range(rows):
                    element = to_all_lanes(text, v, text.load(v.element, x, r))
                    for n in range(width):
                        total = text.load(v.vector, sums[r, n])
                        text.store(v.vector, fused_multiply_add(text, v, element, factors[n], total), sums[r, n])
                _move(text, v, here, steps[4:6])
            _move(text, v, line, steps[2:4])
        _move(text, v, image, steps[:2])

    def result(r: int, n: int) -> tuple[str, str | None]:
        row = text.at(v.element, "%to", text.times(columns, r))
        return text.at(v.element, row, n * v.lanes), mask if n == width - 1 else None

    with text.when(text.let("icmp ne i64 %begun, 0")):
        for place, total in sums.items():
            before, found = load_vector(text, v, *result(*place)), text.load(v.vector, total)
            text.store(v.vector, text.let(f"fadd {v.vector} {before}, {found}"), total)
    for place, total in sums.items():
        store_vector(text, v, text.load(v.vector, total), *result(*place))
    text.do("ret void")
    return str(text)


def _move(text: Text, v: Vectors, pointers: tuple[str, str] | list[str], steps: list[str]) -> None:
    for pointer, step in zip(pointers, steps, strict=True):
        text.store("ptr", text.at(v.element, text.load("ptr", pointer), step), pointer)


def _name(rows: int, width: int) -> str:
    return f"sums_{rows}_{width}"


_ENTRY = "outer"
#: What a piece is: blocks of windows, parts, rows and panels, and where its result begins.
_PIECE = ("since", "until", "begin", "end", "first", "last", "left", "right", "shift")


def _arguments(dtype: str) -> list[tuple[str, str]]:
    arrays = [(f"{dtype}*", "x"), (f"{dtype}*", "g"), (f"{dtype}*", "y"), ("int64*", "parts"), ("int64*", "told")]
    return [*arrays, *[("intp", name) for name in _PIECE]]


@cache
def outer_sums(dtype: str) -> Routine:
    """The routine for some parts, rows and panels, of a dtype that `vectors` has vectors for."""
    v = vectors(dtype)
    assert v is not None
    definitions, across = tiles_of(v, _tile, _name)
    return routine(_ENTRY, _arguments(dtype), v, *definitions, _all(v, across, dtype))


def _all(v: Vectors, across: int, dtype: str) -> str:
    """The routine's entry: goes through blocks of windows, parts of the result, panels and tiles."""
    text = entry(_ENTRY, _arguments(dtype))
    columns, parts = text.load("i64", "%told"), text.load("i64", "%told", 7)
    rows, result = text.let("sub i64 %last, %first"), text.at(v.element, "%y", "%shift")
    with text.loop("%since", "%until") as block, text.loop("%begin", "%end") as number:
        begun = text.let(f"zext i1 {text.let(f'icmp ne i64 {block}, %since')} to i64")
        part = text.at("i64", "%parts", text.times(text.add(text.times(block, parts), number), _OF_PART))
        at_x, at_g, at_y, *counts = [text.load("i64", part, i) for i in range(_OF_PART)]
        with text.loop("%left", "%right") as each:
            panel = text.at("i64", "%told", text.add(text.times(each, 3), _TOLD))
            column, valid, width = [text.load("i64", panel, i) for i in range(3)]
            g = text.at(v.element, "%g", text.add(at_g, column))
            most = text.load("i64", "@most", width)
            tiles = text.let(f"udiv i64 {text.add(rows, text.add(most, -1))}, {most}")
            least, more = text.let(f"udiv i64 {rows}, {tiles}"), text.let(f"urem i64 {rows}, {tiles}")
            at_row = text.variable("i64", "%first")
            with text.loop(0, tiles) as tile:
                has_more = text.let(f"zext i1 {text.let(f'icmp slt i64 {tile}, {more}')} to i64")
                height, row = text.add(least, has_more), text.load("i64", at_row)
                function = text.load("ptr", "@tiles", text.add(text.times(width, across), height))
                x = text.at(v.element, "%x", text.add(at_x, row))
                to = text.at(v.element, result, text.add(text.add(at_y, column), text.times(row, columns)))
                pointers = ", ".join(f"ptr {each}" for each in (x, g, to, "%told"))
                numbers = ", ".join(f"i64 {each}" for each in (*counts, valid, begun))
                text.do(f"call void {function}({pointers}, {numbers})")
                text.store("i64", text.add(row, height), at_row)
    return leave(text)


class _Axis(NamedTuple):
    """Windows along one axis, of which a tap sees the elements from ``start`` on, each ``stride`` further."""

    size: int
    taps: int
    stride: int
    before: int
    dilation: int
    out: int

    def seen(self, tap: int, begin: int, end: int) -> tuple[int, int, int]:
        """First and number of the windows among some whose tap is inside, and the element that the first one sees."""
        shift = tap * self.dilation - self.before
        first = max(begin, -(shift // self.stride))
        last = min(end, (self.size - 1 - shift) // self.stride + 1)
        return first, max(0, last - first), first * self.stride + shift


class Sums:
    """Sums of outer products over windows on images.

    Args:
        compute: What `ready` gives.
        batch: Number of images.
        axes: Three axes.
        joined: Whether the taps of the last axis are computed as one; it has no border then.
        channels: Of an image.
        outputs: Number of outputs.
        groups: In so many groups of channels and of outputs.
        dtype: Of all arrays.
    """

    def __init__(
        self,
        compute: Routine,
        batch: int,
        axes: tuple[_Axis, ...],
        joined: bool,
        channels: int,
        outputs: int,
        groups: int,
        dtype: str,
    ) -> None:
        v = vectors(dtype)
        assert v is not None
        self._routine, self._function = compute, compute.wait()
        inputs, own = channels // groups, outputs // groups
        taps = [axis.taps for axis in axes]
        rows = inputs * (taps.pop() if joined else 1)
        taps = [*taps, 1] if joined else taps
        self._parts, blocks = _parts(batch, axes, tuple(taps), rows, channels, outputs, groups)
        across = -(-own // v.lanes)
        cuts = even_cuts(across, -(-across // max(TILE_ROWS[v.registers])))
        panels = [
            (cut.start * v.lanes, min(own, cut.stop * v.lanes) - cut.start * v.lanes, cut.stop - cut.start)
            for cut in cuts
        ]
        (_, height, width), (_, deep, high, wide) = [axis.size for axis in axes], (0, *[axis.out for axis in axes])
        line, image = width * channels, axes[0].size * height * width * channels
        steps = (image, deep * high * wide * outputs, axes[1].stride * line, wide * outputs)
        count = math.prod(taps) * groups
        told = [outputs, *steps, axes[2].stride * channels, outputs, count]
        self._told = np.array([*told, *[n for panel in panels for n in panel]], np.int64)
        windows, size = batch * math.prod(axis.out for axis in axes), math.prod(taps) * rows * outputs
        self._work_ns = product_ns(windows, rows * count, own)
        wanted = max(1, min(MOST_PIECES, windows * rows * count * own // _PIECE_PRODUCTS))
        seen = batch * (
            math.prod(axis.size for axis in axes) * channels + math.prod(axis.out for axis in axes) * outputs
        )
        sums = min(_MOST_SUMS, wanted, blocks)
        by_block = even_cuts(blocks, sums if sums * size < seen else 1)
        self._shares = len(by_block)
        wanted = min(_MOST_PIECES, wanted) if len(by_block) == 1 else 1
        by_part = even_cuts(count, wanted)
        by_rows = even_cuts(rows, min(-(-wanted // len(by_part)), -(-rows // _PIECE_ROWS)))
        by_panels = even_cuts(len(panels), -(-wanted // (len(by_part) * len(by_rows))))
        pieces = [
            (*[end for cut in (of_blocks, *cuts) for end in (cut.start, cut.stop)], number * size)
            for number, of_blocks in enumerate(by_block)
            for cuts in combinations(by_part, by_rows, by_panels)
        ]
        self._pieces = np.array(pieces, np.int64)

    def __call__(self, x: Array, g: Array, y: Array) -> None:
        shares = y if self._shares == 1 else scratch("sums", (self._shares, y.size), y.dtype)
        given = (id(x), id(g), id(shares), id(self._parts), id(self._told))
        if len(self._pieces) == 1:
            self._function(*given, *self._pieces[0].tolist())
        else:
            spread(self._routine, given, self._pieces, self._work_ns)
        if shares is not y:
            np.add.reduce(shares, axis=0, out=y.reshape(-1))


def _parts(
    batch: int,
    axes: tuple[_Axis, ...],
    taps: tuple[int, ...],
    rows: int,
    channels: int,
    outputs: int,
    groups: int,
) -> tuple[Array, int]:
    """For each block of windows, and each tap of each group: where its arrays begin, and how many windows there are."""
    depth, high, wide = [axis.out for axis in axes]
    found = []
    blocks = list(_blocks(batch, depth, high, wide))
    for n, images, z, y, x in blocks:
        for group in range(groups):
            for number, (tap_z, tap_y, tap_x) in enumerate(combinations(*map(range, taps))):
                _, is_in, at_z = axes[0].seen(tap_z, z, z + 1)
                first_y, lines, at_y = axes[1].seen(tap_y, y.start, y.stop)
                first_x, windows, at_x = axes[2].seen(tap_x, x.start, x.stop)
                place = ((n * axes[0].size + at_z) * axes[1].size + at_y) * axes[2].size + at_x
                window = ((n * depth + z) * high + first_y) * wide + first_x
                found.append(
                    (
                        place * channels + group * (channels // groups),
                        window * outputs + group * (outputs // groups),
                        number * rows * outputs + group * (outputs // groups),
                        images * is_in,
                        lines,
                        windows,
                    )
                )
    return np.array(found, np.int64), len(blocks)


def _blocks(batch: int, depth: int, high: int, wide: int) -> Iterator[tuple[int, int, int, slice, slice]]:
    """First image and number of images, place along the first axis, and windows along the others."""
    at_once = max(1, _DEPTH // (high * wide))
    for n in range(0, batch, at_once):
        for z in range(depth):
            for y in even_cuts(high, -(-high * wide // _DEPTH)):
                for x in even_cuts(wide, -(-wide // _DEPTH)):
                    yield n, min(at_once, batch - n), z, y, x


@lru_cache(maxsize=256)
def _sums(w: Windows, batch: int, channels: int, outputs: int, groups: int, joined: bool, dtype: str) -> Sums | None:
    compute = ready(outer_sums, dtype)
    if compute is None:
        return None
    axes = [
        _Axis(n, taps, stride, before, dilation, out)
        for n, taps, stride, (before, _), dilation, out in zip(
            w.size, w.kernel, w.stride, w.pad, w.dilation, w.out, strict=True
        )
    ]
    if w.is_pointwise:
        windows = batch * math.prod(w.out)
        axes, batch = [_Axis(windows, 1, 1, 0, 1, windows)], 1
    return Sums(compute, batch, (*[_ONE] * (3 - len(axes)), *axes), joined, channels, outputs, groups, dtype)


_ONE = _Axis(1, 1, 1, 0, 1, 1)


def add_outer(operation: ConvWeight, g: Array, x: Array, dweight: Array) -> bool:
    """Compute a weight gradient of groups with several inputs; False if that is left to BLAS."""
    v = vectors(x.dtype.name)
    *_, inputs, outputs = dweight.shape
    groups = operation.groups
    is_wasteful = v is None or (groups > 1 and 2 * (outputs // groups) < v.lanes)
    if is_wasteful or not (g.size and dweight.size):
        return False
    w = operation.windows(x.shape[1:-1], operation.kernel)
    if any(max(pads) > d * (k - 1) for pads, d, k in zip(w.pad, w.dilation, w.kernel, strict=True)):
        return False
    has_border = w.size != w.padded_size
    with np.errstate(all="ignore"):  # the border's zeros times what is not finite, which NumPy's kernel adds, are NaN
        if has_border and not np.isfinite(np.add.reduce(g, axis=None)):
            return False
    joined = groups == 1 and w.dilation[-1] == 1 and w.kernel[-1] > 1 and inputs < _FEW_INPUTS
    if joined and has_border:
        padded = scratch("padded", (len(x), *w.padded_size, x.shape[-1]), x.dtype)
        put_in_border(x, padded, w)
        x, w = padded, replace(w, size=w.padded_size, pad=((0, 0),) * len(w.pad))
    sums = _sums(w, len(x), x.shape[-1], outputs, groups, joined, x.dtype.name)
    if sums is None:
        return False
    sums(x, g, dweight)
    return True


@kernel(InnerWeight)
def _inner_weight(operation: InnerWeight, inputs: list[Array], outputs: list[Array]) -> bool:
    (g, x), (dweight,) = inputs, outputs
    if not g.size or not dweight.size or vectors(g.dtype.name) is None or not are_plain([g, x, dweight], g.dtype):
        return False
    rows = g.size // g.shape[-1]
    sums = _sums(_matrix(rows), 1, g.shape[-1], x.shape[-1], 1, False, g.dtype.name)
    if sums is None:
        return False
    sums(g, x, dweight)
    return True


def _matrix(rows: int) -> Windows:
    return Windows((rows,), (1,), (1,), ((0, 0),), (1,), (rows,))
