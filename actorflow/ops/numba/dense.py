"""Convolutions and inner products as products with packed weights; see `actorflow.ops.numba.product`.

Columns are not gathered: the product reads the images, which have their border where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import Finish, even_cuts, product_ns, spread
from actorflow.ops.cpu.windows import put_in_border
from actorflow.ops.linalg import Inner, InnerDown
from actorflow.ops.nn.conv import Conv, ConvDown
from actorflow.ops.nn.windows import Windows
from actorflow.ops.numba.assembly import vectors
from actorflow.ops.numba.fused import LATEST, Call, Direct, Ending, ending
from actorflow.ops.numba.gathered import Gathered, gather
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.packing import pack_turned
from actorflow.ops.numba.product import Product, Rows, matrix_rows, multiply, pack, ready, shared
from actorflow.ops.numba.routine import Routine
from actorflow.ops.numba.row import Row, multiply_row

#: Images are computed together up to so many bytes with their border.
_IMAGES_BYTES = 1 << 20
#: Pieces of images, at least where one is not enough: few large ones would not be shared out evenly.
_PIECES = 8
_MOST_ELEMENTS = 2**31 - 1
#: A data gradient is computed as a convolution if that sees at most so many times the windows.
_MOST_MORE = 1.5


class _Convolution:
    """A convolution of images of known sizes.

    Args:
        compute: What `ready` gives.
        operation: The operation.
        w: The windows.
        x: Shape of the images.
        columns: Number of outputs.
        pack: Packs the weight.
        dtype: Of all arrays.
    """

    def __init__(
        self,
        compute: Routine,
        operation: Conv | ConvDown,
        w: Windows,
        x: tuple[int, ...],
        columns: int,
        pack: Callable[[Array], Array],
        dtype: str,
    ) -> None:
        own = x[-1] // operation.groups
        self._kept, self._pack = kept(operation), pack
        self._border = None if w.size == w.padded_size else w
        self._windows, batch = math.prod(w.out), x[0]
        size_bytes = math.prod(w.padded_size) * x[-1] * np.dtype(dtype).itemsize
        at_once = max(1, min(batch, _IMAGES_BYTES // max(1, size_bytes)))
        count = -(-batch // at_once)
        if count > 1:
            count = max(count, min(batch, _PIECES))
        self._cuts = even_cuts(batch, count)
        self._products = {
            count: Product(compute, _windows(w, count, x[-1], own), columns, operation.groups, dtype)
            for count in {cut.stop - cut.start for cut in self._cuts}
        }
        self._work_ns = product_ns(batch * self._windows, math.prod(w.kernel) * own, columns)
        self.size_bytes = sum(product.rows.offsets.nbytes for product in self._products.values())

    def __call__(self, x: Array, weight: Array, y: Array, ending: Ending) -> None:
        packed = self._kept.packed(weight, self._pack)
        if len(self._cuts) == 1:
            self._products[len(x)].spread(self._padded(x), packed, y, ending)
            return

        def part(cut: slice) -> None:
            images = self._padded(x[cut])
            self._products[len(images)].run(images, packed, y, ending, cut.start * self._windows)

        spread(self._cuts, part, self._work_ns)

    def direct(self, weight: Array) -> Direct | None:
        """See `Call`."""
        if len(self._cuts) > 1:
            return None
        ((_, product),) = self._products.items()
        found, padded = product.direct(self._kept.packed(weight, self._pack)), self._padded
        if self._border is None:
            return found
        return lambda x, y, given, address: found(padded(x), y, given, address)

    def _padded(self, x: Array) -> Array:
        w = self._border
        if w is None:
            return x
        padded = scratch("padded", (len(x), *w.padded_size, x.shape[-1]), x.dtype)
        put_in_border(x, padded, w)
        return padded


@shared
def _windows(w: Windows, count: int, channels: int, own: int) -> Rows:
    """The windows over some images with their border, of which each sees some of the channels."""
    steps = [channels]  # from one element of an axis to the next
    for n in reversed(w.padded_size):
        steps.insert(0, steps[0] * n)
    offsets = (np.arange(count) * steps[0]).astype(np.int32)
    for n, stride, step in zip(w.out, w.stride, steps[1:], strict=True):
        offsets = np.add.outer(offsets, (np.arange(n) * (stride * step)).astype(np.int32))
    runs = np.zeros(1, np.int64)
    for n, dilation, step in zip(w.kernel, w.dilation, steps[1:], strict=True):
        runs = np.add.outer(runs, np.arange(n) * (dilation * step)).reshape(-1)
    joined: list[tuple[int, int]] = []
    for begin in runs.tolist():
        if joined and sum(joined[-1]) == begin:
            joined[-1] = joined[-1][0], joined[-1][1] + own
        else:
            joined.append((begin, own))
    return Rows(offsets.reshape(-1), tuple(joined), own)


def convolve(operation: Conv, x: Array, weight: Array, y: Array, finish: Finish | None) -> bool:
    """Compute a convolution whose groups have several input channels; False if that is left to BLAS."""
    if not (x.size and weight.size and y.size):
        return False

    def make() -> Call | bool:
        w, groups = operation.windows(x.shape[1:-1], weight.shape[:-2]), operation.groups
        return _convolution(operation, w, x, y, lambda weight: pack(weight.reshape(-1, weight.shape[-1]), groups))

    return _called(operation, make, x, weight, y, finish)


def convolve_back(operation: ConvDown, g: Array, weight: Array, dx: Array, finish: Finish | None) -> bool:
    """Compute a data gradient as a convolution, whose weight is back to front; False if that is left to BLAS."""
    if not (g.size and weight.size and dx.size):
        return False

    def make() -> Call | bool:
        w, groups = operation.windows(dx.shape[1:-1], weight.shape[:-2]), operation.groups
        reach = [d * (k - 1) for d, k in zip(w.dilation, w.kernel, strict=True)]
        pad = tuple((far - before, far - after) for far, (before, after) in zip(reach, w.pad, strict=True))
        v = vectors(g.dtype.name)
        if v is None or 2 * weight.shape[-2] < v.lanes:  # vectors would be mostly empty
            return False
        is_far = any(min(pads) < 0 for pads in pad) or any(s > 1 for s in w.stride)
        if is_far or math.prod(w.size) > _MOST_MORE * math.prod(w.out):
            return _gathered(operation, w, g, weight) if groups == 1 else False
        taps = (math.prod(w.kernel), *weight.shape[-2:])
        turned = replace(w, size=w.out, pad=pad, out=w.size)
        return _convolution(operation, turned, g, dx, lambda weight: pack_turned(weight.reshape(taps), groups))

    # An infinite weight times the border's zeros would be NaN.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.add.reduce(weight, axis=None))) and _called(operation, make, g, weight, dx, finish)


def _gathered(operation: ConvDown, w: Windows, g: Array, weight: Array) -> Call | bool:
    compute, collect = [ready(make, g.dtype.name) for make in (multiply, gather)]
    if compute is None or collect is None or g.size > _MOST_ELEMENTS:
        return False
    return Gathered(compute, collect, operation, w, len(g), weight.shape[-2], weight.shape[-1], g.dtype.name)


def _convolution(
    operation: Conv | ConvDown, w: Windows, x: Array, y: Array, pack: Callable[[Array], Array]
) -> Call | bool:
    dtype, columns = x.dtype.name, y.shape[-1]
    v, size = vectors(dtype), len(x) * math.prod(w.padded_size) * x.shape[-1]
    if v is None or size > _MOST_ELEMENTS or _is_wasteful(operation.groups, columns, v.lanes):
        return False
    compute = ready(multiply, dtype)
    return False if compute is None else _Convolution(compute, operation, w, x.shape, columns, pack, dtype)


def _called(
    operation: Conv | ConvDown | Inner | InnerDown,
    make: Callable[[], Call | bool],
    x: Array,
    weight: Array,
    y: Array,
    finish: Finish | None,
) -> bool:
    """Compute by what has been made for arrays of these types; False if nothing can be."""
    call = kept(operation).made((x.shape, weight.shape, x.dtype), make)
    if isinstance(call, bool):
        return False
    LATEST.call = call
    call(x, weight, y, ending(finish))
    return True


def _is_wasteful(groups: int, columns: int, lanes: int) -> bool:
    """Return whether vectors would be mostly empty, where BLAS multiplies several groups at once."""
    return groups > 1 and 2 * (columns // groups) < lanes


class _Inner:
    """Products of some rows with a weight of so many columns, once it is packed."""

    def __init__(
        self,
        compute: Routine,
        operation: Inner | InnerDown,
        shape: tuple[int, int],
        columns: int,
        pack: Callable[[Array], Array],
        dtype: str,
    ) -> None:
        self._kept, self._pack = kept(operation), pack
        self._product = Product(compute, matrix_rows(*shape), columns, 1, dtype)
        self.size_bytes = self._product.rows.offsets.nbytes

    def __call__(self, x: Array, weight: Array, y: Array, ending: Ending) -> None:
        self._product.spread(x, self._kept.packed(weight, self._pack), y, ending)

    def direct(self, weight: Array) -> Direct | None:
        """See `Call`."""
        return self._product.direct(self._kept.packed(weight, self._pack))


@kernel(Inner, keeps=True)
def _inner(operation: Inner, inputs: list[Array], outputs: list[Array], finish: Finish | None = None) -> bool:
    return _multiply(operation, inputs, outputs[0], lambda weight: pack_turned(weight[None]), finish)


@kernel(InnerDown, keeps=True)
def _inner_down(operation: InnerDown, inputs: list[Array], outputs: list[Array], finish: Finish | None = None) -> bool:
    return inputs[0].size > inputs[0].shape[-1] and _multiply(operation, inputs, outputs[0], pack, finish)


def _multiply(
    operation: Inner | InnerDown,
    inputs: list[Array],
    y: Array,
    pack: Callable[[Array], Array],
    finish: Finish | None,
) -> bool:
    x, weight = inputs
    if not (x.size and y.size) or not are_plain([x, weight, y], x.dtype):
        return False

    def make() -> Call | bool:
        dtype, rows = x.dtype.name, x.size // x.shape[-1]
        compute = ready(multiply_row if rows == 1 else multiply, dtype) if x.size <= _MOST_ELEMENTS else None
        if compute is None:
            return False
        if rows == 1:
            return Row(compute, len(weight), x.size)
        return _Inner(compute, operation, (rows, x.shape[-1]), y.shape[-1], pack, dtype)

    return _called(operation, make, x, weight, y, finish)
