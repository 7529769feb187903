"""Routines over all elements of arrays, or over all channels of rows: one pass, in pieces that idle cores take part in."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import element_ns, even_cuts, spread
from actorflow.ops.numba.machine import Function
from actorflow.ops.numba.routine import Routine

#: Elements of all arrays in a piece.
_PIECE_ELEMENTS = 1 << 19
#: A piece begins at a multiple of this, so that it begins where a line of the cache does.
_UNIT = 1024


def elementwise(name: str, dtype: str, arrays: Sequence[str], numbers: Sequence[str], lines: Sequence[str]) -> Routine:
    """A routine that runs lines of Python for each element ``i`` of arrays, besides numbers of the same dtype."""
    text = [
        f"def {name}({', '.join([*arrays, *numbers])}, start, stop):",
        f"    zero = np.{dtype}(0)",
        "    for i in range(start, stop):",
        *[f"        {line}" for line in lines],
    ]
    types = [*[f"{dtype}*"] * len(arrays), *[dtype] * len(numbers), "intp", "intp"]
    return Routine("\n".join(text), name, types)


def rowwise(
    name: str,
    dtype: str,
    arrays: Sequence[str],
    numbers: Sequence[str],
    lines: Sequence[str],
    before: Sequence[str] = (),
) -> Routine:
    """A routine that runs lines for each element ``i = row + c``, the channel ``c`` of a row of ``width`` channels.

    Args:
        name, dtype, arrays, numbers, lines: As for `elementwise`.
        before: Lines that are run before, for each row.
    """
    text = [
        f"def {name}({', '.join([*arrays, *numbers])}, width, start, stop):",
        f"    zero = np.{dtype}(0)",
        "    for number in range(start, stop):",
        "        row = number * width",
        *[f"        {line}" for line in before],
        "        for c in range(width):",
        "            i = row + c",
        *[f"            {line}" for line in lines],
    ]
    types = [*[f"{dtype}*"] * len(arrays), *[dtype] * len(numbers), "intp", "intp", "intp"]
    return Routine("\n".join(text), name, types)


def call(function: Function, arrays: Sequence[Array], *numbers: float, rows: int, width: int = 1) -> None:
    """Call a routine for all rows of ``width`` elements, which are elements where that is 1."""
    given = (*map(id, arrays), *numbers)
    work = rows * width * len(arrays)
    if work < 2 * _PIECE_ELEMENTS:
        function(*given, 0, rows)
        return

    def part(cut: slice) -> None:
        function(*given, cut.start, cut.stop)

    spread(even_cuts(rows, work // _PIECE_ELEMENTS, -(-_UNIT // width)), part, element_ns(work))
