"""The static type of a tensor: shape and dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from actorflow.errors import DTypeError, ShapeError
from actorflow.length import Length, axes_in, axis


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor, known before any value is.

    The length of an axis may be open until a run: it is a `Length` then, which computes as an integer does.

    ``dtype=object`` with ``shape=()`` is the type of "any Python object": such a blob passes values between
    functions unchecked.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: Any, dtype: Any = "float32") -> TensorSpec:
        """Normalize and check a shape and a dtype.

        Args:
            shape: Length of each axis; a name opens one, and equal names are equal lengths.
            dtype: Whatever NumPy takes as a dtype.
        Raises:
            ShapeError: if an axis is neither a non-negative integer nor a name.
            DTypeError: if NumPy does not know the dtype.
        """
        given = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
        lengths: list[int] = []
        for each in given:
            if isinstance(each, str):
                lengths.append(axis(each))
            elif isinstance(each, Length):
                lengths.append(each)  # type: ignore[arg-type]  # which computes as an integer does
            elif isinstance(each, bool) or not isinstance(each, int | np.integer) or each < 0:
                hint = ': give the axis a name, such as "batch"' if each is None else ""
                raise ShapeError(
                    f"shape {given!r}: every axis must be a non-negative integer or a name, got {each!r}{hint}"
                )
            else:
                lengths.append(int(each))
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise DTypeError(f"{dtype!r} is not a dtype that NumPy knows") from error
        return cls(tuple(lengths), kind)

    @property
    def axes(self) -> frozenset[str]:
        """Names of the open axes that the shape depends on."""
        return axes_in(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of a dense tensor of this type."""
        return self.size * self.dtype.itemsize

    @property
    def is_object(self) -> bool:
        """True if this is the type of "any Python object"."""
        return self.dtype.hasobject and not self.shape

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"
