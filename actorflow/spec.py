"""The static type of a tensor: shape and dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from actorflow.errors import DTypeError, ShapeError


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor, known before any value is.

    ``dtype=object`` with ``shape=()`` is the type of "any Python object": such a blob passes values between
    functions unchecked.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: Any, dtype: Any = "float32") -> TensorSpec:
        """Normalize and check a shape and a dtype.

        Raises:
            ShapeError: if an axis is not a non-negative integer.
            DTypeError: if NumPy does not know the dtype.
        """
        axes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        for axis in axes:
            if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or axis < 0:
                raise ShapeError(f"shape {axes!r}: every axis must be a non-negative integer, got {axis!r}")
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise DTypeError(f"{dtype!r} is not a dtype that NumPy knows") from error
        return cls(tuple(int(axis) for axis in axes), kind)

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
