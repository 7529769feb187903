"""Gradients of maxima of windows, a vector of channels at a time.

Where windows overlap they go backwards, and each adds to what it sees in the order of the kernel: so what is added up
at an element comes in the order of NumPy's kernel, which goes through the kernel's offsets.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import Finish, spread
from actorflow.ops.cpu.pool import image_pieces, is_global, is_seen_once, take_last, work_ns
from actorflow.ops.cpu.windows import Piece, by_images, is_first
from actorflow.ops.nn.pool import MaxPoolDown
from actorflow.ops.nn.windows import MOST_AXES
from actorflow.ops.numba.assembly import (
    Text,
    Vectors,
    entry,
    first_lanes,
    leave,
    load_vector,
    routine,
    store_vector,
    vectors,
)
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.routine import Routine
from actorflow.ops.numba.taps import bounds, geometry

_ENTRY = "maxima_down"
#: Bytes of the images of a piece: there is but one pass, and few large pieces would not be shared out evenly.
_PIECE_BYTES = 256 << 10
#: What `geometry` has for each axis.
_SIZE, _OUT, _TAPS, _STEP, _APART, _START = range(6)


@cache
def _routine(dtype: str, adds: bool) -> Routine:
    """The routine for a piece, of a dtype that `vectors` has vectors for."""
    v = vectors(dtype)
    assert v is not None
    arrays = [(f"{dtype}*", name) for name in ("g", "x", "y", "dx")]
    arguments = [*arrays, ("int64*", "geometry"), ("int64*", "piece")]
    text = entry(_ENTRY, arguments)
    told = [[text.load("i64", "%geometry", of * MOST_AXES + axis) for axis in range(MOST_AXES)] for of in range(6)]
    channels = text.load("i64", "%geometry", 6 * MOST_AXES)
    cuts = [text.load("i64", "%piece", i) for i in range(2 * MOST_AXES + 2)]
    size, out = told[_SIZE], told[_OUT]

    def place(image: str, at: list[str], of: list[str]) -> str:
        """Where the channels of an element are."""
        found = image
        for each, n in zip(at, of, strict=True):
            found = text.add(text.times(found, n), each)
        return text.times(found, channels)

    def inside(axis: int, at: str) -> str:
        least, most = text.let(f"icmp sge i64 {at}, 0"), text.let(f"icmp slt i64 {at}, {size[axis]}")
        return text.let(f"and i1 {least}, {most}")

    def ordered(axis: int, number: str) -> str:
        if not adds:
            return number
        return text.let(f"sub i64 {text.add(cuts[2 * axis + 2], cuts[2 * axis + 3])}, {text.add(number, 1)}")

    def seen(axis: int, window: str, tap: str) -> str:
        first = text.add(text.times(window, told[_STEP][axis]), told[_START][axis])
        return text.add(first, text.times(tap, told[_APART][axis]))

    ranges = [(cuts[2 * axis + 2], cuts[2 * axis + 3]) for axis in range(MOST_AXES)]
    with ExitStack() as loops:
        image, *numbers = [loops.enter_context(text.loop(*each)) for each in ((cuts[0], cuts[1]), *ranges)]
        window = [ordered(axis, number) for axis, number in enumerate(numbers)]
        at_window = place(image, window, out)
        with text.loop(0, channels, v.lanes) as channel:
            mask = first_lanes(text, v, text.let(f"sub i64 {channels}, {channel}"))
            at = text.add(at_window, channel)
            g, y = [load_vector(text, v, text.at(v.element, f"%{of}", at), mask) for of in ("g", "y")]
            left = text.variable(v.mask, mask)
            with text.loop(0, told[_TAPS][0]) as d:
                z = seen(0, window[0], d)
                with text.when(inside(0, z)), text.loop(0, told[_TAPS][1]) as e:
                    line = seen(1, window[1], e)
                    with text.when(inside(1, line)), text.loop(0, told[_TAPS][2]) as f:
                        column = seen(2, window[2], f)
                        with text.when(inside(2, column)):
                            own = text.add(place(image, [z, line, column], size), channel)
                            _take(text, v, own, (g, y, mask), left, adds)
    return routine(_ENTRY, arguments, v, leave(text))


def _take(text: Text, v: Vectors, at: str, known: tuple[str, str, str], left: str, adds: bool) -> None:
    """Give the gradient to those channels of an element that have the maximum, and had not been given it."""
    g, y, mask = known
    before = text.load(v.mask, left)
    x, to = load_vector(text, v, text.at(v.element, "%x", at), mask), text.at(v.element, "%dx", at)
    hit = text.let(f"and {v.mask} {text.let(f'fcmp oeq {v.vector} {x}, {y}')}, {before}")
    text.store(v.mask, text.let(f"xor {v.mask} {before}, {hit}"), left)
    share = text.let(f"select {v.mask} {hit}, {v.vector} {g}, {v.vector} zeroinitializer")
    if adds:
        share = text.let(f"fadd {v.vector} {load_vector(text, v, to, mask)}, {share}")
    store_vector(text, v, share, to, mask)


@kernel(MaxPoolDown)
def _max_pool_down(
    operation: MaxPoolDown, inputs: list[Array], outputs: list[Array], finish: Finish | None = None
) -> bool:
    (g, x, y), (dx,) = inputs, outputs
    w = operation.windows(x.shape[1:-1])
    if is_global(w) or vectors(x.dtype.name) is None or not are_plain([g, x, y, dx], x.dtype):
        return False
    compute = _routine(x.dtype.name, not is_seen_once(w)).function
    if compute is None:
        return False
    each = geometry(w, x.shape[-1])
    is_tiled = w.stride == w.kernel and is_seen_once(w)  # dilated windows overlap, or leave elements out
    is_whole = is_tiled and w.size == w.padded_size == tuple(n * k for n, k in zip(w.out, w.kernel, strict=True))

    def part(run: list[Piece]) -> None:
        for piece in run:
            if is_first(piece) and not is_whole:
                dx[piece[0]].fill(0)
            cut = bounds(piece)
            compute(id(g), id(x), id(y), id(dx), id(each), id(cut))
            take_last(finish, piece, w)

    spread(by_images(image_pieces(w, x, _PIECE_BYTES), w), part, work_ns(w, y))
    return True
