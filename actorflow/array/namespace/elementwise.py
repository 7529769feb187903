"""The elementwise functions of the standard: those of `actorflow.ops.elementwise`, without what blobs need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actorflow.array.namespace.operate import binary, cast, chosen, node_of, recorded, unary
from actorflow.array.record.primitives import elementwise_primitive
from actorflow.ops import elementwise as rows
from actorflow.ops.elementwise import at_least, at_most, copy
from actorflow.ops.rows import documentation

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: Of graphs; arrays have them under other names.
_OTHERS = ("at_least", "at_most", "copy", "deviation")
_RENAMED = {"absolute": "abs", "power": "pow"}


def _function(kind: Any, name: str) -> Callable[..., Array]:
    """The function that records an operation at once."""
    op = elementwise_primitive(kind())
    one, two = op.loop.of_one, op.loop.of_two

    def of_one(x: Array, /) -> Array:
        found: Array | None = one(x)
        return unary(op, x) if found is None else found

    def of_two(a: Any, b: Any, /) -> Array:
        found: Array | None = two(a, b)
        return recorded(op, a, b) if found is None else found

    def of_three(condition: Any, a: Any, b: Any, /) -> Array:
        return chosen(op, condition, a, b)

    function: Any = (of_one, of_two, of_three)[len(kind.arguments) - 1]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = documentation(kind, f"xp.{name}", blobs=False)
    return function  # type: ignore[no-any-return]


_FUNCTIONS = {
    name: _function(form.operation, name)
    for known, form in vars(rows).items()
    if hasattr(form, "operation") and known not in _OTHERS
    for name in [_RENAMED.get(known, known)]
}


def add(x1: Any, x2: Any, /) -> Array:
    """The sum: ``x1 + x2``.

    Args:
        x1: Any shape, numeric or bool.
        x2: A shape that broadcasts with it; one of them may be a number.
    Returns:
        Array of the common shape, of the dtype that the array API standard says.
    Raises:
        ShapeError, DTypeError: if the operands do not fit.
    Gradient: g for each operand, summed over what was broadcast.
    Example:
        >>> xp.add(xp.asarray([1, 2]), xp.asarray([[10], [20]]))
        Array([[11, 12],
               [21, 22]], dtype=int64)
    """
    return binary(_ADD, x1, x2)


_ADD = elementwise_primitive(rows.Sum())
_FUNCTIONS.update(add=add, where=_function(rows.Where, "where"))

# By their names, in alphabetical order, for tools that read the source.
# fmt: off
(
    abs, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_invert, bitwise_left_shift,
    bitwise_or, bitwise_right_shift, bitwise_xor, ceil, conj, copysign, cos, cosh, divide, equal, erf, exp, expm1,
    floor, floor_divide, fmod, greater, greater_equal, hypot, imag, isfinite, isinf, isnan, less, less_equal, log,
    log10, log1p, log2, logaddexp, logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply,
    negative, nextafter, not_equal, positive, pow, real, reciprocal, remainder, round, sign, signbit, sin, sinh, sqrt,
    square, subtract, tan, tanh, trunc, trunc_divide, where,
) = [_FUNCTIONS[name] for name in sorted(_FUNCTIONS)]
# fmt: on


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """As `numpy.clip`, in the dtype of ``x``; None leaves a side open.

    Integers within bounds that are floating are floating, as in NumPy: there may be no integer between them.

    Raises:
        ShapeError, DTypeError: if the bounds do not fit.
    Gradient: g where ``x`` is within the bounds, else 0; for a bound g where it is the result and ``x`` is not.
    Example:
        >>> xp.clip(xp.asarray([-5, 0, 5]), max=2)
        Array([-5,  0,  2], dtype=int64)
    """
    dtype = node_of("clip", "x", x).dtype
    if min is None and max is None:
        return copy(x)
    clipped = x if min is None else at_least(x, min)
    clipped = clipped if max is None else at_most(clipped, max)
    return clipped if dtype.kind in "iu" and clipped.dtype.kind == "f" else cast(clipped, dtype)
