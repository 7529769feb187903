"""Products of matrices with a weight, and convolutions, which are such products without copies of what windows see.

The weight is packed once, into panels of a few vectors' width. For a tile, some rows and one panel, all sums stay in
registers while the loop goes along what is added up: each step loads a row of the panel, and multiplies it with one
element of each row of the tile. Where a row's elements lie, in the images, is said by an offset per row, and by runs,
elements side by side that all rows have at the same distance from their offset: a product's rows are one run, those
of a convolution one for each row of the kernel. What follows the product is computed tile by tile while it is in the
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec
from weakref import WeakValueDictionary

import numpy as np

from actorflow.errors import DeviceError
from actorflow.ops.cpu import parallel
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import MOST_PIECES, Finish, element_ns, even_cuts, product_ns
from actorflow.ops.numba.assembly import (
    Text,
    Vectors,
    all_or_first_lanes,
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
from actorflow.ops.numba.crew import may_share, spread
from actorflow.ops.numba.fused import Direct, Ending
from actorflow.ops.numba.routine import Routine

_P = ParamSpec("_P")

#: Rows of a tile at most, by its vectors, for as many registers: as many sums as there is room for beside the panel's
#: row and one element.
TILE_ROWS = {32: {1: 12, 2: 12, 3: 8, 4: 6}, 16: {1: 8, 2: 6, 3: 4}}
#: Elements that are added up one after the other before that is added to the result: a panel's part stays in the cache,
#: and errors grow with the number of such sums instead of that of elements.
_DEPTH = 256
#: Tiles of so many vectors fetch a line of the next panel in each step, which else would come while it is waited for.
_FETCHING = 3
#: Sums of a single row's elements, each of every so many elements: a power of 2.
_SETS = 4
#: Bytes of the rows that all panels are multiplied with before the next ones are.
_ROWS_BYTES = 192 << 10
#: Rows of a piece that a thread computes, at least, and products, which take some 20 us.
_PIECE_ROWS, _PIECE_PRODUCTS = 48, 2 << 20
#: Where the tables begin in what a call is told, and entries of each panel, block and run.
_TABLES, _OF_PANEL, _OF_BLOCK = 7, 5, 4


class _Panel(NamedTuple):
    """Some columns of a weight.

    Attributes:
        first: Its first column in the result.
        columns: Number of its columns.
        width: Its vectors.
        at: Where it begins among all.
        group: Its group.
    """

    first: int
    columns: int
    width: int
    at: int
    group: int


@lru_cache(maxsize=4096)
def panels_of(depth: int, columns: int, groups: int, v: Vectors) -> tuple[_Panel, ...]:
    """Panels of nearly the same width, as wide as there are registers for."""
    vectors_, most, own = -(-columns // groups // v.lanes), max(TILE_ROWS[v.registers]), columns // groups
    cuts = even_cuts(vectors_, -(-vectors_ // most))
    found, at = [], 0
    for group in range(groups):
        for cut in cuts:
            first, width = cut.start * v.lanes, cut.stop - cut.start
            found.append(_Panel(group * own + first, min(own - first, width * v.lanes), width, at, group))
            at += depth * width * v.lanes
    return tuple(found)


def pack(weight: Array, groups: int = 1) -> Array:
    """The panels of a matrix (depth, columns), which need not lie flat in memory, one after the other.

    Each is (depth, its width); missing columns are zeros.
    """
    v = vectors(weight.dtype.name)
    assert v is not None
    depth, columns = weight.shape
    panels = panels_of(depth, columns, groups, v)
    packed = room_for(depth * sum(panel.width for panel in panels) * v.lanes, weight.dtype)

    def copy(panel: _Panel) -> None:
        length = panel.width * v.lanes
        to = packed[panel.at : panel.at + depth * length].reshape(depth, length)
        to[:, : panel.columns] = weight[:, panel.first : panel.first + panel.columns]
        to[:, panel.columns :] = 0

    parallel.spread(panels, copy, element_ns(2 * weight.size))
    return packed


def room_for(elements: int, dtype: np.dtype[Any]) -> Array:
    """Memory for panels, which begins where a line of the cache does."""
    room = np.empty(elements + 64 // dtype.itemsize, dtype)
    begin = -room.ctypes.data % 64 // dtype.itemsize
    return room[begin : begin + elements]


def _tile(rows: int, width: int, v: Vectors) -> str:
    """The function of one tile: ``to = (y or 0) + x @ panel`` for some runs."""
    arguments = [("ptr", name) for name in ("x", "offsets", "panel", "ahead", "y", "to", "runs")]
    numbers = [("i64", name) for name in ("columns", "apart", "count", "valid", "begun", "written")]
    text = Text(_name(rows, width), [*arguments, *numbers], is_inner=True)
    places = [(r, n) for r in range(rows) for n in range(width)]
    offsets = [text.let(f"sext i32 {text.load('i32', '%offsets', r)} to i64") for r in range(rows)]
    row = [text.at(v.element, "%x", offset) for offset in offsets]
    # The sums of one row alone are too few to keep the processor busy, and errors of long ones add up.
    sets = _SETS if rows == 1 else 1
    sums = [{place: text.variable(v.vector, "zeroinitializer") for place in places} for _ in range(sets)]
    panel, ahead = text.variable("ptr", "%panel"), text.variable("ptr", "%ahead")

    def step(k: str, count: int) -> None:
        here = text.load("ptr", panel)
        for i, own in enumerate(sums[:count]):
            factors = [text.load(v.vector, here, i * width + n, alignment=v.lanes * v.size) for n in range(width)]
            for r in range(rows):
                element = to_all_lanes(text, v, text.load(v.element, text.at(v.element, row[r], k), i))
                for n in range(width):
                    total = text.load(v.vector, own[r, n])
                    text.store(v.vector, fused_multiply_add(text, v, element, factors[n], total), own[r, n])
        text.store("ptr", text.at(v.vector, here, count * width), panel)
        if width >= _FETCHING:
            line = text.load("ptr", ahead)
            text.do(f"call void @llvm.prefetch.p0(ptr {line}, i32 0, i32 2, i32 1)")
            text.store("ptr", text.at("i8", line, 64), ahead)

    with text.loop(0, "%count") as number:
        run = text.at("{ i64, i64 }", "%runs", number)
        begin, length = text.load("i64", run), text.load("i64", run, 1)
        middle = text.add(begin, text.let(f"and i64 {length}, {-sets}"))
        with text.loop(begin, middle, sets) as k:
            step(k, sets)
        if sets > 1:
            with text.loop(middle, text.add(begin, length)) as k:
                step(k, 1)

    def add(a: str, b: str) -> str:
        return text.let(f"fadd {v.vector} {a}, {b}")

    found = {}
    for place in places:
        parts = [text.load(v.vector, own[place]) for own in sums]
        while len(parts) > 1:
            parts = [add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        found[place] = text.variable(v.vector, parts[0])

    def result(of: str, apart: str, r: int, n: int) -> str:
        return text.at(v.element, text.at(v.element, of, text.times(apart, r)), n * v.lanes)

    others = (width - 1) * v.lanes
    with text.when(text.let("icmp ne i64 %begun, 0")):
        mask = first_lanes(text, v, text.let(f"sub i64 %valid, {others}"))
        for (r, n), total in found.items():
            before = load_vector(text, v, result("%y", "%columns", r, n), mask if n == width - 1 else None)
            text.store(v.vector, add(before, text.load(v.vector, total)), total)
    for last in all_or_first_lanes(text, v, text.let(f"sub i64 %written, {others}")):
        for (r, n), total in found.items():
            to = result("%to", "%apart", r, n)
            store_vector(text, v, text.load(v.vector, total), to, last if n == width - 1 else None)
    text.do("ret void")
    return str(text)


def _name(rows: int, width: int) -> str:
    return f"tile_{rows}_{width}"


@cache
def multiply(dtype: str) -> Routine:
    """The routine for some rows and panels, of a dtype that `vectors` has vectors for."""
    v = vectors(dtype)
    assert v is not None
    definitions, across = tiles_of(v, _tile, _name)
    return routine(_ENTRY, _arguments(dtype), v, *definitions, _all(v, across, dtype))


def tiles_of(
    v: Vectors, tile: Callable[[int, int, Vectors], str], name: Callable[[int, int], str]
) -> tuple[list[str], int]:
    """The functions of all tiles, by rows and vectors across, with the tables that say where they are.

    Returns:
        The definitions, and the number of functions in a row of the table.
    """
    most = TILE_ROWS[v.registers]
    across = max(most.values()) + 1
    names = [
        f"ptr @{name(rows, width)}" if 0 < rows <= most.get(width, 0) else "ptr null"
        for width in range(max(most) + 1)
        for rows in range(across)
    ]
    table = f"@tiles = internal constant [{len(names)} x ptr] [{', '.join(names)}]"
    limits = ", ".join(f"i64 {most.get(width, 1)}" for width in range(max(most) + 1))
    table += f"\n@most = internal constant [{max(most) + 1} x i64] [{limits}]"
    return [table, *[tile(rows, width, v) for width in most for rows in range(1, most[width] + 1)]], across


_ENTRY = "product"


def _arguments(dtype: str) -> list[tuple[str, str]]:
    arrays = [
        (f"{dtype}*", "x"),
        ("int32*", "offsets"),
        (f"{dtype}*", "panels"),
        (f"{dtype}*", "y"),
        ("int64*", "told"),
    ]
    return [*arrays, *[("intp", name) for name in ("given", "following", "shift", "begin", "end", "first", "last")]]


def _all(v: Vectors, across: int, dtype: str) -> str:
    """The routine's entry: goes through rows, blocks of what is added up, panels and tiles."""
    text = entry(_ENTRY, _arguments(dtype))
    rows_at_once, columns, between, blocks, panels_at, blocks_at, runs_at = [
        text.load("i64", "%told", i) for i in range(_TABLES)
    ]
    panels, blocks_, runs = [text.at("i64", "%told", at) for at in (panels_at, blocks_at, runs_at)]
    follows = text.let("icmp ne i64 %following, 0")
    last_block = text.add(blocks, -1)
    # A tile that something follows is kept apart: memory of the result may begin anywhere, which makes it slower.
    room = text.room(v.vector, max(rows * width for width, rows in TILE_ROWS[v.registers].items()), 64)
    address = text.let(f"ptrtoint ptr {room} to i64")
    what = text.let("inttoptr i64 %following to ptr")
    with text.loop("%begin", "%end", rows_at_once) as start:
        stop = text.add(start, rows_at_once)
        is_less = text.let(f"icmp slt i64 {stop}, %end")
        rows = text.let(f"sub i64 {text.let(f'select i1 {is_less}, i64 {stop}, i64 %end')}, {start}")
        with text.loop(0, blocks) as number, text.loop("%first", "%last") as each:
            block = text.at("i64", blocks_, text.times(number, _OF_BLOCK))
            first_run, count, depth, steps = [text.load("i64", block, i) for i in range(_OF_BLOCK)]
            panel = text.at("i64", panels, text.times(each, _OF_PANEL))
            column, valid, width, at, group = [text.load("i64", panel, i) for i in range(_OF_PANEL)]
            lanes = text.times(width, v.lanes)
            weights = text.at(v.element, "%panels", text.add(at, text.times(depth, lanes)))
            source = text.at(v.element, "%x", text.times(group, between))
            has_next = text.let(f"icmp slt i64 {text.add(each, 1)}, %last")
            following = text.let(f"select i1 {has_next}, i64 {text.add(each, 1)}, i64 %first")
            has_block = text.let(f"icmp slt i64 {number}, {last_block}")
            later = text.let(f"select i1 {has_block}, i64 {text.add(number, 1)}, i64 {number}")
            next_block = text.let(f"select i1 {has_next}, i64 {number}, i64 {later}")
            next_depth = text.load("i64", text.at("i64", blocks_, text.times(next_block, _OF_BLOCK)), 2)
            next_panel = text.at("i64", panels, text.times(following, _OF_PANEL))
            next_width, next_at = text.load("i64", next_panel, 2), text.load("i64", next_panel, 3)
            from_there = text.times(text.times(next_depth, next_width), v.lanes)
            next_weights = text.at(v.element, "%panels", text.add(next_at, from_there))
            most = text.load("i64", "@most", width)
            tiles = text.let(f"udiv i64 {text.add(rows, text.add(most, -1))}, {most}")
            least, more = text.let(f"udiv i64 {rows}, {tiles}"), text.let(f"urem i64 {rows}, {tiles}")
            at_row = text.variable("i64", start)
            begun = text.let(f"zext i1 {text.let(f'icmp ne i64 {number}, 0')} to i64")
            is_last = text.let(f"and i1 {follows}, {text.let(f'icmp eq i64 {number}, {last_block}')}")
            with text.loop(0, tiles) as tile:
                has_more = text.let(f"zext i1 {text.let(f'icmp slt i64 {tile}, {more}')} to i64")
                height, row = text.add(least, has_more), text.load("i64", at_row)
                function = text.load("ptr", "@tiles", text.add(text.times(width, across), height))
                offsets = text.at("i32", "%offsets", row)
                place = text.add(row, "%shift")
                result = text.at(v.element, "%y", text.add(text.times(place, columns), column))
                own = text.at("{ i64, i64 }", runs, first_run)
                to = text.let(f"select i1 {is_last}, ptr {room}, ptr {result}")
                apart = text.let(f"select i1 {is_last}, i64 {lanes}, i64 {columns}")
                written = text.let(f"select i1 {is_last}, i64 {lanes}, i64 {valid}")
                is_needed = text.let(f"icmp slt i64 {tile}, {next_width}")
                share = text.at("i8", next_weights, text.times(text.times(tile, steps), 64))
                ahead = text.let(f"select i1 {is_needed}, ptr {share}, ptr {weights}")
                pointers = ", ".join(f"ptr {each}" for each in (source, offsets, weights, ahead, result, to, own))
                numbers = ", ".join(f"i64 {each}" for each in (columns, apart, count, valid, begun, written))
                text.do(f"call void {function}({pointers}, {numbers})")
                with text.when(is_last):
                    told = ("%given", address, lanes, place, height, column, valid, columns)
                    numbers = ", ".join(f"i64 {each}" for each in told)
                    text.do(f"call i32 {what}(ptr null, ptr null, {numbers})")
                text.store("i64", text.add(row, height), at_row)
    return leave(text)


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the rows of a product are.

    Attributes:
        offsets: Of each row, in elements of the array that they are in.
        runs: (distance from the offset, length) of each piece of a row.
        apart: Distance of what a group of columns sees from what the group before it does.
    """

    offsets: Array
    runs: tuple[tuple[int, int], ...]
    apart: int = 0


def shared(make: Callable[_P, Rows]) -> Callable[_P, Rows]:
    """A function that gives one table for equal arguments, as long as a product has it: it has an entry per row."""
    made: WeakValueDictionary[Hashable, Rows] = WeakValueDictionary()

    @wraps(make)
    def rows(*args: _P.args, **kwargs: _P.kwargs) -> Rows:
        found = made.get(args)
        if found is None:
            found = made[args] = make(*args, **kwargs)
        return found

    return rows


@shared
def matrix_rows(count: int, depth: int) -> Rows:
    """The rows of a matrix."""
    return Rows(np.arange(count, dtype=np.int32) * np.int32(depth), ((0, depth),))


class Product:
    """Products of rows with a packed weight, of known sizes.

    Args:
        compute: What `ready` gives.
        rows: The rows.
        columns: Columns of the weight.
        groups: In so many groups of columns each sees rows of its own, which lie side by side.
        dtype: Of all arrays.

    Attributes:
        rows: The rows.
    """

    def __init__(self, compute: Routine, rows: Rows, columns: int, groups: int, dtype: str) -> None:
        v = vectors(dtype)
        assert v is not None
        count, depth = len(rows.offsets), sum(length for _, length in rows.runs)
        panels = panels_of(depth, columns, groups, v)
        self.rows = rows
        self._routine, self._function, self._offsets = compute, compute.wait(), rows.offsets
        self._count, self._panels = count, len(panels)
        self._work_ns = product_ns(count, depth, columns // groups)
        pieces = max(1, min(MOST_PIECES, count * depth * columns // groups // _PIECE_PRODUCTS))
        by_rows = even_cuts(count, min(pieces, -(-count // _PIECE_ROWS)))
        by_panels = even_cuts(len(panels), pieces // len(by_rows))
        self._is_by_rows = len(by_panels) == 1
        parts = [(0, one.start, one.stop, other.start, other.stop) for one in by_rows for other in by_panels]
        self._parts, self._whole = np.array(parts, np.int64), (0, 0, count, 0, len(panels))
        lengths = tuple({count, *[cut.stop - cut.start for cut in by_rows]})
        self._told = _told(rows.runs, rows.apart, columns, panels, lengths, v)

    def direct(self, panels: Array) -> Direct:
        """As `run`, with a packed weight that stays, and what follows compiled."""
        routine, parts, work_ns = self._routine, self._parts, self._work_ns
        function, offsets, told, kept = self._function, id(self._offsets), id(self._told), (self, panels)
        weight, whole = id(panels), self._whole

        def compute(x: Array, y: Array, given: int, address: int, _kept: Any = kept) -> None:
            if len(parts) == 1 or not may_share(routine, len(parts), work_ns):
                function(id(x), offsets, weight, id(y), told, given, address, *whole)
            else:
                spread(routine, (id(x), offsets, weight, id(y), told, given, address), parts, work_ns)

        return compute

    def spread(self, x: Array, panels: Array, y: Array, ending: Ending) -> None:
        """Compute all rows, by several threads where that pays; see `run`."""
        given, parts = self._given(x, panels, y, ending), self._parts
        left = ending.finish if ending.following is None else None
        if left is not None and self._is_by_rows:
            self._finishing(given, left)
        elif len(parts) == 1 or not may_share(self._routine, len(parts), self._work_ns):
            self._function(*given, *self._whole)
        else:
            spread(self._routine, given, parts, self._work_ns)
        if left is not None and not self._is_by_rows:
            left(0, self._count)

    def _finishing(self, given: tuple[int, ...], finish: Finish) -> None:
        def part(piece: list[int]) -> None:
            self._function(*given, *piece)
            finish(piece[1], piece[2])

        parallel.spread(self._parts.tolist(), part, self._work_ns)

    def run(self, x: Array, panels: Array, y: Array, ending: Ending, first: int = 0) -> None:
        """``y[first:] = x @ weight``, of as many rows as there are, and what follows.

        Args:
            x: What the rows are in.
            panels: The packed weight.
            y: The result, (..., columns).
            ending: What follows.
            first: Where the rows' results begin.
        """
        self._function(*self._given(x, panels, y, ending), first, 0, self._count, 0, self._panels)
        if ending.following is None:
            ending.take(first, first + self._count)

    def _given(self, x: Array, panels: Array, y: Array, ending: Ending) -> tuple[int, ...]:
        where, address = (id(self._told), 0) if ending.following is None else ending.following.call
        return (id(x), id(self._offsets), id(panels), id(y), id(self._told), where, address)


@lru_cache(maxsize=4096)
def _told(
    runs: tuple[tuple[int, int], ...],
    apart: int,
    columns: int,
    panels: tuple[_Panel, ...],
    lengths: tuple[int, ...],
    v: Vectors,
) -> Array:
    """What the routine is told of a product: numbers, then tables of panels, blocks and runs.

    ``lengths``: how many rows calls may have, besides a single one.
    """
    pieces: list[tuple[int, int]] = []
    blocks: list[list[int]] = []
    depth = length = 0
    for begin, whole in runs:
        for at in range(0, whole, _DEPTH):
            piece = min(_DEPTH, whole - at)
            if not blocks or length + piece > _DEPTH:
                blocks.append([len(pieces), 0, depth, 0])
                length = 0
            pieces.append((begin + at, piece))
            blocks[-1][1] += 1
            blocks[-1][3] += piece
            depth, length = depth + piece, length + piece
    tables = [np.array(each, np.int64).reshape(-1) for each in (panels, blocks, pieces)]
    starts = np.cumsum([_TABLES, *[table.size for table in tables]])
    rows_at_once = max(_PIECE_ROWS, _ROWS_BYTES // (min(depth, _DEPTH) * v.size))
    while any(length % rows_at_once == 1 < length for length in lengths):
        rows_at_once += 1  # a row that is left over would be added up in another order than in a call of other rows
    return np.concatenate([np.array([rows_at_once, columns, apart, len(blocks), *starts[:3]], np.int64), *tables])


def ready(make: Callable[[str], Routine], dtype: str) -> Routine | None:
    """A routine, waited for; None if there will be none.

    It sums in an order of its own, so it has to compute from the first call on, or results would change.
    """
    if vectors(dtype) is None:
        return None
    found = make(dtype)
    try:
        found.wait()
    except DeviceError:
        return None
    return found
