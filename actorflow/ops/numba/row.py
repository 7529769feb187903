"""The product of a single row with the transpose of a matrix, which is read as it is, at the speed of memory.

Several rows of the matrix are multiplied at once, each sum is one of several lanes and registers: errors are small.
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
    fused_multiply_add,
    leave,
    load_vector,
    routine,
    vectors,
)
from actorflow.ops.numba.crew import may_share, spread
from actorflow.ops.numba.fused import Direct, Ending
from actorflow.ops.numba.routine import Routine

#: Products in a piece that a thread computes, at least: reading as many elements takes some 50 us.
_PIECE_PRODUCTS = 256 << 10
#: Rows of the matrix at once, and sums of each.
_ROWS, _SUMS = 4, 2
_ENTRY = "row"


@lru_cache(maxsize=4)
def multiply_row(dtype: str) -> Routine:
    """The routine, for some columns of the result, of a dtype that `vectors` has vectors for.

    If something follows, they have to be all columns.
    """
    v = vectors(dtype)
    assert v is not None
    arrays = [(f"{dtype}*", name) for name in ("x", "weight", "y")]
    arguments = [*arrays, *[("intp", name) for name in ("depth", "begin", "end", "given", "following")]]
    text = entry(_ENTRY, arguments)
    whole = text.let(f"and i64 %depth, {-v.lanes * _SUMS}")
    length = text.let("sub i64 %end, %begin")
    middle = text.add("%begin", text.let(f"and i64 {length}, {-_ROWS}"))
    for begin, end, count in (("%begin", middle, _ROWS), (middle, "%end", 1)):
        with text.loop(begin, end, count) as n:
            _columns(text, v, n, whole, count)
    with text.when(text.let("icmp ne i64 %following, 0")):
        address, function = text.let("ptrtoint ptr %y to i64"), text.let("inttoptr i64 %following to ptr")
        columns = "%end"
        numbers = ", ".join(f"i64 {each}" for each in ("%given", address, columns, 0, 1, 0, columns, columns))
        text.do(f"call i32 {function}(ptr null, ptr null, {numbers})")
    return routine(_ENTRY, arguments, v, leave(text))


def _columns(text: Text, v: Vectors, first: str, whole: str, count: int) -> None:
    """Some columns of the result."""
    rows = [text.at(v.element, "%weight", text.times(text.add(first, n), "%depth")) for n in range(count)]
    sums = [[text.variable(v.vector, "zeroinitializer") for _ in range(_SUMS)] for _ in rows]

    def add(k: str, i: int, mask: str | None) -> None:
        factor = load_vector(text, v, text.at(v.element, "%x", k), mask)
        for row, own in zip(rows, sums, strict=True):
            if mask is None:  # the next rows: they lie on other pages, which the processor does not fetch by itself
                ahead = text.at(v.element, row, text.add(text.times("%depth", count), k))
                text.do(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 3, i32 1)")
            value = load_vector(text, v, text.at(v.element, row, k), mask)
            text.store(v.vector, fused_multiply_add(text, v, value, factor, text.load(v.vector, own[i])), own[i])

    with text.loop(0, whole, v.lanes * _SUMS) as k:
        for i in range(_SUMS):
            add(text.add(k, i * v.lanes) if i else k, i, None)
    with text.loop(whole, "%depth", v.lanes) as k:
        add(k, 0, first_lanes(text, v, text.let(f"sub i64 %depth, {k}")))
    for n, own in enumerate(sums):
        total = text.load(v.vector, own[0])
        for each in own[1:]:
            total = text.let(f"fadd {v.vector} {total}, {text.load(v.vector, each)}")
        lanes = v.lanes
        while lanes > 1:
            lanes //= 2
            order = ", ".join(f"i32 {(i + lanes) % v.lanes}" for i in range(v.lanes))
            turned = text.let(f"shufflevector {v.vector} {total}, {v.vector} poison, <{v.lanes} x i32> <{order}>")
            total = text.let(f"fadd {v.vector} {total}, {turned}")
        place = text.at(v.element, "%y", text.add(first, n))
        text.store(v.element, text.let(f"extractelement {v.vector} {total}, i64 0"), place, v.size)


class Row:
    """The product of a single row, and what follows it.

    Args:
        compute: The routine.
        columns, depth: Shape of the weight.
    """

    size_bytes = 0

    def __init__(self, compute: Routine, columns: int, depth: int) -> None:
        self._routine, self._function, self._depth = compute, compute.wait(), depth
        cuts = even_cuts(columns, min(MOST_PIECES, columns * depth // _PIECE_PRODUCTS), _ROWS)
        self._pieces = np.array([(cut.start, cut.stop, 0, 0) for cut in cuts], np.int64)
        self._work_ns = element_ns(columns * depth)  # it takes as long as reading the weight

    def __call__(self, x: Array, weight: Array, y: Array, ending: Ending) -> None:
        self._compute(x, weight, y, id(x), 0)
        ending.take(0, 1)

    def direct(self, weight: Array) -> Direct:
        """See `Call`."""
        return lambda x, y, given, address: self._compute(x, weight, y, given, address)

    def _compute(self, x: Array, weight: Array, y: Array, given: int, address: int) -> None:
        arrays, first = (id(x), id(weight), id(y), self._depth), 0
        if len(self._pieces) > 1 and may_share(self._routine, len(self._pieces), self._work_ns):
            spread(self._routine, arrays, self._pieces, self._work_ns)
            first = len(weight)  # what follows takes all columns, when they are there
        self._function(*arrays, first, len(weight), given, address)
