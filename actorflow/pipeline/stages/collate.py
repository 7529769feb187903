"""Batches made of items, and items of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import PipelineError, shown, whole

_ARRAYS = (np.ndarray, np.generic, Number)  # values that are stacked
_FEW = 5  # different types, and rows of each, that a message names


def stack(items: Sequence[Any]) -> Any:
    """Make one batch of items of one form.

    Arrays and numbers are stacked along a new first axis, in the dtype that holds all numbers of them; tuples, lists
    and mappings part by part; anything else stays a list.

    Raises:
        PipelineError: if rows are of different types, an int and a text or None say; if arrays differ in shape (`pad`
            is for those), or the parts do not correspond. The message names the form of each row.

    Example:
        >>> af.pipeline.stack([(np.array([1, 2]), "a"), (np.array([3, 4]), "b")])
        (array([[1, 2],
               [3, 4]]), ['a', 'b'])
    """
    return _joined(items, _stacked, "")


@dataclass(frozen=True)
class Padding:
    """The function that `pad` gives, of its arguments; other processes can be sent it."""

    value: float
    multiple: int

    def __call__(self, items: Sequence[Any]) -> Any:
        return _joined(items, self._padded, "")

    def _padded(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        if len({(array.ndim, array.dtype) for array in arrays}) > 1:
            kinds = ", ".join(sorted({f"{array.ndim}-d {array.dtype}" for array in arrays}))
            raise PipelineError(f"expected arrays of one number of axes and one dtype, got {kinds}")
        shapes = zip(*[array.shape for array in arrays], strict=True)
        lengths = [-(-max(axis) // self.multiple) * self.multiple for axis in shapes]
        batch = np.full((len(arrays), *lengths), self.value, arrays[0].dtype)
        for i, array in enumerate(arrays):
            filled: tuple[int | slice, ...] = (i, *[slice(length) for length in array.shape])
            batch[filled] = array
        return batch


def pad(value: float = 0, *, multiple: int = 1) -> Padding:
    """A collate function like `stack` that fills up arrays of different shapes at their ends.

    Args:
        value: The number that is filled in.
        multiple: Each padded length is rounded up to a multiple of it, so that few different shapes come out.
    Returns:
        The function; for items of shape (n, ...) it gives an array of shape (batch, max n, ...).
    Raises:
        PipelineError: later, if arrays differ in the number of axes or in dtype.

    Example:
        >>> collate = af.pipeline.pad(-1, multiple=2)
        >>> collate([np.array([1, 2, 3]), np.array([4])])
        array([[ 1,  2,  3, -1],
               [ 4, -1, -1, -1]])
        >>> loader = af.pipeline.source([np.array([1]), np.array([2, 3])]).batch(2, collate=collate)
    """
    return Padding(value, whole("multiple", multiple, 1, error=PipelineError))


def unstack(batch: Any) -> Iterator[Any]:
    """The items of a batch; undoes `stack`.

    Raises:
        PipelineError: if the parts of the batch are not of one length.

    Example:
        >>> list(af.pipeline.unstack({"x": np.array([[1, 2], [3, 4]]), "name": ["a", "b"]}))
        [{'x': array([1, 2]), 'name': 'a'}, {'x': array([3, 4]), 'name': 'b'}]
    """
    if isinstance(batch, Mapping):
        for values in _together(list(batch.values())):
            yield dict(zip(batch, values, strict=True))
    elif isinstance(batch, tuple):
        for values in _together(batch):
            yield type(batch)(*values) if hasattr(batch, "_fields") else values
    else:
        if not (isinstance(batch, Iterable) or hasattr(batch, "__getitem__")):
            raise PipelineError(
                f"expected a batch: an array, a list, or a tuple or mapping of these, got {shown(batch)}"
            )
        yield from batch


def _together(parts: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    try:
        yield from zip(*(unstack(part) for part in parts), strict=True)
    except ValueError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # it comes out of one of the parts, not of zip
        raise PipelineError(f"expected the parts of a batch to be of one length: {error}") from None


def _joined(items: Sequence[Any], join: Callable[[Sequence[npt.NDArray[Any]]], Any], where: str) -> Any:
    first = items[0]
    if len(set(map(type, items))) > 1:
        _check_alike([_form(item) for item in items], [type(item).__name__ for item in items], where)
    if isinstance(first, _ARRAYS):
        arrays = [np.asarray(item) for item in items]
        if len({array.dtype for array in arrays}) > 1:
            families = ["number" if array.dtype.kind in "biufc" else array.dtype.kind for array in arrays]
            _check_alike(families, [f"{array.dtype}" for array in arrays], where)
        return join(arrays)
    if isinstance(first, Mapping):
        if any(item.keys() != first.keys() for item in items):
            keys = [", ".join(map(shown, item.keys())) for item in items]
            _check_alike([frozenset(item.keys()) for item in items], keys, where, "mappings with the same keys")
        return {key: _joined([item[key] for item in items], join, f"{where}[{shown(key)}]") for key in first}
    if isinstance(first, tuple | list):
        if any(len(item) != len(first) for item in items):
            counts = [len(item) for item in items]
            _check_alike(
                counts, [f"{count} part{'s' * (count != 1)}" for count in counts], where, "as many parts in each row"
            )
        parts = [_joined(part, join, f"{where}[{index}]") for index, part in enumerate(zip(*items, strict=True))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return list(items)


def _form(item: Any) -> Any:
    if isinstance(item, _ARRAYS):
        return "array"
    if isinstance(item, Mapping):
        return "mapping"
    return type(item) if isinstance(item, tuple | list) else None


def _check_alike(forms: Sequence[Any], texts: Sequence[str], where: str, what: str = "rows of one type") -> None:
    """Refuse rows that differ in form; raises PipelineError, naming the form of each row."""
    if len(set(forms)) == 1:
        return
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows.setdefault(text, []).append(row)
    found = [
        f"{text} in row{'s' * (len(which) > 1)} {', '.join(map(str, which[:_FEW]))}{', ...' * (len(which) > _FEW)}"
        for text, which in list(rows.items())[:_FEW]
    ]
    place = f"a batch of {len(forms)}" if not where else f"{where} of a batch of {len(forms)}"
    raise PipelineError(f"expected {what} in {place}, got {'; '.join(found)}")


def _stacked(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        found = ", ".join(map(str, sorted(shapes)[:_FEW]))
        raise PipelineError(f"expected arrays of one shape in a batch, got {found}; collate=af.pipeline.pad() fills up")
    return np.stack(arrays)
