"""The elementwise functions of the standard: those of `actorflow.ops.elementwise`, without what blobs need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actorflow.array.namespace.operate import binary, cast, chosen, node_of, unary
from actorflow.array.record.primitives import elementwise_primitive
from actorflow.ops import elementwise as rows
from actorflow.ops.elementwise import at_least, at_most, copy

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: Of graphs; arrays have them under other names.
_OTHERS = ("at_least", "at_most", "copy", "deviation")
_RENAMED = {"absolute": "abs", "power": "pow"}


def _function(kind: Any, name: str, doc: str | None) -> Callable[..., Array]:
    """The function that records an operation at once."""
    op = elementwise_primitive(kind())

    def of_one(x: Array, /) -> Array:
        return unary(op, x)

    def of_two(x1: Any, x2: Any, /) -> Array:
        return binary(op, x1, x2)

    def of_three(condition: Any, x1: Any, x2: Any, /) -> Array:
        return chosen(op, condition, x1, x2)

    function: Any = (of_one, of_two, of_three)[len(kind.arguments) - 1]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function  # type: ignore[no-any-return]


FUNCTIONS = {
    name: _function(form.operation, name, form.__doc__)
    for known, form in vars(rows).items()
    if hasattr(form, "operation") and known not in _OTHERS
    for name in [_RENAMED.get(known, known)]
}
abs, pow = FUNCTIONS["abs"], FUNCTIONS["pow"]


def add(x1: Any, x2: Any, /) -> Array:
    """The sum: ``x1 + x2``."""
    return binary(_ADD, x1, x2)


_ADD = elementwise_primitive(rows.Sum())
FUNCTIONS.update(add=add, where=_function(rows.Where, "where", rows.where.__doc__))


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """``x`` kept within bounds, in its own dtype; None leaves a side open."""
    dtype = node_of("clip", "x", x).dtype
    if min is None and max is None:
        return copy(x)
    clipped = x if min is None else at_least(x, min)
    return cast(clipped if max is None else at_most(clipped, max), dtype)
