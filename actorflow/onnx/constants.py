"""Constants that are made when a file is loaded: bounded in what they take, and each made once.

A file of some hundred bytes can ask for constants of any size: by what is computed while it is loaded, and by a weight
that a thousand nodes want in an order of axes of their own. All that is made is therefore counted, before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from actorflow.onnx.refusal import Refused
from actorflow.spec import Length

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob
    from actorflow.onnx.values import Array

#: Bytes that any file may have made, and how often each byte of its own constants besides.
_FREE, _TIMES = 3 << 24, 6


class _Allowance:
    """What may still be made, and what was."""

    def __init__(self) -> None:
        self.left = _FREE
        self.made: dict[Any, tuple[Array, Blob]] = {}  # the arrays are kept, as keys are their addresses


_allowance: ContextVar[_Allowance | None] = ContextVar("actorflow.onnx.constants", default=None)


@contextmanager
def counted() -> Iterator[None]:
    """Count what is made inside the ``with`` block; elsewhere, as in a run, nothing is."""
    token = _allowance.set(_Allowance())
    try:
        yield
    finally:
        _allowance.reset(token)


def own(array: Array) -> Array:
    """A constant of the file itself: the larger these are, the more may be made of them."""
    if (allowance := _allowance.get()) is not None:
        allowance.left += _TIMES * array.nbytes
    return array


def affords(*lengths: Any, size: int = 8) -> bool:
    """Whether an array of a shape may be made, of so many bytes an element; if so, it is counted."""
    allowance = _allowance.get()
    wanted = math.prod(lengths) * size
    if allowance is None or isinstance(wanted, Length) or wanted <= 0:
        return True
    if wanted > allowance.left:
        return False
    allowance.left -= wanted
    return True


def spend(*lengths: Any, size: int = 8) -> None:
    """Count an array that is to be made.

    Raises:
        Refused: if it is too large.
    """
    if not affords(*lengths, size=size):
        shape = "x".join(map(str, lengths))
        raise Refused(f"more than the file's own constants account for would be made: {shape} elements of {size} bytes")


def constant(graph: Graph, array: Array, name: str = "constant") -> Blob:
    """A blob of an array, which nobody changes; of one that is there already, the same one.

    Raises:
        Refused: if too much has been made.
    """
    allowance = _allowance.get()
    key = (graph, array.__array_interface__["data"], array.shape, array.strides, array.dtype)
    if allowance is not None and key in allowance.made:
        return allowance.made[key][1]
    spend(*array.shape, size=array.dtype.itemsize)
    blob = graph.constant(array, name=name)
    if allowance is not None and array.base is not None:  # others are made anew each time
        allowance.made[key] = (array, blob)
    return blob
