"""Constants that are made when a file is loaded: bounded in what they take, and each made once.

A file of some hundred bytes can ask for constants of any size: by what is computed while it is loaded, and by a weight
that a thousand nodes want in an order of axes of their own. All that is made is therefore counted, before it is made,
and until it has gone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.onnx.refusal import Refused
from actorflow.ops.fills import is_kept
from actorflow.spec import Length

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob
    from actorflow.onnx.values import Array

#: Bytes that any file may have made at once, and how often each byte of its own constants besides.
_FREE, _TIMES = 3 << 24, 6
#: How often all of that may be made, one after the other: it takes time.
_MOST_TIMES = 4


class _Allowance:
    """Bytes that may still be made: at once, and one after the other."""

    def __init__(self) -> None:
        self.at_once = _FREE
        self.in_all = _MOST_TIMES * _FREE

    def grow(self, size: int) -> None:
        """Allow more for bytes of the file's own constants."""
        self.at_once += _TIMES * size
        self.in_all += _MOST_TIMES * _TIMES * size

    def takes(self, size: int) -> bool:
        """Count so many bytes, if they may be made."""
        may_be = size <= min(self.at_once, self.in_all)
        if may_be:
            self.at_once -= size
            self.in_all -= size
        return may_be

    def give_back(self, size: int) -> None:
        """Count bytes that were made, and have gone, no longer."""
        self.at_once += size


class _Loading(NamedTuple):
    """The allowance of one file.

    Attributes:
        allowance: As above.
        made: The constants made so far: their arrays' owners and blobs, by address.
        held: Arrays whose memory is counted, or the file's own, by `id`.
    """

    allowance: _Allowance
    made: dict[Any, tuple[weakref.ref[Array], Blob]]
    held: weakref.WeakValueDictionary[int, Array]


_loading: ContextVar[_Loading | None] = ContextVar("actorflow.onnx.constants", default=None)


@contextmanager
def counted() -> Iterator[None]:
    """Count what is made inside the ``with`` block; elsewhere, as in a run, nothing is."""
    token = _loading.set(_Loading(_Allowance(), {}, weakref.WeakValueDictionary()))
    try:
        yield
    finally:
        _loading.reset(token)


def own(array: Array) -> Array:
    """A constant of the file itself: the larger these are, the more may be made of them."""
    if (loading := _loading.get()) is not None:
        loading.allowance.grow(array.nbytes)
        _hold(loading, array)
    return array


def affords(*lengths: Any, size: int = 8) -> bool:
    """Whether an array of a shape may be made, of so many bytes an element; if so, it is counted."""
    loading = _loading.get()
    wanted = math.prod(lengths) * size
    if loading is None or isinstance(wanted, Length) or wanted <= 0:
        return True
    return loading.allowance.takes(wanted)


def count_while_held(array: Array) -> None:
    """Count an array, which was counted before it was made, no longer once its memory has gone."""
    if (loading := _loading.get()) is not None:
        weakref.finalize(_owner(array), loading.allowance.give_back, array.nbytes)
        _hold(loading, array)


def _hold(loading: _Loading, array: Array) -> None:
    owner = _owner(array)
    loading.held[id(owner)] = owner


def _owner(array: Array) -> Array:
    """The array whose memory it shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def spend(*lengths: Any, size: int = 8) -> None:
    """Count an array that is to be made.

    Raises:
        Refused: if it is too large.
    """
    if not affords(*lengths, size=size):
        shape = "x".join(map(str, lengths))
        raise Refused(f"more than the file's own constants account for would be made: {shape} elements of {size} bytes")


def constant(graph: Graph, array: Array, name: str = "constant") -> Blob:
    """A blob of an array, which nobody changes; of one that is there already in the branch or loop, the same one.

    Raises:
        Refused: if too much has been made.
    """
    loading = _loading.get()
    scope = graph.current_scope.body
    key = (graph, scope, array.__array_interface__["data"], array.shape, array.strides, array.dtype)
    owner, known = (None, None) if loading is None else loading.made.get(key, (None, None))
    if known is not None and owner is not None and owner() is not None:  # else another one has its address by now
        return known
    if loading is None or not is_kept(array) or id(_owner(array)) not in loading.held:  # else nothing is made
        spend(*array.shape, size=array.dtype.itemsize)
    blob = graph.constant(array, name=name)
    if loading is not None and array.base is not None:  # others are made anew each time
        loading.made[key] = weakref.ref(_owner(array)), blob
    return blob
