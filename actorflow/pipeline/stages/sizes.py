"""How many bytes an item takes."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from actorflow.errors import PipelineError, shown


def bytes_of(size: Callable[[Any], int], item: Any) -> int:
    """Bytes of an item, as the user's function says.

    Raises:
        PipelineError: if it says anything other than a number of bytes.
    """
    given = size(item)
    try:
        size_bytes = operator.index(given)
    except TypeError:
        size_bytes = -1
    if size_bytes < 0:
        raise PipelineError(
            f"expected size= to give the bytes of an item, a whole number from 0 on, got {shown(given)}"
        )
    return size_bytes


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
