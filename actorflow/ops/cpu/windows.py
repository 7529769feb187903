"""Pieces of images that fit in the cache, and one pass per kernel offset, for convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.devices.team import team
from actorflow.ops.cpu.parallel import MOST_PIECES, even_cuts
from actorflow.ops.nn.windows import Windows

#: Slices of (batch, *out): one index of each axis before the one that is cut, all of those after it.
Piece = tuple[slice, ...]


class Tap(NamedTuple):
    """Elements that one kernel offset sees."""

    offset: tuple[int, ...]  # index into the kernel
    window: tuple[slice, ...]  # index of the windows of a piece that see an element of their image, none of the border
    element: tuple[slice, ...]  # index of those elements in the piece's images


def pieces(sizes: Sequence[int], item_bytes: float, piece_bytes: int, image_bytes: int) -> Iterator[Piece]:
    """Cut the windows of a batch into pieces.

    Args:
        sizes: (batch, *out).
        item_bytes: Memory of a window.
        piece_bytes: Most memory of a piece: several whole images, or a part of one.
        image_bytes: Most memory of an image (or a plane, or a row of it) that stays in one piece.
    Yields:
        The pieces in the order of memory.
    """
    if 0 in sizes:
        return
    axis, each_bytes = 0, math.prod(sizes[1:]) * item_bytes
    while each_bytes > image_bytes and axis < len(sizes) - 1:
        axis += 1
        each_bytes /= sizes[axis]
    count = sizes[axis]
    if axis == 0:
        step = max(1, int(piece_bytes / max(1, each_bytes)))
        cuts = [slice(first, min(first + step, count)) for first in range(0, count, step)]
    else:
        bands = max(1, min(count, math.ceil(count * each_bytes / piece_bytes)))
        cuts = [slice(count * band // bands, count * (band + 1) // bands) for band in range(bands)]
    after = tuple(slice(0, n) for n in sizes[axis + 1 :])
    for before in np.ndindex(*sizes[:axis]):
        for cut in cuts:
            yield (*(slice(i, i + 1) for i in before), cut, *after)


def put_in_border(images: npt.NDArray[Any], padded: npt.NDArray[Any], w: Windows) -> None:
    """Put images into larger ones, whose border becomes zeros."""
    inside: tuple[slice, ...] = (slice(None),)
    for n, (before, after) in zip(w.size, w.pad, strict=True):
        if before:
            padded[(*inside, slice(0, before))] = 0
        if after:
            padded[(*inside, slice(before + n, None))] = 0
        inside = (*inside, slice(before, before + n))
    padded[inside] = images


def is_first(piece: Piece) -> bool:
    """Return whether no piece of the same images came before."""
    return all(cut.start == 0 for cut in piece[1:])


def is_last(piece: Piece, w: Windows) -> bool:
    """Return whether no piece of the same images follows."""
    return all(cut.stop == n for cut, n in zip(piece[1:], w.out, strict=True))


def by_images(found: Iterable[Piece], w: Windows) -> list[list[Piece]]:
    """The pieces that are of the same images together: sums across windows meet within them alone."""
    runs: list[list[Piece]] = [[]]
    for piece in found:
        runs[-1].append(piece)
        if is_last(piece, w):
            runs.append([])
    return runs[:-1]


def taps(w: Windows, piece: Piece) -> tuple[Tap, ...]:
    """For each kernel offset, in order, a piece's elements that windows see; none for offsets that see only border."""
    return _taps(w, tuple([(cut.start, cut.stop) for cut in piece[1:]]))


@lru_cache(maxsize=4096)
def _taps(w: Windows, cuts: tuple[tuple[int, int], ...]) -> tuple[Tap, ...]:
    spans = []
    axes = zip(w.kernel, w.dilation, w.stride, w.pad, w.size, cuts, strict=True)
    for k, dilation, stride, (before, _), size, cut in axes:
        starts = range(cut[0] * stride - before, cut[1] * stride - before, stride)
        offsets = range(k) if k <= size + len(starts) else _seeing(k, dilation, starts, size)
        found = [(offset, *_span(offset * dilation - before, stride, size, *cut)) for offset in offsets]
        spans.append([each for each in found if each[1].start < each[1].stop])
    whole = slice(None)
    return tuple(
        [
            Tap(tuple([i for i, _, _ in along]), (whole, *(s for _, s, _ in along)), (whole, *(e for _, _, e in along)))
            for along in product(*spans)
        ]
    )


def _seeing(k: int, dilation: int, starts: range, size: int) -> Sequence[int]:
    """Offsets along an axis at which one of the windows that start there sees an element, in order.

    They are found from the windows, as a kernel may be far larger than all that these see.
    """
    parts = [range(max(0, -(start // dilation)), min(k, (size - 1 - start) // dilation + 1)) for start in starts]
    return sorted(set().union(*parts))


def _span(shift: int, stride: int, size: int, begin: int, end: int) -> tuple[slice, slice]:
    """Windows from ``begin`` to ``end`` that see an element, and the elements that they see."""
    first = max(begin, -(shift // stride))
    stop = max(first, min(end, (size - 1 - shift) // stride + 1))
    start = first * stride + shift
    return slice(first - begin, stop - begin), slice(start, start + (stop - first) * stride, stride)


def as_matrix(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(..., channels) as a matrix, a view where the array is contiguous."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


@lru_cache(maxsize=256)
def geometry(w: Windows) -> npt.NDArray[Any]:
    """Windows of three axes, as compiled loops take them."""
    before = tuple(first for first, _ in w.pad)
    rows = ((w.size, 1), (w.out, 1), (w.kernel, 1), (w.stride, 1), (before, 0), (w.dilation, 1))
    return np.array([(*[usual] * (3 - len(row)), *row) for row, usual in rows], np.int64).reshape(-1)


def loop_by_images(compute: Callable[..., None], work_ns: float, *arrays: npt.NDArray[Any]) -> None:
    """Call a compiled loop for some of the images each: arrays of (images, elements, channels)."""
    flat = [array.reshape(len(array), math.prod(array.shape[1:-1]), array.shape[-1]) for array in arrays]
    cuts = even_cuts(len(flat[0]), MOST_PIECES)
    team.spread(cuts, lambda cut: compute(*[array[cut] for array in flat]), work_ns)
