"""`Array`, an array whose value may not have been computed yet."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Self, cast

import numpy as np

from actorflow import ops
from actorflow.array.namespace import functions, types
from actorflow.array.namespace.apply import applied, applied_to, read_index, recorded, unary, value_of, write_index
from actorflow.array.namespace.apply import cast as cast_to
from actorflow.array.namespace.creation import from_numpy
from actorflow.array.namespace.functions import matmul
from actorflow.array.record.placement import place_of, transfer
from actorflow.array.record.primitives import DType, Value, elementwise_primitive
from actorflow.array.record.record import HOST, Record, given, note_asked, replace
from actorflow.core import Holder, desk
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops import elementwise as ew
from actorflow.ops.operation import Operation
from actorflow.ops.operators import Methods
from actorflow.ops.rows import Elementwise
from actorflow.ops.shaping import Transpose
from actorflow.place import Place
from actorflow.spec import TensorSpec

_SQUARE = elementwise_primitive(ew.Square())
#: DLPack's number of the CPU.
_DLPACK_HOST = 1


_Operator = Callable[["Array", Any], "Array"]
_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


def _operators(
    name: str, symbol: str, kind: type[Elementwise]
) -> tuple[_Operator, _Operator, Callable[[Any, Any], Any]]:
    """The methods of an operator: with the array on the left, on the right, and in place."""
    op = elementwise_primitive(kind())
    at_once, over = op.loop.of_two, op.loop.onto

    def left(self: Array, other: Any, /) -> Array:
        found: Array | None = at_once(self, other)
        if found is not None:
            return found
        return recorded(op, self, other) if _is_operand(other) else NotImplemented

    def right(self: Array, other: Any, /) -> Array:
        found: Array | None = at_once(other, self)
        if found is not None:
            return found
        return recorded(op, other, self) if _is_operand(other) else NotImplemented

    def in_place(self: Array, other: Any, /) -> Array:
        if over(self, other):
            return self
        found = left(self, other)
        return self._in_place(symbol, found) if found is not NotImplemented else found

    for method, prefix in ((left, ""), (right, "r"), (in_place, "i")):
        method.__name__ = f"__{prefix}{name}__"
        method.__qualname__ = f"Array.{method.__name__}"
    return left, right, in_place


def _of_axis(function: Callable[..., Array]) -> Callable[..., Array]:
    """The method of a function over axes; NumPy's functions call it with options that are None."""

    def method(self: Array, axis: int | Sequence[int] | None = None, **options: Any) -> Array:
        return function(self, axis=axis, **{name: value for name, value in options.items() if value is not None})

    method.__name__ = function.__name__
    method.__qualname__ = f"Array.{method.__name__}"
    summary = (function.__doc__ or "").partition("\n")[0]
    method.__doc__ = f"{summary} See `actorflow.array.{method.__name__}`."
    return method


class Array(Holder, Methods["Array"]):
    """An n-dimensional array whose value is computed when it is needed.

    Arrays are made by the functions of this package (`asarray`, `zeros`, ...), not by calling the class. Operations
    return at once; shapes and dtypes are known and checked then. The value is computed when it is asked for:
    `to_numpy`, printing, ``bool()``, ``int()``, ``float()``, iterating over a 0-d result, DLPack, ``await``.

    Each array is a value of its own: assignment to a part of one never shows in another, not even in one that was made
    by indexing or reshaping it.

    The other operand of an operator is an array, a Python number, or an array of NumPy. ``x += y`` changes what ``x``
    shows; shape and dtype stay.
    Example:
        >>> x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> y = x[:, 0] * 10
        >>> x[0, 0] = 7  # shows in x alone
        >>> print(x.shape, x.dtype, y.to_numpy(), float(x.sum()))
        (2, 2) float64 [10. 30.] 16.0
        >>> import asyncio
        >>> async def total():
        ...     return await x.sum()  # the loop is free meanwhile
        >>> print(asyncio.run(total()))
        16.0
    """

    __slots__ = ()

    _node: Record

    def __new__(cls) -> Self:
        raise TypeError("arrays are made by functions: actorflow.array.asarray(...), zeros(...), ...")

    def apply_operation(self, operation: Operation, inputs: Sequence[Any], name: str | None) -> Any:
        """Record an operation of `actorflow.ops`; arrays have no names."""
        return applied(operation, inputs)

    def apply_reduction(self, kind: Any, axis: int | Sequence[int] | None, keepdims: bool, name: str | None) -> Any:
        """Record a reduction."""
        return functions.reduction(kind, self, axis, keepdims)

    def constant_like(self, value: Any, shape: tuple[int, ...] = ()) -> Array:
        """An array that is a number everywhere, of the dtype and on the device of this one."""
        node = self._node
        return given(np.full(shape, value, node.dtype), node.evaluator, place=node.place)

    def literal(self, value: Value) -> Array:
        """An array with this value, on the device of this one."""
        return given(value, self._node.evaluator, place=self._node.place)

    def new_seed(self) -> int:
        """A seed: the same for all arrays with values, where each call has random numbers of its own."""
        evaluator = self._node.evaluator
        evaluator.seeds += evaluator.dry_run
        return evaluator.seeds

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def spec(self) -> TensorSpec:  # type: ignore[override]
        """Shape and dtype."""
        return TensorSpec(self._node.shape, self._node.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self._node.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self._node.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self._node.size_bytes

    @property
    def device(self) -> Place:
        """Device where the value lives."""
        return self._node.place

    _reshaped = functions.reshape

    def _permuted(self, axes: tuple[int, ...]) -> Array:
        return applied_to(self, Transpose, axes)

    _module = "actorflow.array"
    sum, mean, prod, max, min, all, any, argmax, argmin = map(
        _of_axis,
        (ops.sum, ops.mean, ops.prod, ops.max, ops.min, ops.all, ops.any, ops.argmax, ops.argmin),
    )
    astype = types.astype

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        namespace: Any = sys.modules["actorflow.array"]
        if api_version not in (None, *namespace.API_VERSIONS):
            raise ValueError(f"api_version must be one of {', '.join(namespace.API_VERSIONS)}, got {api_version!r}")
        return namespace

    # -- asking for the value -----------------------------------------------------------------------------------

    def to_numpy(self) -> Value:
        """The value as a NumPy array, read-only, since other arrays may share its memory; ``.copy()`` makes it yours.

        Of an array on an accelerator it is a copy.

        Raises:
            OpError: if the computation failed; it names the line that recorded the operation.
            OutOfMemoryError: if it does not fit the session's budget.
        Example:
            >>> value = xp.sqrt(xp.asarray([1.0, 4.0])).to_numpy()
            >>> print(type(value).__name__, value, value.flags.writeable)
            ndarray [1. 2.] False
        """
        return _read_only(self._value())

    def wait(self) -> Self:
        """Compute the value where it lives, and return the array itself.

        Raises:
            OpError, OutOfMemoryError: as for `to_numpy`.
        Example:
            >>> x = xp.linalg.inv(xp.zeros((2, 2)))  # recorded, but not computed yet
            >>> try:
            ...     x.wait()
            ... except af.OpError as error:
            ...     print(str(error).splitlines()[0])
            op 'inv' (array operation) failed with LinAlgError: Singular matrix
        """
        _computed(self._node)
        return self

    def __await__(self) -> Generator[Any, None, Value]:
        """The value that it has now, as `to_numpy` gives it, computed off the event loop.

        A cancellation leaves it being computed; what is assigned to the array meanwhile makes no difference.
        """
        node = transfer(self, HOST)._node
        if not node.done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            waiting = weakref.ref(future)

            def wake() -> None:
                if (future := waiting()) is not None and not future.done():
                    future.set_result(None)

            def wake_from_any_thread() -> None:
                with suppress(RuntimeError):  # the loop was closed: nothing waits any more
                    loop.call_soon_threadsafe(wake)

            node.evaluator.when_done(node, wake_from_any_thread)
            yield from future
        return _read_only(_computed(node))

    def _value(self) -> Value:
        found: Value = _computed(self._node if self._node.place is HOST else transfer(self, HOST)._node)
        return found

    def _scalar(self, what: str) -> Any:
        if self._node.size != 1:
            raise ShapeError(f"{what}: expected an array of one element, got shape {self.shape}")
        value = self._value()
        return value.reshape(())[()] if value.ndim else value[()]

    def item(self) -> Any:
        """The value of an array of one element, as a Python number.

        Example:
            >>> xp.sum(xp.asarray([1, 2, 3])).item()
            6
        """
        return self._scalar("item()").item()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers; a number where there are no axes.

        Example:
            >>> xp.asarray([[1, 2], [3, 4]]).tolist()
            [[1, 2], [3, 4]]
        """
        return self._value().tolist()

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
        if self.size != 1:
            raise TypeError(f"an index must be an integer, got an array of shape {self.shape}")
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
        if self._node.evaluator.dry_run and self._node.value is None:
            return f"Array(shape={self.shape}, dtype={self.dtype})"
        text = np.array2string(self._value(), separator=", ", prefix="Array(")
        return f"Array({text}, dtype={self.dtype})"

    def __str__(self) -> str:
        if self._node.evaluator.dry_run:
            return repr(self)
        return str(self._value() if self.shape else self._value()[()])

    def __format__(self, spec: str) -> str:
        return format(self._scalar("format()"), spec) if spec and self.size == 1 else format(str(self), spec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Value:
        return np.array(self.to_numpy(), dtype=dtype, copy=copy)

    def __copy__(self, memo: Any = None) -> Array:
        return ew.copy(self)

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[Callable[..., Array], tuple[Value]]:
        return from_numpy, (self._value(),)

    # -- exchange -----------------------------------------------------------------------------------------------

    def to_device(self, device: Place | str, /, *, stream: Any = None) -> Array:
        """The array on a device: itself if it lives there, else a copy.

        Raises:
            PlaceError, DeviceUnavailableError: if there is no such device.
            GraphError: if a stream is given.
        Example:
            >>> x = xp.asarray([1.0, 2.0]).to_device("sim:0")
            >>> print(x.device, x.to_numpy())
            sim:0 [1. 2.]
        """
        if stream is not None:
            raise GraphError("to_device: streams are the devices' own, no other can be given")
        return transfer(self, place_of(device))

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Enum, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if self.device is not HOST and (dl_device is None or int(cast("Any", dl_device[0])) != _DLPACK_HOST):
            # No library marks memory of a device as read-only, so what it gets is its own.
            own = self if copy is False else ew.copy(self)
            wanted = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
            return _exporter(own).__dlpack__(**{name: value for name, value in wanted.items() if value is not None})
        value = self._value()
        if copy is not False:
            # A copy unless sharing is asked for: torch writes into memory that is marked as read-only.
            value = value.copy()
        elif max_version is not None and max_version >= (1, 0):
            value = _read_only(value)  # else the caller cannot be told that it must not write
        return value.__dlpack__(stream=stream, max_version=max_version, dl_device=cast("Any", dl_device))

    def __dlpack_device__(self) -> tuple[Any, int]:
        if self.device is not HOST:
            found: tuple[Any, int] = _exporter(self).__dlpack_device__()
            return found
        return np.empty(0).__dlpack_device__()

    # -- parts --------------------------------------------------------------------------------------------------

    _read = read_index

    def __setitem__(self, key: Any, value: Any, /) -> None:
        if type(value) not in _SIMPLE:
            value = value_of(value, self._node.dtype)
        if not desk.write(self, key, value):
            replace(self, write_index(self, key, value))

    # -- operators ----------------------------------------------------------------------------------------------

    __hash__ = None  # type: ignore[assignment]
    #: Operators between NumPy's arrays and this leave the work to this.
    __array_priority__ = 1_000.0

    def __pos__(self) -> Array:
        return ew.positive(self)

    __add__, __radd__, __iadd__ = _operators("add", "+=", ew.Sum)
    __sub__, __rsub__, __isub__ = _operators("sub", "-=", ew.Subtract)
    __mul__, __rmul__, __imul__ = _operators("mul", "*=", ew.Multiply)
    __truediv__, __rtruediv__, __itruediv__ = _operators("truediv", "/=", ew.Divide)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operators("floordiv", "//=", ew.FloorDivide)
    __mod__, __rmod__, __imod__ = _operators("mod", "%=", ew.Remainder)
    _power, __rpow__, __ipow__ = _operators("pow", "**=", ew.Power)

    def __pow__(self, other: Any, /) -> Array:  # a square is a function of its own for NumPy's operator, too
        is_square = type(other) is int and other == 2 and self._node.dtype.kind in "iufc"
        return unary(_SQUARE, self) if is_square else self._power(other)

    __and__, __rand__, __iand__ = _operators("and", "&=", ew.BitwiseAnd)
    __or__, __ror__, __ior__ = _operators("or", "|=", ew.BitwiseOr)
    __xor__, __rxor__, __ixor__ = _operators("xor", "^=", ew.BitwiseXor)
    __lshift__, __rlshift__, __ilshift__ = _operators("lshift", "<<=", ew.BitwiseLeftShift)
    __rshift__, __rrshift__, __irshift__ = _operators("rshift", ">>=", ew.BitwiseRightShift)

    __lt__, __le__ = _operators("lt", "<", ew.Less)[0], _operators("le", "<=", ew.LessEqual)[0]
    __gt__, __ge__ = _operators("gt", ">", ew.Greater)[0], _operators("ge", ">=", ew.GreaterEqual)[0]
    __eq__ = _operators("eq", "==", ew.Equal)[0]  # type: ignore[assignment]
    __ne__ = _operators("ne", "!=", ew.NotEqual)[0]  # type: ignore[assignment]

    def __matmul__(self, other: Any, /) -> Array:
        return matmul(self, other) if _is_matrix(other) else NotImplemented

    def __rmatmul__(self, other: Any, /) -> Array:
        return matmul(other, self) if _is_matrix(other) else NotImplemented

    def __imatmul__(self, other: Any, /) -> Self:
        return self._in_place("@=", self @ other) if _is_matrix(other) else NotImplemented

    def _in_place(self, name: str, result: Array) -> Self:
        node = self._node
        if result.shape != node.shape:
            raise ShapeError(f"{name}: the result has shape {result.shape}, the array {node.shape}")
        if result.dtype != node.dtype:
            if not np.can_cast(result.dtype, node.dtype, "same_kind"):
                raise DTypeError(f"{name}: the result is {result.dtype}, the array {node.dtype}")
            result = cast_to(result, node.dtype)
        replace(self, result)
        return self


Record.array_type = desk.array_type = Array
_SIMPLE = (Array, float, int)


def _read_only(value: Value) -> Value:
    view = value.view()
    view.flags.writeable = False
    return view


def _computed(node: Record) -> Any:
    """The value of a record, computed if it is not there: a NumPy array, or one of its device."""
    if desk.dry_runs:
        note_asked(node)
    if node.value is None:
        node.evaluator.force((node,))
        if node.error is not None:
            raise node.error.with_traceback(None)
        assert node.value is not None
    return node.value


def _exporter(array: Array) -> Any:
    """An array of a device, for other libraries; raises BufferError if the device's memory cannot be shared."""
    value = _computed(array._node)
    if not hasattr(value, "__dlpack__"):
        raise BufferError(f"memory of {array.device} cannot be shared by DLPack: copy it, x.to_device('cpu')")
    return value


def _is_matrix(value: object) -> bool:
    return type(value) is Record.array_type or isinstance(value, np.ndarray)


def _is_operand(value: object) -> bool:
    return type(value) is Record.array_type or isinstance(value, _NUMBERS)
