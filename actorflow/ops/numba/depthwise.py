"""Depthwise convolutions and maxima of images whose channels lie side by side, row by row, with what follows them.

Several windows of a row are computed side by side, a vector of channels of each at a time: their sums stay in
registers, and what windows share is loaded once. Elements outside of the images are left out, and products added up
in the order of NumPy's kernel: results are its own to the bit.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import lru_cache

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import MOST_PIECES, Finish, even_cuts, product_ns, spread
from actorflow.ops.cpu.pool import is_global
from actorflow.ops.nn.conv import Conv
from actorflow.ops.nn.pool import MaxPool
from actorflow.ops.nn.windows import Windows
from actorflow.ops.numba.assembly import (
    Vectors,
    entry,
    first_lanes,
    leave,
    load_vector,
    routine,
    store_vector,
    vectors,
)
from actorflow.ops.numba.crew import may_share
from actorflow.ops.numba.crew import spread as spread_compiled
from actorflow.ops.numba.following import larger
from actorflow.ops.numba.fused import LATEST, Direct, Ending, ending
from actorflow.ops.numba.routine import Routine
from actorflow.ops.numba.taps import volumes

#: Products in a piece that a thread computes, at least: some 20 us.
_PIECE_PRODUCTS = 1 << 20
#: Windows side by side, as many as there are left.
_SEVERAL = {32: (7,), 16: (6, 3)}
#: Vectors of channels of a window that is computed by itself, as at the ends of a row: one would wait for each sum.
_VECTORS = 4
#: Taps of a row of the kernel at most: they are written out.
_MOST_TAPS = 16
_ENTRY = "depthwise"
#: What the routine is told, in order: of the axes z, y, x in turn where there are three.
_TOLD = [
    *[f"{name}_{axis}" for name in ("size", "taps", "apart", "stride", "start") for axis in "zyx"],
    *("count_z", "count_y", "count_x", "channels", "first", "last", "apart_row"),
]


def _arguments(dtype: str) -> list[tuple[str, str]]:
    arrays = [(f"{dtype}*", name) for name in ("x", "weight", "y", "row")]
    return [*arrays, ("int64*", "told"), *[("intp", name) for name in ("given", "following", "begin", "end")]]


class _Rows:
    """Makes the text of the routine.

    Args:
        v: Vectors.
        taps, stride, dilation: Of the last axis.
        dtype: Of all arrays.
        is_maximum: Whether the result is the largest element of each window, and there are no weights.
    """

    def __init__(self, v: Vectors, taps: int, stride: int, dilation: int, dtype: str, is_maximum: bool) -> None:
        self._v, self._taps, self._stride, self._dilation = v, taps, stride, dilation
        self._is_maximum = is_maximum
        self._text = text = entry(_ENTRY, _arguments(dtype))
        self._told = {name: text.load("i64", "%told", i) for i, name in enumerate(_TOLD)}

    def made(self) -> str:
        """The text."""
        text, told = self._text, self._told
        follows = text.let("icmp ne i64 %following, 0")
        begin = text.let(f"and i64 {text.add(text.let('ptrtoint ptr %row to i64'), 63)}, -64")
        room = text.let(f"inttoptr i64 {begin} to ptr")  # where a line of the cache begins
        function = text.let("inttoptr i64 %following to ptr")
        channels, count = told["channels"], told["count_x"]
        with text.loop("%begin", "%end") as number:
            y, rest = self._divided(number, told["count_y"])
            z, image = self._divided(rest, told["count_z"])
            row = text.times(number, count)
            result = text.at(self._v.element, "%y", text.times(row, channels))
            to = text.let(f"select i1 {follows}, ptr {room}, ptr {result}")
            apart = text.let(f"select i1 {follows}, i64 {told['apart_row']}, i64 {channels}")
            self._row(to, apart, image, self._start("z", z), self._start("y", y))
            with text.when(follows):
                address = text.let(f"ptrtoint ptr {to} to i64")
                numbers = ["%given", address, apart, row, count, 0, channels, channels]
                listed = ", ".join(f"i64 {each}" for each in numbers)
                text.do(f"call i32 {function}(ptr null, ptr null, {listed})")
        return leave(text)

    def _divided(self, number: str, count: str) -> tuple[str, str]:
        return self._text.let(f"urem i64 {number}, {count}"), self._text.let(f"udiv i64 {number}, {count}")

    def _start(self, axis: str, number: str) -> str:
        """Where the first tap of a window is."""
        return self._text.add(self._text.times(number, self._told[f"stride_{axis}"]), self._told[f"start_{axis}"])

    def _row(self, to: str, apart: str, image: str, z: str, y: str) -> None:
        """A row of windows, some vectors of channels after the other."""
        text, v, channels = self._text, self._v, self._told["channels"]
        first, last, count = [self._told[name] for name in ("first", "last", "count_x")]
        middles = [first]  # where those of each number begin, and windows by themselves
        for several in _SEVERAL[v.registers]:
            length = text.let(f"sub i64 {last}, {middles[-1]}")
            middles.append(text.add(middles[-1], text.times(text.let(f"sdiv i64 {length}, {several}"), several)))

        def columns(channel: str, vectors: int, mask: str | None) -> None:
            def windows(x: str, number: int, place: str, width: int, is_inside: bool) -> None:
                sums = self._windows(image, z, y, x, place, mask, number, width, is_inside)
                for (n, i), total in sums.items():
                    at = text.add(text.add(text.times(text.add(x, n), apart), place), i * v.lanes)
                    store_vector(text, v, text.load(v.vector, total), text.at(v.element, to, at), mask)

            for several, begin, end in zip(_SEVERAL[v.registers], middles, middles[1:], strict=False):
                with text.loop(begin, end, several) as x, text.loop(0, vectors) as i:
                    windows(x, several, text.add(channel, text.times(i, v.lanes)), 1, True)
            for begin, end, is_inside in (("0", first, False), (middles[-1], last, True), (last, count, False)):
                with text.loop(begin, end) as x:
                    windows(x, 1, channel, vectors, is_inside)

        block = v.lanes * _VECTORS
        most, whole = (text.let(f"and i64 {channels}, {-each}") for each in (block, v.lanes))
        with text.loop(0, most, block) as channel:
            columns(channel, _VECTORS, None)
        with text.loop(most, whole, v.lanes) as channel:
            columns(channel, 1, None)
        rest = text.let(f"sub i64 {channels}, {whole}")
        with text.when(text.let(f"icmp ne i64 {rest}, 0")):
            columns(whole, 1, first_lanes(text, v, rest))

    def _windows(
        self,
        image: str,
        z: str,
        y: str,
        x: str,
        channel: str,
        mask: str | None,
        count: int,
        vectors: int,
        is_inside: bool,
    ) -> dict[tuple[int, int], str]:
        """Variables with the sums of some vectors of windows side by side; only one may have columns outside."""
        text, v, told = self._text, self._v, self._told
        nothing = f"splat ({v.element} 0xFFF0000000000000)" if self._is_maximum else "zeroinitializer"  # -inf
        sums = {(n, i): text.variable(v.vector, nothing) for n in range(count) for i in range(vectors)}
        left = self._start("x", x)
        with text.loop(0, told["taps_z"]) as tap_z:
            at_z = text.add(z, text.times(tap_z, told["apart_z"]))
            with text.when(self._is_within(at_z, told["size_z"])), text.loop(0, told["taps_y"]) as tap_y:
                at_y = text.add(y, text.times(tap_y, told["apart_y"]))
                with text.when(self._is_within(at_y, told["size_y"])):
                    plane = text.add(text.times(image, told["size_z"]), at_z)
                    line = text.add(text.times(plane, told["size_y"]), at_y)
                    pixel = text.add(text.times(line, told["size_x"]), left)
                    source = text.at(v.element, "%x", text.add(text.times(pixel, told["channels"]), channel))
                    tap = text.times(text.add(text.times(tap_z, told["taps_y"]), tap_y), self._taps)
                    factors = text.at(v.element, "%weight", text.add(text.times(tap, told["channels"]), channel))
                    self._taps_of_row(source, factors, sums, None if is_inside else left, mask)
        return sums

    def _is_within(self, at: str, size: str) -> str:
        return self._text.let(f"icmp ult i64 {at}, {size}")  # a negative number is a large one

    def _taps_of_row(
        self, source: str, factors: str, sums: dict[tuple[int, int], str], left: str | None, mask: str | None
    ) -> None:
        """Add up a row of taps: those that are inside, of a window that begins at ``left``, unless it is None."""
        seen: dict[tuple[int, int], str] = {}
        for k in range(self._taps):
            with ExitStack() as stack:
                if left is not None:
                    at = self._text.add(left, k * self._dilation)
                    stack.enter_context(self._text.when(self._is_within(at, self._told["size_x"])))
                weights = {}
                if not self._is_maximum:
                    weights = {i: self._vector(factors, k, i, mask) for i in dict.fromkeys(i for _, i in sums)}
                for (n, i), total in sums.items():
                    place = n * self._stride + k * self._dilation, i
                    if place not in seen:
                        seen[place] = self._vector(source, *place, mask)
                    self._add(total, seen[place], weights.get(i))

    def _vector(self, address: str, index: int, number: int, mask: str | None) -> str:
        """A vector of channels of an element, counted from an address."""
        text, v = self._text, self._v
        place = text.add(text.times(self._told["channels"], index), number * v.lanes)
        return load_vector(text, v, text.at(v.element, address, place), mask)

    def _add(self, total: str, value: str, factor: str | None) -> None:
        text, kind = self._text, self._v.vector
        if factor is None:
            text.store(kind, larger(text, self._v, [text.load(kind, total), value]), total)
            return
        product = text.let(f"fmul {kind} {value}, {factor}")
        text.store(kind, text.let(f"fadd {kind} {text.load(kind, total)}, {product}"), total)


@lru_cache(maxsize=256)
def _routine(taps: int, stride: int, dilation: int, dtype: str, is_maximum: bool) -> Routine:
    v = vectors(dtype)
    assert v is not None
    return routine(_ENTRY, _arguments(dtype), v, _Rows(v, taps, stride, dilation, dtype, is_maximum).made())


@lru_cache(maxsize=4096)
def _told(w: Windows, channels: int, lanes: int) -> Array:
    """What the routine is told of windows: those from ``first`` to ``last`` have all columns inside."""
    size, kernel, out = (volumes(each, 1) for each in (w.size, w.kernel, w.out))
    stride, dilation = volumes(w.stride, 1), volumes(w.dilation, 1)
    start = volumes([-before for before, _ in w.pad], 0)
    reach = (kernel[-1] - 1) * dilation[-1]
    first = min(out[-1], max(0, -(start[-1] // stride[-1])))
    last = max(first, min(out[-1], (size[-1] - 1 - reach - start[-1]) // stride[-1] + 1))
    axes = [*size, *kernel, *dilation, *stride, *start, *out]
    return np.array([*axes, channels, first, last, -(-channels // lanes) * lanes], np.int64)


class Depthwise:
    """A depthwise convolution of images of known sizes, whose results have as many channels.

    Args:
        w: Positions of the kernel.
        y: Shape of the result.
        dtype: Of all arrays.
        is_maximum: Whether the largest elements are wanted, and the weight is not used.
    """

    size_bytes = 0

    def __init__(self, w: Windows, y: tuple[int, ...], dtype: str, is_maximum: bool = False) -> None:
        v = vectors(dtype)
        assert v is not None
        channels, self._width = y[-1], w.out[-1]
        taps = 4 * math.prod(w.kernel)
        self._routine = _routine(w.kernel[-1], w.stride[-1], w.dilation[-1], dtype, is_maximum)
        self._told = _told(w, channels, v.lanes)
        self._room = self._width * -(-channels // v.lanes) * v.lanes + 64 // v.size
        self._cuts = even_cuts(math.prod(y[:-2]), min(MOST_PIECES, math.prod(y) * taps // _PIECE_PRODUCTS))
        self._work_ns = product_ns(math.prod(y), taps, 1)

    def direct(self, weight: Array) -> Direct | None:
        """See `Call`."""
        told, factors = id(self._told), id(weight)

        def compute(x: Array, y: Array, given: int, address: int, _kept: Array = weight) -> None:
            self._compute(x, (id(x), factors, id(y)), (told, given, address))

        return compute

    def _compute(self, x: Array, arrays: tuple[int, ...], following: tuple[int, ...]) -> None:
        """Compute all rows, by several threads where that pays, with a row of sums for each piece."""
        if len(self._cuts) == 1 or not may_share(self._routine, len(self._cuts), self._work_ns):
            row = scratch("row of sums", (self._room,), x.dtype)
            self._routine.wait()(*arrays, id(row), *following, 0, self._cuts[-1].stop)
            return
        rows = [*scratch("rows of sums", (len(self._cuts), self._room), x.dtype)]
        pieces = [(id(row), *following, cut.start, cut.stop) for row, cut in zip(rows, self._cuts, strict=True)]
        spread_compiled(self._routine, arrays, np.array(pieces, np.int64), self._work_ns)

    @property
    def is_ready(self) -> bool:
        """Whether it is compiled."""
        return self._routine.function is not None

    def __call__(self, x: Array, weight: Array, y: Array, ending: Ending) -> None:
        function, width = self._routine.wait(), self._width
        where, address = (id(self._told), 0) if ending.following is None else ending.following.call
        arrays = (id(x), id(weight), id(y))

        def part(cut: slice) -> None:
            row = scratch("row of sums", (self._room,), x.dtype)
            function(*arrays, id(row), id(self._told), where, address, cut.start, cut.stop)
            if ending.following is None:
                ending.take(cut.start * width, cut.stop * width)

        if ending.following is None and ending.finish is not None:
            spread(self._cuts, part, self._work_ns)
        else:
            self._compute(x, arrays, (id(self._told), where, address))


def forward(operation: Conv, x: Array, weight: Array, y: Array, finish: Finish | None) -> bool:
    """Compute a convolution whose groups have one channel and one result; False if that is left to others."""

    def make() -> Depthwise | bool:
        w, dtype = operation.windows(x.shape[1:-1], weight.shape[:-2]), x.dtype.name
        if vectors(dtype) is None or w.kernel[-1] > _MOST_TAPS:
            return False
        return Depthwise(w, y.shape, dtype)

    if not y.size:
        return True
    own = kept(operation)
    call = own.made((x.shape, weight.shape, x.dtype), make)
    if isinstance(call, bool) or not call.is_ready:
        return False
    LATEST.call = call
    call(x, weight, y, ending(finish))
    return True


def maxima(operation: MaxPool, x: Array, y: Array) -> bool:
    """Compute the largest elements of windows; False if that is left to others."""

    def make() -> Depthwise | bool:
        w, dtype = operation.windows(x.shape[1:-1]), x.dtype.name
        if vectors(dtype) is None or w.kernel[-1] > _MOST_TAPS or is_global(w):
            return False
        return Depthwise(w, y.shape, dtype, is_maximum=True)

    if not y.size:
        return False
    call = kept(operation).made((x.shape, x.dtype), make)
    if isinstance(call, bool) or not call.is_ready:
        return False
    call(x, y, y, Ending(None, None))
    return True
