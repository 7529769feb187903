"""Containers of arrays: nested tuples, lists and dicts as arguments and results of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from actorflow.spec import TensorSpec


class Structure(NamedTuple):
    """How leaves are nested; hashable.

    Attributes:
        kind: Type of the container; None for a leaf.
        keys: Of a dict.
        parts: Structures of what it holds.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    parts: tuple[Structure, ...] = ()


LEAF = Structure(None)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of nested tuples, lists and dicts, in order, and how they are nested."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind = type(tree)
    if kind is dict:
        return Structure(kind, tuple(tree), tuple([_flatten(each, leaves) for each in tree.values()]))
    if kind in (tuple, list) or (isinstance(tree, tuple) and kind is not TensorSpec and hasattr(kind, "_fields")):
        return Structure(kind, (), tuple([_flatten(each, leaves) for each in tree]))
    leaves.append(tree)
    return LEAF


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The containers again, with other leaves."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    kind, keys, parts = structure
    if kind is None:
        return next(leaves)
    found = [_unflatten(part, leaves) for part in parts]
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
