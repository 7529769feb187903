"""Memory of kernels for an operation: kept as long as it lives, so that calls have little left to do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar
from weakref import WeakMethod, ref

import numpy as np

from actorflow.devices.memory import OWNERS
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.operation import KEPT, Operation

_T = TypeVar("_T")
_Found = tuple[list[Callable[[], Array | None]], Any]
#: For arrays of so many shapes.
_MOST_MADE = 64


class Kept:
    """Memory of one operation's kernels: objects for arrays of some shapes, and arrays computed from weights."""

    __slots__ = ("_derived", "_made")

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._derived: dict[Hashable, Derived] = {}

    def made(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The object of a key, made at its first use."""
        found: _T | None = self._made.get(key)
        if found is None:
            if len(self._made) >= _MOST_MADE:
                self._made = {}
            found = self._made.setdefault(key, make())  # two threads that make it both have the same one
        return found

    def derived(self, form: Hashable) -> Derived:
        """Arrays computed from the weights, in a form: that of a library, and its order in memory."""
        return self._derived.setdefault(form, Derived(self._derived))

    def renew(self, values: Mapping[int, Array]) -> None:
        """Compute what follows from weights for their successors, by the `id` of those of now.

        Both are kept until `settle`, for frames that read the ones and the others. Any thread may call it.
        """
        for each in [*self._derived.values()]:
            each.renew(values)

    def settle(self, *, renewed: bool) -> None:
        """Keep what follows from the new weights alone, or from the ones before."""
        for each in [*self._derived.values()]:
            each.settle(renewed)


class Derived:
    """Arrays computed from others, weights say, in one form.

    Args:
        forms: All forms of them.
    """

    __slots__ = ("_forms", "_found", "_make", "_next", "_seen")

    def __init__(self, forms: dict[Hashable, Derived]) -> None:
        self._forms = forms
        self._seen: list[int] = []
        self._found: _Found | None = None
        self._next: _Found | None = None  # by weights that take the place of the others
        self._make: Callable[[], Callable[..., Any] | None] = lambda: None

    @property
    def is_held(self) -> bool:
        """Whether what followed last is kept, and so are all arrays that it follows from."""
        return self._found is not None and not any(isinstance(one, ref) for one in self._found[0])

    def of(self, sources: Sequence[Array], make: Callable[..., _T]) -> _T:
        """The arrays that ``make(*sources)`` computes from others.

        From their second use on that is kept, and the arrays with it: what is referred to is not written again. A
        weight that each step of a training replaces is used once, and its memory goes back.
        """
        known = self._found
        if known is not None:
            for source, one in zip(sources, known[0], strict=True):
                if one() is not source:
                    break
            else:
                kept: _T = known[1]
                return kept
            if self._next is None:
                for each in [*self._forms.values()]:  # they are of the same weights, which have gone
                    each._found = None
        following = self._next
        if following is not None and all(one() is source for one, source in zip(following[0], sources, strict=True)):
            renewed: _T = following[1]
            return renewed
        found, seen = make(*sources), [id(source) for source in sources]
        if self._seen == seen or not any(source.flags.writeable for source in sources):
            self._found = [_reference(source) for source in sources], found
            # Not the object of a method, which refers to this: nothing of a program shall be left in a circle.
            self._make = WeakMethod(make) if isinstance(make, MethodType) else lambda: make
        self._seen = seen
        return found

    def renew(self, values: Mapping[int, Array]) -> None:
        """See `Kept.renew`."""
        make, known = self._make(), self._next or self._found
        before: list[Any] = [] if known is None else [one() for one in known[0]]
        sources = [values.get(id(source), source) for source in before if source is not None]
        if make is not None and len(sources) == len(before) and any(id(source) in values for source in before):
            self._next = [_reference(source) for source in sources], make(*sources)

    def settle(self, renewed: bool) -> None:
        """See `Kept.settle`."""
        if renewed and self._next is not None:
            self._found = self._next
        self._next = None


def _reference(array: Array) -> Callable[[], Array | None]:
    """Gives an array: it is referred to, unless it is a view of an array that may be written to.

    No pool writes a view over; one of what was fed is another one in each call, and keeps what was fed.
    """
    base: Any = array.base
    is_constant = type(base) is np.ndarray and not (base.flags.writeable or array.flags.writeable)  # as of a file
    return (lambda: array) if is_constant or type(base) in OWNERS else ref(array)


def kept(operation: Operation) -> Kept:
    """The memory of an operation's kernels."""
    found: Kept | None = operation.__dict__.get(KEPT)
    return operation.__dict__.setdefault(KEPT, Kept()) if found is None else found
