"""What follows a product or a convolution, as machine code that its own calls, tile by tile.

It is one loop of `actorflow.ops.numba.fused` over some rows and columns of the result, which it is written over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from actorflow.ops import elementwise as ew
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.nn import activation
from actorflow.ops.numba.assembly import (
    Text,
    Vectors,
    element_address,
    entry,
    first_lanes,
    leave,
    load_vector,
    routine,
    spread,
    store_vector,
    vectors,
)
from actorflow.ops.numba.routine import Routine
from actorflow.ops.operation import Operation


class Following(NamedTuple):
    """What follows, on arrays.

    Attributes:
        given: ``id(array)`` of all arrays that it reads, which have to live, and bits of the numbers.
        routine: Called with the address of those; the address of elements of the result, which it reads there, and the
            distance of rows; and with first row, rows, first column, columns, and columns of all of the result.
        y: The result.
    """

    given: Array
    routine: Routine
    y: Array

    @property
    def call(self) -> tuple[int, int]:
        """What it is given, as routines take it, and the address of the function."""
        return id(self.given), self.routine.address

    def take(self, start: int, stop: int) -> None:
        """Compute it for some rows."""
        columns = self.y.shape[-1]
        source = self.y.ctypes.data + start * columns * self.y.itemsize
        self.routine.wait()(id(self.given), source, columns, start, stop - start, 0, columns, columns)


#: Value of some arguments in a text.
_Rule = Callable[[Text, Vectors, Sequence[str]], str]


def _plain(instruction: str) -> _Rule:
    return lambda text, v, values: text.let(f"{instruction} {v.vector} {', '.join(values)}")


def _call(function: str) -> _Rule:
    return lambda text, v, values: text.let(f"call {v.vector} @llvm.{function}.{v.suffix}({v.vector} {values[0]})")


def _compare(how: str) -> _Rule:
    return lambda text, v, values: text.let(f"fcmp {how} {v.vector} {values[0]}, {values[1]}")


def _choose(text: Text, v: Vectors, values: Sequence[str]) -> str:
    return text.let(f"select {v.mask} {values[0]}, {v.vector} {values[1]}, {v.vector} {values[2]}")


def _truths(instruction: str, *more: str) -> _Rule:
    return lambda text, v, values: text.let(f"{instruction} {v.mask} {', '.join([*values, *more])}")


def _extreme(how: str) -> _Rule:
    """The first one if it is the larger or smaller one, or NaN."""

    def rule(text: Text, v: Vectors, values: Sequence[str]) -> str:
        is_it, is_nan = _compare(how)(text, v, values), _compare("uno")(text, v, [values[0], values[0]])
        return _choose(text, v, [_truths("or")(text, v, [is_it, is_nan]), *values])

    return rule


#: As `np.maximum`: a NaN stays.
larger = _extreme("ogt")


def _extreme_of_number(how: str) -> _Rule:
    """The same, where the second one is not NaN."""
    return lambda text, v, values: _choose(text, v, [_compare(how)(text, v, values), *values])


def _sum(text: Text, v: Vectors, values: Sequence[str]) -> str:
    total = values[0]
    for value in values[1:]:
        total = _plain("fadd")(text, v, [total, value])
    return total


def _itself(_text: Text, _v: Vectors, values: Sequence[str]) -> str:
    return values[0]


def _reciprocal(text: Text, v: Vectors, values: Sequence[str]) -> str:
    return _plain("fdiv")(text, v, [f"splat ({v.element} 1.0)", *values])


def _where_positive(how: str) -> _Rule:
    """The first one where the last one is more than 0, else 0."""
    return lambda text, v, values: _choose(
        text, v, [_compare(how)(text, v, [values[-1], "zeroinitializer"]), values[0], "zeroinitializer"]
    )


_RULES: dict[type[Operation], _Rule] = {
    ew.Sum: _sum,
    ew.Subtract: _plain("fsub"),
    ew.Multiply: _plain("fmul"),
    ew.Scale: _plain("fmul"),
    ew.Divide: _plain("fdiv"),
    ew.Negative: _plain("fneg"),
    ew.Positive: _itself,
    ew.Absolute: _call("fabs"),
    ew.Square: lambda text, v, values: _plain("fmul")(text, v, [values[0], values[0]]),
    ew.Reciprocal: _reciprocal,
    ew.Sqrt: _call("sqrt"),
    ew.Maximum: larger,
    ew.AtLeast: larger,
    ew.Minimum: _extreme("olt"),
    ew.AtMost: _extreme("olt"),
    ew.Equal: _compare("oeq"),
    ew.NotEqual: _compare("une"),
    ew.Less: _compare("olt"),
    ew.LessEqual: _compare("ole"),
    ew.Greater: _compare("ogt"),
    ew.GreaterEqual: _compare("oge"),
    ew.IsNan: lambda text, v, values: _compare("uno")(text, v, [values[0], values[0]]),
    ew.LogicalNot: _truths("xor", "splat (i1 true)"),
    ew.LogicalAnd: _truths("and"),
    ew.LogicalOr: _truths("or"),
    ew.Where: _choose,
    ew.Cast: lambda text, v, values: text.let(f"uitofp {v.mask} {values[0]} to {v.vector}"),  # of truths
    activation.Relu: _where_positive("ugt"),
    activation.ReluDown: _where_positive("ogt"),
}

#: Where the last argument is a number, and that is never NaN.
_BESIDE_NUMBERS: dict[type[Operation], _Rule] = {
    **dict.fromkeys((ew.Maximum, ew.AtLeast), _extreme_of_number("ugt")),
    **dict.fromkeys((ew.Minimum, ew.AtMost), _extreme_of_number("ult")),
}

Lines = tuple[tuple[type[Operation], tuple[int, ...]], ...]


@lru_cache(maxsize=1024)
def follower(lines: Lines, widths: tuple[int, ...], numbers: int, dtype: str) -> Routine:
    """The routine for some steps.

    Args:
        lines: Kind and arguments of each step: positions among arrays, numbers and steps before.
        widths: For each array: 0 if it has the shape of the result, 1 if it is one element, else it is one row. The
            first one is the result.
        numbers: How many there are; none is NaN.
        dtype: Of everything, one that `vectors` has vectors for.
    """
    v = vectors(dtype)
    assert v is not None
    arguments = [("intp", name) for name in ("all", "source", "apart", "row", "rows", "column", "columns", "width")]
    text = entry("following", arguments)
    known: dict[int, str] = {}
    given, source = element_address(text, text.let("inttoptr i64 %all to ptr")), text.let("inttoptr i64 %source to ptr")
    arrays = [element_address(text, text.load("ptr", given, i)) for i in range(len(widths))]
    for i, width in enumerate(widths):
        if width == 1:
            known[i] = spread(text, v, text.load(v.element, arrays[i]))
    for i in range(len(widths), len(widths) + numbers):
        known[i] = spread(text, v, text.load(v.element, text.at("i64", given, i)))
    whole = text.let("and i64 %columns, " + str(-v.lanes))
    rest = text.let(f"sub i64 %columns, {whole}")
    some = first_lanes(text, v, rest)

    def column(at: str, mask: str | None) -> None:
        values = dict(known)
        place = text.add("%column", at)
        for i, width in enumerate(widths):
            if width > 1:
                values[i] = load_vector(text, v, text.at(v.element, arrays[i], place), mask)
        with text.loop(0, "%rows") as number:
            here = text.add(text.times(text.add("%row", number), "%width"), place)
            own = dict(values)
            places = {i: text.at(v.element, arrays[i], here) for i, width in enumerate(widths) if not width}
            for i, where in places.items():
                if i:
                    own[i] = load_vector(text, v, where, mask)
            own[0] = load_vector(text, v, text.at(v.element, source, text.add(text.times(number, "%apart"), at)), mask)
            for kind, taken in lines:
                is_number = len(widths) <= taken[-1] < len(widths) + numbers
                rule = _BESIDE_NUMBERS.get(kind, _RULES[kind]) if is_number else _RULES[kind]
                own[len(own)] = rule(text, v, [own[position] for position in taken])
            store_vector(text, v, own[len(own) - 1], places[0], mask)

    with text.loop(0, whole, v.lanes) as at:
        column(at, None)
    with text.when(text.let(f"icmp ne i64 {rest}, 0")):
        column(whole, some)
    return routine("following", arguments, v, leave(text))


def bits_of(number: float, dtype: np.dtype[np.generic]) -> int:
    """A number of a dtype as it is given: its bits, with zeros behind."""
    room = np.zeros(1, np.int64)
    room.view(dtype)[0] = number
    return int(room[0])
