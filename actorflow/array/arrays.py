"""`Array`: what the user holds of a value that may not have been computed yet."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from typing import Any, Self, cast

import numpy as np

from actorflow.array import ufuncs as ew
from actorflow.array.indexing import read_index, write_index
from actorflow.array.linear import matmul, matrix_transpose
from actorflow.array.operate import binary, unary
from actorflow.array.operate import cast as cast_to
from actorflow.array.primitives import DType, Value
from actorflow.array.records import Node, replace
from actorflow.errors import DTypeError, GraphError, PlaceError, ShapeError
from actorflow.place import Place

__all__ = ["Array"]

_HOST = Place()
_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


class Array:
    """An n-dimensional array whose value is computed when it is needed.

    Arrays are made by the functions of this package (`asarray`, `zeros`, ...), not by calling the class. Operations
    return at once; shapes and dtypes are known and checked then. The value is computed when it is asked for:
    `to_numpy`, printing, ``bool()``, ``int()``, ``float()``, iterating over a 0-d result, DLPack, ``await``.

    Each array is a value of its own: assignment to a part of one never shows in another, not even in one that was made
    by indexing or reshaping it.
    """

    __slots__ = ("__weakref__", "_node")
    __hash__ = None  # type: ignore[assignment]
    #: Operators between NumPy's arrays and this leave the work to this.
    __array_priority__ = 1_000.0

    _node: Node

    def __new__(cls) -> Self:
        raise TypeError("arrays are made by functions: actorflow.array.asarray(...), zeros(...), ...")

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self._node.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self._node.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._node.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._node.size

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self._node.size_bytes

    @property
    def device(self) -> Place:
        """Where the value lives."""
        return _HOST

    @property
    def T(self) -> Array:  # noqa: N802  the standard's name
        """The transpose of a matrix.

        Raises:
            ShapeError: if there are not two axes.
        """
        if self.ndim != 2:
            raise ShapeError(f"T: expected two axes, got shape {self.shape}; mT transposes the last two")
        return self.mT

    @property
    def mT(self) -> Array:  # noqa: N802  the standard's name
        """The array with its last two axes exchanged."""
        return matrix_transpose(self)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        from actorflow import array

        if api_version not in (None, *array.API_VERSIONS):
            raise ValueError(f"api_version must be one of {', '.join(array.API_VERSIONS)}, got {api_version!r}")
        return array

    # -- asking for the value -----------------------------------------------------------------------------------

    def to_numpy(self) -> Value:
        """The value as a NumPy array, read-only, since other arrays may share its memory; ``.copy()`` makes it yours.

        Raises:
            OpError: if the computation failed; it names the line that recorded the operation.
            OutOfMemoryError: if it does not fit the session's budget.
        """
        view = self._value().view()
        view.flags.writeable = False
        return view

    def wait(self) -> Self:
        """Compute the value, and return the array itself.

        Raises:
            OpError, OutOfMemoryError: as for `to_numpy`.
        """
        self._value()
        return self

    def __await__(self) -> Generator[Any, None, Value]:
        """The value, as `to_numpy` gives it, computed off the event loop; a cancellation leaves it being computed."""
        node = self._node
        if not node.done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            node.session.when_done(node, _Waker(loop, future))
            yield from future
        return self.to_numpy()

    def _value(self) -> Value:
        node = self._node
        if node.value is None:
            node.session.force((node,))
            if node.error is not None:
                raise node.error.with_traceback(None)
            assert node.value is not None
        return node.value

    def _scalar(self, what: str) -> Any:
        if self._node.size != 1:
            raise ShapeError(f"{what}: expected an array of one element, got shape {self.shape}")
        return self._value().reshape(())[()]

    def __bool__(self) -> bool:
        return bool(self._scalar("bool()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __float__(self) -> float:
        if self.dtype.kind == "c":
            raise TypeError(f"float(): expected a real array, got {self.dtype}")
        return float(self._scalar("float()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"an index must be an integer, got an array of {self.dtype}")
        return int(self._scalar("an index"))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len(): a 0-d array has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: object) -> bool:
        return bool((self._value() == (value._value() if isinstance(value, Array) else value)).any())

    def __repr__(self) -> str:
        if self._node.session.dry_run and self._node.value is None:
            return f"Array(shape={self.shape}, dtype={self.dtype})"
        text = np.array2string(self._value(), separator=", ", prefix="Array(")
        return f"Array({text}, dtype={self.dtype})"

    def __str__(self) -> str:
        return repr(self) if self._node.session.dry_run else str(self._value())

    def __format__(self, spec: str) -> str:
        return format(self._scalar("format()"), spec) if spec and self.size == 1 else format(str(self), spec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Value:
        return np.array(self.to_numpy(), dtype=dtype, copy=copy)

    def __copy__(self) -> Array:
        return unary(ew.COPY, self)

    def __deepcopy__(self, memo: Any) -> Array:
        return unary(ew.COPY, self)

    def __reduce__(self) -> tuple[Callable[..., Array], tuple[Value]]:
        from actorflow.array.creation import from_numpy

        return from_numpy, (self._value(),)

    # -- exchange -----------------------------------------------------------------------------------------------

    def to_device(self, device: Place | str, /, *, stream: Any = None) -> Array:
        """The array on a device; this one, as arrays live on the CPU.

        Raises:
            PlaceError: if it is another device.
            GraphError: if a stream is given.
        """
        if stream is not None:
            raise GraphError("to_device: the CPU has no streams")
        place = Place.parse(device)
        if place != _HOST:
            raise PlaceError(f"to_device: arrays live on the CPU, got {str(place)!r}")
        return self

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Enum, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        value = self._value()
        if copy is not False and (copy or max_version is None or max_version < (1, 0)):
            # Who does not know that memory can be read-only gets memory that is his.
            value = value.copy()
        else:
            value = self.to_numpy()
        return value.__dlpack__(stream=stream, max_version=max_version, dl_device=cast("Any", dl_device))

    def __dlpack_device__(self) -> tuple[Any, int]:
        return np.empty(0).__dlpack_device__()

    # -- parts --------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any, /) -> Array:
        return read_index(self, key)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        replace(self, write_index(self, key, value))

    # -- operators ----------------------------------------------------------------------------------------------

    def __abs__(self) -> Array:
        return unary(ew.ABS, self)

    def __neg__(self) -> Array:
        return unary(ew.NEGATIVE, self)

    def __pos__(self) -> Array:
        return unary(ew.POSITIVE, self)

    def __invert__(self) -> Array:
        return unary(ew.BITWISE_INVERT, self)

    def __add__(self, other: Any, /) -> Array:
        return binary(ew.ADD, self, other) if _is_operand(other) else NotImplemented

    def __radd__(self, other: Any, /) -> Array:
        return binary(ew.ADD, other, self) if _is_operand(other) else NotImplemented

    def __iadd__(self, other: Any, /) -> Self:
        return self._in_place("+=", binary(ew.ADD, self, other)) if _is_operand(other) else NotImplemented

    def __sub__(self, other: Any, /) -> Array:
        return binary(ew.SUBTRACT, self, other) if _is_operand(other) else NotImplemented

    def __rsub__(self, other: Any, /) -> Array:
        return binary(ew.SUBTRACT, other, self) if _is_operand(other) else NotImplemented

    def __isub__(self, other: Any, /) -> Self:
        return self._in_place("-=", binary(ew.SUBTRACT, self, other)) if _is_operand(other) else NotImplemented

    def __mul__(self, other: Any, /) -> Array:
        return binary(ew.MULTIPLY, self, other) if _is_operand(other) else NotImplemented

    def __rmul__(self, other: Any, /) -> Array:
        return binary(ew.MULTIPLY, other, self) if _is_operand(other) else NotImplemented

    def __imul__(self, other: Any, /) -> Self:
        return self._in_place("*=", binary(ew.MULTIPLY, self, other)) if _is_operand(other) else NotImplemented

    def __truediv__(self, other: Any, /) -> Array:
        return binary(ew.DIVIDE, self, other) if _is_operand(other) else NotImplemented

    def __rtruediv__(self, other: Any, /) -> Array:
        return binary(ew.DIVIDE, other, self) if _is_operand(other) else NotImplemented

    def __itruediv__(self, other: Any, /) -> Self:
        return self._in_place("/=", binary(ew.DIVIDE, self, other)) if _is_operand(other) else NotImplemented

    def __floordiv__(self, other: Any, /) -> Array:
        return binary(ew.FLOOR_DIVIDE, self, other) if _is_operand(other) else NotImplemented

    def __rfloordiv__(self, other: Any, /) -> Array:
        return binary(ew.FLOOR_DIVIDE, other, self) if _is_operand(other) else NotImplemented

    def __ifloordiv__(self, other: Any, /) -> Self:
        return self._in_place("//=", binary(ew.FLOOR_DIVIDE, self, other)) if _is_operand(other) else NotImplemented

    def __mod__(self, other: Any, /) -> Array:
        return binary(ew.REMAINDER, self, other) if _is_operand(other) else NotImplemented

    def __rmod__(self, other: Any, /) -> Array:
        return binary(ew.REMAINDER, other, self) if _is_operand(other) else NotImplemented

    def __imod__(self, other: Any, /) -> Self:
        return self._in_place("%=", binary(ew.REMAINDER, self, other)) if _is_operand(other) else NotImplemented

    def __pow__(self, other: Any, /) -> Array:
        return binary(ew.POW, self, other) if _is_operand(other) else NotImplemented

    def __rpow__(self, other: Any, /) -> Array:
        return binary(ew.POW, other, self) if _is_operand(other) else NotImplemented

    def __ipow__(self, other: Any, /) -> Self:
        return self._in_place("**=", binary(ew.POW, self, other)) if _is_operand(other) else NotImplemented

    def __and__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_AND, self, other) if _is_operand(other) else NotImplemented

    def __rand__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_AND, other, self) if _is_operand(other) else NotImplemented

    def __iand__(self, other: Any, /) -> Self:
        return self._in_place("&=", binary(ew.BITWISE_AND, self, other)) if _is_operand(other) else NotImplemented

    def __or__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_OR, self, other) if _is_operand(other) else NotImplemented

    def __ror__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_OR, other, self) if _is_operand(other) else NotImplemented

    def __ior__(self, other: Any, /) -> Self:
        return self._in_place("|=", binary(ew.BITWISE_OR, self, other)) if _is_operand(other) else NotImplemented

    def __xor__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_XOR, self, other) if _is_operand(other) else NotImplemented

    def __rxor__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_XOR, other, self) if _is_operand(other) else NotImplemented

    def __ixor__(self, other: Any, /) -> Self:
        return self._in_place("^=", binary(ew.BITWISE_XOR, self, other)) if _is_operand(other) else NotImplemented

    def __lshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_LEFT_SHIFT, self, other) if _is_operand(other) else NotImplemented

    def __rlshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_LEFT_SHIFT, other, self) if _is_operand(other) else NotImplemented

    def __ilshift__(self, other: Any, /) -> Self:
        return (
            self._in_place("<<=", binary(ew.BITWISE_LEFT_SHIFT, self, other)) if _is_operand(other) else NotImplemented
        )

    def __rshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_RIGHT_SHIFT, self, other) if _is_operand(other) else NotImplemented

    def __rrshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_RIGHT_SHIFT, other, self) if _is_operand(other) else NotImplemented

    def __irshift__(self, other: Any, /) -> Self:
        return (
            self._in_place(">>=", binary(ew.BITWISE_RIGHT_SHIFT, self, other)) if _is_operand(other) else NotImplemented
        )

    def __matmul__(self, other: Any, /) -> Array:
        return matmul(self, other) if isinstance(other, Array) else NotImplemented

    def __rmatmul__(self, other: Any, /) -> Array:
        return matmul(other, self) if isinstance(other, Array) else NotImplemented

    def __imatmul__(self, other: Any, /) -> Self:
        return self._in_place("@=", matmul(self, other)) if isinstance(other, Array) else NotImplemented

    def __lt__(self, other: Any, /) -> Array:
        return binary(ew.LESS, self, other) if _is_operand(other) else NotImplemented

    def __le__(self, other: Any, /) -> Array:
        return binary(ew.LESS_EQUAL, self, other) if _is_operand(other) else NotImplemented

    def __gt__(self, other: Any, /) -> Array:
        return binary(ew.GREATER, self, other) if _is_operand(other) else NotImplemented

    def __ge__(self, other: Any, /) -> Array:
        return binary(ew.GREATER_EQUAL, self, other) if _is_operand(other) else NotImplemented

    def __eq__(self, other: object, /) -> Array:  # type: ignore[override]
        return binary(ew.EQUAL, self, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object, /) -> Array:  # type: ignore[override]
        return binary(ew.NOT_EQUAL, self, other) if _is_operand(other) else NotImplemented

    def _in_place(self, name: str, result: Array) -> Self:
        if result.shape != self.shape:
            raise ShapeError(f"{name}: the result has shape {result.shape}, the array {self.shape}")
        if result.dtype != self.dtype:
            if not np.can_cast(result.dtype, self.dtype, "same_kind"):
                raise DTypeError(f"{name}: the result is {result.dtype}, the array {self.dtype}")
            result = cast_to(result, self.dtype)
        replace(self, result)
        return self


Node.array_type = Array


def _is_operand(value: object) -> bool:
    return type(value) is Array or isinstance(value, _NUMBERS)


class _Waker:
    """Wakes a coroutine from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        self._loop = loop
        self._future = weakref.ref(future)

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed: nobody waits any more
            return

    def _wake(self) -> None:
        future = self._future()
        if future is not None and not future.done():
            future.set_result(None)
