"""How many bytes an item takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["size_of"]


def size_of(item: Any) -> int:
    """Bytes of an item: those of arrays, texts and byte strings, also within tuples, lists, sets and mappings.

    What is none of these counts as its own object, without what it refers to.
    """
    size_bytes = getattr(item, "nbytes", None)
    if isinstance(size_bytes, int):
        return size_bytes
    if isinstance(item, Mapping):
        return sum(size_of(value) for value in item.values())
    if isinstance(item, tuple | list | set | frozenset):
        return sum(size_of(value) for value in item)
    return sys.getsizeof(item)
