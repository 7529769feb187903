"""The static type of a tensor: shape and dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.interchange import from_host_exchange

#: What NumPy makes an array of without asking for a protocol.
_PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)


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
        """Whether this is the type of "any Python object"."""
        return self.dtype.hasobject and not self.shape

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def as_array(value: Any, spec: TensorSpec, what: str, *, narrow: bool = False) -> npt.NDArray[Any]:
    """A value as an array of a type; itself, without a copy, where it is one.

    An array's dtype is only widened, so that nothing is lost unasked. Python numbers have no dtype of their own and
    take the one of ``spec``: floats are rounded, integers must fit.

    Args:
        value: An array or what NumPy makes one of. Arrays of other libraries are taken without a copy, too, see
            `actorflow.interchange`.
        spec: The type that is wanted.
        what: What the value is, for messages.
        narrow: Treat an array as Python numbers are.
    Raises:
        ShapeError, DTypeError: if the value does not fit.
        PlaceError: if it is in the memory of another device.
        GraphError: if its memory cannot be shared with NumPy.
    """
    if type(value) is np.ndarray and value.dtype == spec.dtype and value.shape == spec.shape:
        return value
    try:
        array = np.asarray(value) if isinstance(value, _PLAIN) else from_host_exchange(value, what)
    except GraphError:
        raise
    except ValueError as error:  # rows of different lengths
        raise ShapeError(f"{what}: expected shape {spec.shape}; {error}") from error
    if array.shape != spec.shape:
        raise ShapeError(f"{what}: expected shape {spec.shape}, got {'None' if value is None else array.shape}")
    if np.can_cast(array.dtype, spec.dtype, "safe"):
        return array.astype(spec.dtype, copy=False)
    has_dtype = not narrow and (hasattr(value, "dtype") or hasattr(value, "__dlpack__"))
    if not has_dtype and array.dtype.kind in "iu" and spec.dtype.kind in "biu":
        converted = array.astype(spec.dtype)
        if np.array_equal(converted, array):
            return converted
        raise DTypeError(f"{what}: expected dtype {spec.dtype}, got integers from {array.min()} to {array.max()}")
    if not has_dtype and np.can_cast(array.dtype, spec.dtype, "same_kind"):
        with np.errstate(all="ignore"):  # to infinity, or to 0
            return array.astype(spec.dtype)
    advice = f"; convert it, array.astype({spec.dtype.name!r})" if isinstance(value, np.ndarray | np.generic) else ""
    got = "None" if value is None else array.dtype
    raise DTypeError(f"{what}: expected dtype {spec.dtype}, got {got}{advice}")
