"""Data gradients of convolutions that are added up: a product gives what each window adds, each element takes its own.

A convolution with the weight back to front (`actorflow.ops.numba.dense`) multiplies with zeros where strides leave
gaps, and where windows do not reach over the border. Here they are left out, and each element is written once.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import cache

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import product_ns, spread
from actorflow.ops.nn.conv import ConvDown
from actorflow.ops.nn.windows import MOST_AXES, Windows
from actorflow.ops.numba.assembly import entry, first_lanes, leave, load_vector, routine, store_vector, vectors
from actorflow.ops.numba.fused import Direct, Ending
from actorflow.ops.numba.packing import pack_turned
from actorflow.ops.numba.product import Product, matrix_rows
from actorflow.ops.numba.routine import Routine

#: Bytes of what the windows of some images add, which stays in the cache.
_BYTES = 512 << 10
_ENTRY = "gather"


@cache
def gather(dtype: str) -> Routine:
    """The routine for some images, of a dtype that `vectors` has vectors for."""
    v = vectors(dtype)
    assert v is not None
    arguments = [(f"{dtype}*", "shares"), (f"{dtype}*", "dx"), ("int64*", "geometry"), ("int64*", "windows")]
    text = entry(_ENTRY, [*arguments, ("intp", "begin"), ("intp", "end")])
    told = [text.load("i64", "%geometry", i) for i in range(3 * MOST_AXES + 1)]
    size, out, taps, channels = told[:MOST_AXES], told[MOST_AXES : 2 * MOST_AXES], told[2 * MOST_AXES : -1], told[-1]
    tables = ["%windows"]
    for n, count in zip(size[:-1], taps[:-1], strict=True):
        tables.append(text.at("i64", tables[-1], text.times(n, count)))
    with ExitStack() as loops:
        image = loops.enter_context(text.loop("%begin", "%end"))
        at = [loops.enter_context(text.loop(0, n)) for n in size]
        place, number = image, text.let(f"sub i64 {image}, %begin")
        for n, each in zip(size, at, strict=True):
            place = text.add(text.times(place, n), each)
        with text.loop(0, channels, v.lanes) as channel:
            mask = first_lanes(text, v, text.let(f"sub i64 {channels}, {channel}"))
            total = text.variable(v.vector, "zeroinitializer")
            with ExitStack() as inner:
                window, tap = number, "0"
                for axis in range(MOST_AXES):
                    own = inner.enter_context(text.loop(0, taps[axis]))
                    entry_ = text.add(text.times(at[axis], taps[axis]), own)
                    seen = text.load("i64", tables[axis], entry_)
                    inner.enter_context(text.when(text.let(f"icmp sge i64 {seen}, 0")))
                    window = text.add(text.times(window, out[axis]), seen)
                    tap = text.add(text.times(tap, taps[axis]), own)
                width = text.times(text.times(text.times(taps[0], taps[1]), taps[2]), channels)
                share = text.add(text.add(text.times(window, width), text.times(tap, channels)), channel)
                found = load_vector(text, v, text.at(v.element, "%shares", share), mask)
                text.store(v.vector, text.let(f"fadd {v.vector} {text.load(v.vector, total)}, {found}"), total)
            to = text.at(v.element, "%dx", text.add(text.times(place, channels), channel))
            store_vector(text, v, text.load(v.vector, total), to, mask)
    return routine(_ENTRY, [*arguments, ("intp", "begin"), ("intp", "end")], v, leave(text))


def _windows(w: Windows) -> Array:
    """For each axis, element and tap: the window that sees the element by this tap; -1 if none does."""
    tables = [np.zeros(MOST_AXES - len(w.size), np.int64)]
    for n, count, k, s, (before, _), d in zip(w.size, w.out, w.kernel, w.stride, w.pad, w.dilation, strict=True):
        shift = np.arange(n)[:, np.newaxis] + before - np.arange(k) * d
        found = np.where((shift % s == 0) & (shift // s < count), shift // s, -1)
        tables.append(np.maximum(found, -1).reshape(-1))
    return np.concatenate(tables)


class Gathered:
    """A data gradient of images of known sizes, of one group.

    Args:
        compute, collect: What `ready` gives, for the product and the gathering.
        operation: The operation.
        w: The windows of the convolution.
        batch: Number of images.
        channels, outputs: Of the images and of the gradient that is given.
        dtype: Of all arrays.
    """

    def __init__(
        self,
        compute: Routine,
        collect: Routine,
        operation: ConvDown,
        w: Windows,
        batch: int,
        channels: int,
        outputs: int,
        dtype: str,
    ) -> None:
        taps, windows, size = math.prod(w.kernel), math.prod(w.out), np.dtype(dtype).itemsize
        self._kept, self._collect, self._columns = kept(operation), collect.wait(), taps * channels
        self._elements, self._each = math.prod(w.size), windows
        at_once = max(1, min(batch, _BYTES // (windows * self._columns * size)))
        self._cuts = [slice(i, min(i + at_once, batch)) for i in range(0, batch, at_once)]
        self._products = {
            count: Product(compute, matrix_rows(count * windows, outputs), self._columns, 1, dtype)
            for count in {cut.stop - cut.start for cut in self._cuts}
        }
        ones = (1,) * (MOST_AXES - len(w.size))
        self._geometry = np.array([*ones, *w.size, *ones, *w.out, *ones, *w.kernel, channels], np.int64)
        self._windows = _windows(w)
        self._work_ns = product_ns(batch * windows, outputs, self._columns)
        self.size_bytes = self._windows.nbytes
        self.size_bytes += sum(product.rows.offsets.nbytes for product in self._products.values())

    def __call__(self, x: Array, weight: Array, y: Array, ending: Ending) -> None:
        packed = self._kept.packed(weight, self._pack)

        def part(cut: slice) -> None:
            count = cut.stop - cut.start
            shares = scratch("shares", (count * self._each, self._columns), x.dtype)
            self._products[count].run(x[cut], packed, shares, Ending(None, None))
            self._collect(id(shares), id(y), id(self._geometry), id(self._windows), cut.start, cut.stop)
            ending.take(cut.start * self._elements, cut.stop * self._elements)

        spread(self._cuts, part, self._work_ns)

    def direct(self, weight: Array) -> Direct | None:
        """See `Call`."""
        return None

    def _pack(self, weight: Array) -> Array:
        return pack_turned(weight.reshape(1, self._columns, weight.shape[-1]))
