"""How much an operation does, and what it may be computed together with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorflow.array.record.primitives import Primitive
from actorflow.ops.reductions import may_be_parted

#: Ways in which an operation is joined with others: not at all, in a sequence, in a chain, on a device.
ALONE, JOINED, CHAINED, ON_DEVICE = range(4)
#: Most elements that a sequence touches: one in the middle may be waited for.
MOST_WORK = 1 << 23
#: Elements of an elementwise operation or a reduction from which on it is computed in blocks, by several threads.
_LONG = 1 << 19
#: Elements that another operation touches up to which it is not worth a thread of its own.
_SMALL = 1 << 15
#: Multiplications up to which a product of matrices is not worth one, as it uses all cores by itself.
_SMALL_PRODUCT = 1 << 28
#: Multiplications that take as long as one elementwise operation on one element.
_PRODUCTS = 64


def measure(op: Primitive, inputs: Sequence[Any], size: int, params: tuple[Any, ...]) -> tuple[int, int]:
    """The way in which an operation on the CPU is joined with others, and about how many elements it touches.

    Args:
        op: The operation.
        inputs: What it reads: anything that has a ``size``.
        size: Number of elements of its result.
        params: Its further arguments.
    """
    if op.elementwise:
        return CHAINED if size >= _LONG else JOINED, size
    if op.reduction:
        touched = inputs[0].size
        return (JOINED if touched < _LONG else CHAINED if _may_be_parted(op, params) else ALONE), touched
    if op.view and len(inputs) == 1:
        return JOINED, 1
    if op.threaded:  # m * k * n of matrices, or vectors, of m * k, k * n and m * n elements
        products = int((inputs[0].size * inputs[1].size * size) ** 0.5)
        return JOINED if products <= _SMALL_PRODUCT else ALONE, products // _PRODUCTS
    touched = sum([each.size for each in inputs]) + size
    return JOINED if touched <= _SMALL else ALONE, touched


def _may_be_parted(op: Any, params: tuple[Any, ...]) -> bool:
    """Return whether a reduction may be computed in blocks, which are parts of the first axis."""
    axes, _, dtype = params
    return 0 not in axes or may_be_parted(op.ufunc, dtype)
