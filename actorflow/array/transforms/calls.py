"""Calls of functions of arrays: their arguments, in nested containers, and arrays that stand in for them."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.namespace.creation import asarray
from actorflow.array.record.record import Record
from actorflow.errors import DTypeError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.array import Array


# -- containers ------------------------------------------------------------------------------------------------


#: The nesting of leaves, hashable: None for a leaf; else type of the container, keys of a dict, nestings of items, and
#: types of the keys, of which 1 equals True.
Structure = tuple[type, tuple[Any, ...], tuple[Any, ...], tuple[type, ...]] | None
_NUMPY = (np.ndarray, np.generic)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of nested tuples, lists and dicts, in order, and how they are nested."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind: type = type(tree)
    if kind is not Record.array_type:
        if kind is dict:
            parts = tuple([_flatten(each, leaves) for each in tree.values()])
            return kind, tuple(tree), parts, tuple(map(type, tree))
        is_named = isinstance(tree, tuple) and hasattr(tree, "_fields") and kind is not TensorSpec
        if kind is tuple or kind is list or is_named:
            return kind, (), tuple([_flatten(each, leaves) for each in tree]), ()
    leaves.append(tree)
    return None


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The containers again, with other leaves."""
    rest = iter(leaves)
    if structure is None:
        return next(rest)
    kind, keys, parts, _ = structure
    found = [next(rest) if part is None else unflatten(part, rest) for part in parts]
    if kind is dict:
        return dict(zip(keys, found, strict=True))
    make: Callable[..., Any] = kind
    return make(*found) if hasattr(kind, "_fields") else make(found)


def paths(structure: Structure, name: str) -> list[str]:
    """A name for each leaf: that of the whole, then keys and positions, as in ``weights.w1``."""
    if structure is None:
        return [name]
    kind, keys, parts, _ = structure
    fields: Mapping[int, Any] = dict(enumerate(keys or getattr(kind, "_fields", ())))
    return [path for i, part in enumerate(parts) for path in paths(part, f"{name}.{fields.get(i, i)}")]


# -- calls ------------------------------------------------------------------------------------------------------


def is_array(leaf: Any) -> bool:
    """Return whether it is an array of this package."""
    return type(leaf) is Record.array_type


def _key_of_leaf(leaf: Any, name: str) -> Hashable:
    if isinstance(leaf, float | complex):
        plain = float(leaf) if isinstance(leaf, float) else complex(leaf)
        return type(leaf), repr(leaf), repr(plain)  # 0.0 equals -0.0, and a type of its own may show both alike
    try:
        hash(leaf)
    except TypeError as error:
        raise DTypeError(
            f"{name}: an argument that is not an array must be hashable, got {type(leaf).__name__}"
        ) from error
    return type(leaf), leaf


class Arguments:
    """The arguments of one call; nested tuples, lists and dicts are taken apart.

    Args:
        args, kwargs: Given by position, and by name.
        numbers: Positions of the arguments whose Python numbers are taken for arrays.

    Attributes:
        leaves, arrays: The values in the arguments, and those of them that are arrays.
        structure: Their nesting.
        spans: Where the leaves of each positional argument are.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: Container[int]) -> None:
        self.leaves: list[Any] = []
        self.spans: list[tuple[int, int, Structure]] = []
        for argument in (*args, kwargs):
            start = len(self.leaves)
            structure = _flatten(argument, self.leaves)
            self.spans.append((start, len(self.leaves), structure))
        self.structure: Structure = tuple, (), tuple([structure for _, _, structure in self.spans]), ()
        self.arrays: list[Array] = [leaf for leaf in self.leaves if type(leaf) is Record.array_type]
        if len(self.arrays) < len(self.leaves):
            for i, (start, end, _) in enumerate(self.spans):
                kinds = (*_NUMPY, float, complex) if i in numbers else _NUMPY
                for at in range(start, end):
                    if isinstance(self.leaves[at], kinds):
                        self.leaves[at] = asarray(self.leaves[at])
            self.arrays = [leaf for leaf in self.leaves if is_array(leaf)]

    def key(self, name: str) -> Hashable:
        """The nesting, shapes and dtypes of arrays, and all other leaves: calls with equal keys record the same.

        Raises:
            DTypeError: if a leaf is neither an array nor hashable; it begins with ``name``.
        """
        leaves = self.leaves
        kind = Record.array_type
        keys = [(x._node.shape, x._node.dtype) if type(x) is kind else _key_of_leaf(x, name) for x in leaves]
        return self.structure, tuple(keys)

    def call(self, function: Callable[..., Any], leaves: Iterable[Any]) -> Any:
        """Call a function with other leaves."""
        *args, kwargs = unflatten(self.structure, leaves)
        return function(*args, **kwargs)
