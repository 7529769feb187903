"""Batches made of items, and items of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import PipelineError

__all__ = ["pad", "stack", "unstack"]


def stack(items: Sequence[Any]) -> Any:
    """Make one batch of items of one form.

    Arrays and numbers are stacked along a new first axis; tuples, lists and mappings part by part; anything else stays
    a list.

    Raises:
        PipelineError: if arrays differ in shape (`pad` is for those), or the parts do not correspond.
    """
    return _joined(items, _stacked)


def pad(value: float = 0, *, multiple: int = 1) -> Callable[[Sequence[Any]], Any]:
    """A collate function like `stack` that fills up arrays of different shapes at their ends.

    Args:
        value: What is filled in.
        multiple: Each padded length is rounded up to a multiple of it, so that few different shapes come out.
    Returns:
        The function; for items of shape (n, ...) it gives an array of shape (batch, max n, ...).
    Raises:
        PipelineError: later, if arrays differ in the number of axes or in dtype.
    """

    def padded(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        if len({(array.ndim, array.dtype) for array in arrays}) > 1:
            kinds = ", ".join(sorted({f"{array.ndim}-d {array.dtype}" for array in arrays}))
            raise PipelineError(f"expected arrays of one number of axes and one dtype, got {kinds}")
        lengths = [
            -(-max(axis) // multiple) * multiple for axis in zip(*[array.shape for array in arrays], strict=True)
        ]
        batch = np.full((len(arrays), *lengths), value, arrays[0].dtype)
        for i, array in enumerate(arrays):
            filled: tuple[int | slice, ...] = (i, *[slice(length) for length in array.shape])
            batch[filled] = array
        return batch

    return lambda items: _joined(items, padded)


def unstack(batch: Any) -> Iterator[Any]:
    """The items of a batch; undoes `stack`.

    Raises:
        PipelineError: if the parts of the batch are not of one length.
    """
    if isinstance(batch, Mapping):
        for values in _together(list(batch.values())):
            yield dict(zip(batch, values, strict=True))
    elif isinstance(batch, tuple):
        for values in _together(batch):
            yield type(batch)(*values) if hasattr(batch, "_fields") else values
    else:
        yield from batch


def _together(parts: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    try:
        yield from zip(*(unstack(part) for part in parts), strict=True)
    except ValueError as error:
        raise PipelineError(f"expected the parts of a batch to be of one length: {error}") from None


def _joined(items: Sequence[Any], join: Callable[[Sequence[npt.NDArray[Any]]], Any]) -> Any:
    first = items[0]
    if isinstance(first, np.ndarray | np.generic | Number):
        return join([np.asarray(item) for item in items])
    if isinstance(first, Mapping):
        if any(item.keys() != first.keys() for item in items):
            raise PipelineError(f"expected mappings with the keys {', '.join(map(repr, first))} in the whole batch")
        return {key: _joined([item[key] for item in items], join) for key in first}
    if isinstance(first, tuple | list):
        if any(len(item) != len(first) for item in items):
            raise PipelineError(f"expected {len(first)} parts in each item of a batch, got other numbers too")
        parts = [_joined(part, join) for part in zip(*items, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return list(items)


def _stacked(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        shown = ", ".join(map(str, sorted(shapes)[:5]))
        raise PipelineError(f"expected arrays of one shape in a batch, got {shown}; collate=af.pipeline.pad() fills up")
    return np.stack(arrays)
