"""Routines over all elements, or all rows, of arrays: one pass, in pieces that idle cores take part in."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.parallel import element_ns, even_cuts, spread
from actorflow.ops.numba.machine import Function
from actorflow.ops.numba.routine import Routine

#: Elements of all arrays in a piece, and those that are not cut: few large pieces would not be shared out evenly.
_PIECE_ELEMENTS, _FEW_ELEMENTS = 1 << 18, 1 << 20
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


def call(
    function: Function, arrays: Sequence[Array], *numbers: float, rows: int, width: int = 0, spare: int = 0
) -> None:
    """Call a routine, whose last arguments are ``start`` and ``stop``, for all rows, or elements where ``width`` is 0.

    Args:
        function: The routine's.
        arrays, numbers: What it is given first.
        rows: How many there are.
        width: Elements of a row, given after the numbers.
        spare: Number of rows of memory that are given after the arrays, one call's own.
    """
    given, dtype = [*map(id, arrays)], arrays[0].dtype
    more = (*numbers, width) if width else numbers
    work = rows * (width or 1) * len(arrays)

    def part(cut: slice) -> None:
        memory = [scratch(f"spare{n}", (width,), dtype) for n in range(spare)]
        function(*given, *map(id, memory), *more, cut.start, cut.stop)

    if work < _FEW_ELEMENTS:
        part(slice(0, rows))
    else:
        spread(even_cuts(rows, work // _PIECE_ELEMENTS, -(-_UNIT // (width or 1))), part, element_ns(work))
