"""Pooling: maxima and averages of windows, and their gradients, in the order of additions of NumPy's kernels."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.parallel import Finish, spread
from actorflow.ops.cpu.pool import image_pieces, inverse_counts, is_global, take_last, work_ns
from actorflow.ops.cpu.windows import Piece, by_images, is_first
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, MaxPool
from actorflow.ops.numba import depthwise
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.routine import Routine
from actorflow.ops.numba.taps import MOST_TAPS, Fold, bounds, forwards, geometry, slide, unpacked

#: Taps of a window for each element of an image, at most: all taps are visited, those in the border, too.
_MOST_VISITED = 16

_PLACE = np.dtype(np.int64)
# As `np.maximum`: a NaN stays.
_MAXIMA = Fold(
    "maxima", "-np.inf", "{t} if ({t} > {v}) | ({t} != {t}) else {v}", "{t}", weighted=False, border=-math.inf
)
_AVERAGES = Fold("averages", "0", "{t} + {v}", "{t} * {f}", weighted=False, border=0.0)

#: What is done once for each window of a piece, and at each element that it sees, per channel. Windows go backwards: so
#: what is added up at an element comes in the order of the kernel, as if there were one pass for each of its offsets.
_WINDOWS = """
def {name}({arrays}, geometry, piece):
    {unpacked}
    for n in range(piece[0], piece[1]):
        for z in range(piece[3] - 1, piece[2] - 1, -1):
            for y in range(piece[5] - 1, piece[4] - 1, -1):
                for x in range(piece[7] - 1, piece[6] - 1, -1):
                    window = (z * count_y + y) * count_x + x
                    o = (n * count_z * count_y * count_x + window) * channels
                    for c in range(channels):
                        {once}
                    for tap_z in range(taps_z):
                        at_z = start_z + z * step_z + tap_z * apart_z
                        if at_z < 0 or at_z >= depth:
                            continue
                        for tap_y in range(taps_y):
                            at_y = start_y + y * step_y + tap_y * apart_y
                            if at_y < 0 or at_y >= height:
                                continue
                            for tap_x in range(taps_x):
                                at_x = start_x + x * step_x + tap_x * apart_x
                                if at_x < 0 or at_x >= width:
                                    continue
                                place = (at_z * height + at_y) * width + at_x
                                e = (n * depth * height * width + place) * channels
                                for c in range(channels):
                                    {each}
"""


class _Visit(NamedTuple):
    """What `_WINDOWS` does: lines of Python."""

    name: str
    arrays: tuple[str, ...]
    once: tuple[str, ...]
    each: tuple[str, ...]


_PLACES = _Visit(
    "places",
    ("images", "maxima", "found"),
    ("found[o + c] = -1",),
    (
        "v = images[e + c]",
        "is_first = ((v == maxima[o + c]) | (v != v)) & (found[o + c] < 0)",
        "found[o + c] = place if is_first else found[o + c]",
    ),
)
_SHARES = _Visit(
    "shares",
    ("grads", "inverse", "share", "results"),
    ("share[c] = grads[o + c] * inverse[window]",),
    ("results[e + c] = results[e + c] + share[c]",),
)


@lru_cache(maxsize=64)
def _routine(visit: _Visit, dtype: str) -> Routine:
    once, each = "\n".ljust(25).join(visit.once), "\n".ljust(37).join(visit.each)
    lines = "\n".ljust(5).join(unpacked("geometry"))
    text = _WINDOWS.format(
        unpacked=lines, name=visit.name, arrays=", ".join(visit.arrays), dtype=dtype, once=once, each=each
    )
    types = ["int64*" if name == "found" else f"{dtype}*" for name in visit.arrays]
    return Routine(text, visit.name, (*types, "int64*", "int64*"))


@kernel(MaxPool)
def _max_pool(operation: MaxPool, inputs: list[Array], outputs: list[Array]) -> bool:
    (x,), (y, *found) = inputs, outputs
    if not are_plain([x, y], x.dtype):
        return False
    is_done = depthwise.maxima(operation, x, y)
    if is_done and not found:
        return True
    w = operation.windows(x.shape[1:-1])
    if is_global(w) or math.prod(w.kernel) > MOST_TAPS:
        return False
    places = _routine(_PLACES, x.dtype.name).function if found else None
    if not (is_done or slide(_MAXIMA, forwards(w), x, y, y)):
        return False
    if found and (places is None or not are_plain(found, _PLACE)):
        return False
    if places is not None and x.size:
        each = geometry(w, x.shape[-1])

        def part(piece: Piece) -> None:
            cut = bounds(piece)
            places(id(x), id(y), id(found[0]), id(each), id(cut))

        spread(list(image_pieces(w, x)), part, work_ns(w, y))
    return True


@kernel(AveragePool)
def _average_pool(operation: AveragePool, inputs: list[Array], outputs: list[Array]) -> bool:
    (x,), (y,) = inputs, outputs
    w = operation.windows(x.shape[1:-1])
    if math.prod(w.kernel) > MOST_TAPS or not are_plain([x, y], x.dtype):
        return False
    return slide(_AVERAGES, forwards(w), x, inverse_counts(w, operation.count_pad, x.dtype), y)


@kernel(AveragePoolDown)
def _average_pool_down(
    operation: AveragePoolDown, inputs: list[Array], outputs: list[Array], finish: Finish | None = None
) -> bool:
    (g,), (dx,) = inputs, outputs
    w = operation.windows(dx.shape[1:-1])
    compute = _routine(_SHARES, g.dtype.name).function
    if (
        math.prod(w.kernel) > _MOST_VISITED * max(1, math.prod(w.size))
        or compute is None
        or not are_plain([g, dx], g.dtype)
    ):
        return False
    inverse, each = inverse_counts(w, operation.count_pad, g.dtype), geometry(w, g.shape[-1])

    def part(run: list[Piece]) -> None:
        for piece in run:
            if is_first(piece):
                dx[piece[0]].fill(0)
            share, cut = scratch("share", g.shape[-1:], g.dtype), bounds(piece)
            compute(id(g), id(inverse), id(share), id(dx), id(each), id(cut))
            take_last(finish, piece, w)

    spread(by_images(image_pieces(w, dx), w), part, work_ns(w, g))
    return True
