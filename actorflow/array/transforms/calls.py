"""Calls of functions of arrays: their arguments, in nested containers, and arrays that stand in for them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.array.namespace.creation import asarray
from actorflow.array.record.record import Evaluator, Record
from actorflow.errors import DTypeError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.array import Array


# -- containers ------------------------------------------------------------------------------------------------


class Structure(NamedTuple):
    """The nesting of leaves; hashable.

    Attributes:
        kind: Type of the container; None for a leaf.
        keys: Of a dict.
        parts: Structures of its items.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    parts: tuple[Structure, ...] = ()


LEAF = Structure(None)
_NUMPY = (np.ndarray, np.generic)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of nested tuples, lists and dicts, in order, and how they are nested."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind = type(tree)
    if kind is dict:
        return Structure(kind, tuple(tree), tuple([_flatten(each, leaves) for each in tree.values()]))
    if kind in (tuple, list) or _is_named(tree):
        return Structure(kind, (), tuple([_flatten(each, leaves) for each in tree]))
    leaves.append(tree)
    return LEAF


def _is_named(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields") and type(tree) is not TensorSpec


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The containers again, with other leaves."""
    (kind, keys, parts), rest = structure, iter(leaves)
    if kind is None:
        return next(rest)
    found = [next(rest) if part.kind is None else unflatten(part, rest) for part in parts]
    if kind is dict:
        return dict(zip(keys, found, strict=True))
    make: Callable[..., Any] = kind
    return make(*found) if hasattr(kind, "_fields") else make(found)


def paths(structure: Structure, name: str) -> list[str]:
    """A name for each leaf: that of the whole, then keys and positions, as in ``weights.w1``."""
    if structure.kind is None:
        return [name]
    fields: Mapping[int, Any] = dict(enumerate(structure.keys or getattr(structure.kind, "_fields", ())))
    return [path for i, part in enumerate(structure.parts) for path in paths(part, f"{name}.{fields.get(i, i)}")]


# -- calls ------------------------------------------------------------------------------------------------------


def is_array(leaf: Any) -> bool:
    """Return whether it is an array of this package."""
    return type(leaf) is Record.array_type


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """A function's parameters; their annotations may name what is there for type checkers alone.

    Raises:
        TypeError, ValueError: if it does not say.
    """
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):  # annotations are evaluated when they are asked for
        from annotationlib import Format

        options["annotation_format"] = Format.FORWARDREF
    return inspect.signature(function, **options)


def key_of(tree: Any, arrays: list[Array], name: str, takes_numbers: bool) -> Hashable:
    """A key of an argument: its nesting, shapes and dtypes of arrays, and all other leaves; equal keys record the same.

    Args:
        tree: The argument; NumPy's arrays are taken as `asarray` does.
        arrays: Where its arrays are added.
        name: How messages begin.
        takes_numbers: Whether Python's numbers are taken for arrays, too.
    Raises:
        DTypeError: if a leaf is neither an array nor hashable.
    """
    kind = type(tree)
    key: list[Any] = [kind]
    if kind is dict:
        key += len(tree), *tree
        tree = tree.values()
    elif kind is not tuple and kind is not list and not _is_named(tree):
        if isinstance(tree, _NUMPY) or (takes_numbers and isinstance(tree, float | complex)):
            tree = asarray(tree)
        if is_array(tree):
            arrays.append(tree)
            return tree._node.shape, tree._node.dtype
        return _key_of_leaf(tree, name)
    for each in tree:
        if type(each) is Record.array_type:
            arrays.append(each)
            node = each._node
            key += node.shape, node.dtype
        else:
            key.append(key_of(each, arrays, name, takes_numbers))
    return tuple(key)


def _key_of_leaf(leaf: Any, name: str) -> Hashable:
    if isinstance(leaf, float | complex):
        return type(leaf), repr(leaf)  # 0.0 equals -0.0
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
        args: Given by position.
        kwargs: Given by name.
        numbers: Whether to take Python numbers for arrays, by position of the argument.

    Attributes:
        leaves: The values in the arguments.
        structure: Their nesting.
        spans: Where the leaves of each positional argument are.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: Callable[[int], bool]) -> None:
        self.leaves: list[Any] = []
        self.spans: list[tuple[int, int, Structure]] = []
        structures = []
        for i, argument in enumerate((*args, dict(kwargs))):
            leaves, structure = flatten(argument)
            start = len(self.leaves)
            kinds = (*_NUMPY, float, complex) if numbers(i) else _NUMPY
            self.leaves += [asarray(leaf) if isinstance(leaf, kinds) else leaf for leaf in leaves]
            self.spans.append((start, len(self.leaves), structure))
            structures.append(structure)
        self.structure = Structure(tuple, (), tuple(structures))

    def call(self, function: Callable[..., Any], leaves: Iterable[Any]) -> Any:
        """Call a function with other leaves."""
        *args, kwargs = unflatten(self.structure, leaves)
        return function(*args, **kwargs)


class StandIns:
    """Arrays without values that stand for others while a function is traced.

    Attributes:
        evaluator: The dry run that they belong to.
        nodes: Their records, which stay the same whatever the function assigns to the arrays.
        first: The number of the first record of the tracing.
    """

    def __init__(self) -> None:
        self.evaluator = Evaluator()
        self.nodes: list[Record] = []
        self.first = Record(None, (), (), np.dtype(np.bool_), (), self.evaluator).number

    def of(self, leaf: Any) -> Array:
        """A stand-in for an array or a `TensorSpec`."""
        node = Record(None, (), leaf.shape, leaf.dtype, (), self.evaluator)
        self.nodes.append(node)
        return node.show()
