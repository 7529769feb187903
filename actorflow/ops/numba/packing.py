"""Panels of a weight whose inputs and outputs change places, as gradients want them, by a compiled loop.

NumPy takes many times as long: either what it reads or what it writes lies apart.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import MOST_PIECES, element_ns, even_cuts
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
from actorflow.ops.numba.crew import spread
from actorflow.ops.numba.product import pack, panels_of, room_for
from actorflow.ops.numba.routine import Routine

_ENTRY = "pack_turned"
_OF_PANEL = 5
#: Elements of a piece that a thread turns, at least: some 20 us.
_PIECE_ELEMENTS = 1 << 16


@lru_cache(maxsize=4)
def _routine(dtype: str) -> Routine:
    """The routine: squares of as many rows and columns as a vector has lanes, turned in registers."""
    v = vectors(dtype)
    assert v is not None
    arrays = [(f"{dtype}*", "weight"), (f"{dtype}*", "packed"), ("int64*", "panels")]
    arguments = [*arrays, *[("intp", name) for name in ("taps", "inputs", "outputs", "own", "begin", "end")]]
    text = entry(_ENTRY, arguments)
    with text.loop("%begin", "%end") as number, text.loop(0, "%taps") as tap:
        panel = text.at("i64", "%panels", text.times(number, _OF_PANEL))
        first, columns, length, to, group = [text.load("i64", panel, i) for i in range(_OF_PANEL)]
        back = text.let(f"sub i64 {text.let('sub i64 %taps, 1')}, {tap}")
        of_group = text.let(f"sub i64 {first}, {text.times(group, '%inputs')}")
        begin = text.times(text.add(text.times(back, "%inputs"), of_group), "%outputs")
        source = text.at(v.element, "%weight", text.add(begin, text.times(group, "%own")))
        target = text.at(v.element, "%packed", text.add(to, text.times(text.times(tap, "%own"), length)))
        with text.loop(0, "%own", v.lanes) as row, text.loop(0, length, v.lanes) as column:
            left = text.let(f"sub i64 %own, {row}")
            lanes, none = first_lanes(text, v, left), "zeroinitializer"
            square = []
            for i in range(v.lanes):
                at = text.add(column, i)
                mask = text.let(
                    f"select i1 {text.let(f'icmp slt i64 {at}, {columns}')}, {v.mask} {lanes}, {v.mask} {none}"
                )
                place = text.add(text.times(at, "%outputs"), row)
                square.append(load_vector(text, v, text.at(v.element, source, place), mask))
            for r, found in enumerate(_turned(text, v, square)):
                with text.when(text.let(f"icmp slt i64 {r}, {left}")):
                    place = text.add(text.times(text.add(row, r), length), column)
                    store_vector(text, v, found, text.at(v.element, target, place))
    return routine(_ENTRY, arguments, v, leave(text))


def _turned(text: Text, v: Vectors, rows: list[str]) -> list[str]:
    """The columns of a square of vectors: halves are exchanged, then halves of these, and so on."""
    step = 1
    while step < v.lanes:
        found = []
        for i in range(v.lanes):
            low, high = rows[i & ~step], rows[i | step]
            lanes = [j & ~step | i & step | (v.lanes if j & step else 0) for j in range(v.lanes)]
            chosen = ", ".join(f"i32 {lane}" for lane in lanes)
            found.append(text.let(f"shufflevector {v.vector} {low}, {v.vector} {high}, <{v.lanes} x i32> <{chosen}>"))
        rows, step = found, 2 * step
    return rows


@lru_cache(maxsize=1024)
def _table(depth: int, columns: int, groups: int, v: Vectors) -> Array:
    return np.array([each._replace(width=each.width * v.lanes) for each in panels_of(depth, columns, groups, v)])


def pack_turned(weight: Array, groups: int = 1) -> Array:
    """The panels of the weight that takes gradients of outputs to those of inputs.

    Args:
        weight: (taps, inputs of a group, outputs), in C order.
        groups: Number of groups.
    Returns:
        As `pack` of (tap and output of a group, input): the taps are back to front.
    """
    taps, inputs, outputs = weight.shape
    own = outputs // groups
    function = _routine(weight.dtype.name).function
    if function is None:
        flipped = weight[::-1].reshape(taps, inputs, groups, own)
        return pack(flipped.transpose(0, 3, 2, 1).reshape(taps * own, groups * inputs), groups)
    v = vectors(weight.dtype.name)
    assert v is not None
    panels = _table(taps * own, groups * inputs, groups, v)
    packed = room_for(panels[:, 2].sum() * taps * own, weight.dtype)
    given = (id(weight), id(packed), id(panels), taps, inputs, outputs, own)
    pieces = _pieces(len(panels), min(MOST_PIECES, weight.size // _PIECE_ELEMENTS))
    if len(pieces) == 1:
        function(*given, 0, len(panels))
    else:
        spread(_routine(weight.dtype.name), given, pieces, element_ns(2 * weight.size))
    return packed


@lru_cache(maxsize=1024)
def _pieces(panels: int, pieces: int) -> Array:
    return np.array([(cut.start, cut.stop) for cut in even_cuts(panels, pieces)], np.int64)
