"""Operations on arrays, as the engine knows them; free of shapes and places."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, lru_cache, partial
from itertools import count
from operator import attrgetter, itemgetter, methodcaller
from sys import getrefcount
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.core import MOST_COPIED_BYTES, Loop, desk
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.indexing import Slice, numpy_key
from actorflow.ops.linalg import Matmul
from actorflow.ops.nn.activation import Sigmoid
from actorflow.ops.operation import Operation
from actorflow.ops.registry import find_kernel, load_library
from actorflow.ops.rows import Elementwise, of_ufunc
from actorflow.ops.shaping import Reduction, Reshape, Transpose
from actorflow.spec import TensorSpec

Value = npt.NDArray[Any]
DType = np.dtype[Any]
#: Elements that an operation touches from which on it is worth a thread of its own.
LARGE = 1 << 19
#: How many elements an elementwise operation touches in the time that one which is not prompt takes for one.
_WEIGHT = 16
#: Multiplications that take as long as one elementwise operation on one element.
_PRODUCTS = 64


class Primitive:
    """One operation on arrays.

    Args:
        name: Name of the function in the namespace.
        compute: Called with the inputs' values and the record's parameters; gives the result, which may be a view of
            an input or the input itself. It does not write into its inputs.
        pure: Whether equal inputs and parameters give equal results, so that it need not be computed twice.
        view: Whether the result of a single input is a view of it, which takes no time.
        prompt: Whether ``compute`` takes no longer than NumPy does, so that it may be called in any line.

    Attributes:
        into: Whether ``compute`` takes ``out``, a buffer for the result.
        over: How many of its first inputs ``out`` may be.
        threaded: Whether ``compute`` uses all cores by itself.
        loop: Computes it at once, if it is a function of one or two operands; None for others.
        turned: Of a product of two matrices, which of them are transposed; None for other operations.
        returns: Computes the same, and makes the array of the result; None if it does not always have its type.
        operation: The operation of graphs; None where they have none.
    """

    elementwise: ClassVar[bool] = False
    reduction: ClassVar[bool] = False
    into = threaded = False
    over = 0
    turned: tuple[bool, bool] | None = None
    operation: Any = None
    loop: Loop | None = None
    returns: Callable[..., Any] | None = None

    def __init__(
        self, name: str, compute: Callable[..., Any], *, pure: bool = True, view: bool = False, prompt: bool = False
    ) -> None:
        self.name = name
        self.compute = compute
        self.pure = pure
        self.view = view
        self.prompt = prompt

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def again(self, inputs: Any, params: Any) -> tuple[Any, Any]:
        """Inputs and parameters of another call, which has other random numbers."""
        return inputs, params

    def bound(self, params: Any, shape: tuple[int, ...]) -> Callable[..., Any] | None:
        """Computes the same from the inputs alone, an array of the recorded type; None if that is not one call."""
        return self.returns if shape else None

    def called(self, params: Any, shape: tuple[int, ...], dtype: DType) -> Callable[..., Any]:
        """Computes it from the inputs alone: an array of the recorded type, or several."""
        bound = self.bound(params, shape)
        if bound is not None:
            return bound
        if self.into:

            def into(*inputs: Any) -> Any:
                out = np.empty(shape, dtype)
                self.compute(*inputs, *params, out=out)
                return out

            return into
        return lambda *inputs: as_recorded(self.compute(*inputs, *params), shape, dtype)


def as_recorded(found: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Result of an operation, checked to be of the type that was recorded; several results are returned as they are."""
    if type(found) is tuple or (type(found) is np.ndarray and found.dtype == dtype and found.shape == shape):
        return found
    found = np.asarray(found)
    if found.shape != shape:
        raise ShapeError(f"recorded as shape {shape}, computed as {found.shape}")
    if found.dtype != dtype:
        raise DTypeError(f"recorded as dtype {dtype}, computed as {found.dtype}")
    return found


def copied(value: Any) -> Any:
    """A copy of an array, or of several; of the same order in memory."""
    return tuple(map(copied, value)) if type(value) is tuple else value.copy("K")


def _calibrate() -> int:
    view = np.empty(2)[:1]
    base = view.base
    return getrefcount(base)


_IN_VIEW = _calibrate()


def compact(value: Any, always: bool = False) -> Any:
    """A value; of a view that alone keeps more than twice its memory, or of a small part of an array, a copy."""
    base = value.base if type(value) is np.ndarray else None
    if base is None or value.nbytes * 2 >= getattr(base, "nbytes", 0):
        return value
    return value.copy() if always or value.nbytes < MOST_COPIED_BYTES or getrefcount(base) <= _IN_VIEW else value


def touched(op: Primitive, inputs: Sequence[Any], size: int) -> int:
    """About how many elements an elementwise operation would touch in the time that one takes on the host."""
    if op.elementwise:
        return size
    if op.reduction:
        return int(inputs[0].size)
    if op.view and len(inputs) == 1:
        return 1
    if op.threaded:  # m * k * n of matrices, or vectors, of m * k, k * n and m * n elements
        return int((inputs[0].size * inputs[1].size * size) ** 0.5) // _PRODUCTS
    return (1 if op.prompt else _WEIGHT) * int(sum([each.size for each in inputs]) + size)


#: One of the results of an operation with several, whose value is a tuple.
PART = Primitive("part", lambda parts, i: parts[i], view=True)


class _Logistic:
    """The logistic function at once, by the loops of the functions that its kernel calls."""

    def __init__(self) -> None:
        self._loops = [Loop(function) for function in (np.negative, np.exp, np.add, np.divide)]

    def of_one(self, x: Any) -> Any:
        """The result for an array of single or double precision."""
        negative, exp, add, divide = self._loops
        if desk.there(x) is None or x.dtype.char not in "fd":
            return None
        return divide.of_two(1.0, add.of_two(exp.of_one(negative.of_one(x)), 1.0))


class ElementwisePrimitive(Primitive):
    """An elementwise operation, with the dtypes of its NumPy function, or those that its row says.

    Attributes:
        dtype: Gives the dtype of the result for those of the inputs; raises DTypeError if it has none.
    """

    elementwise = into = True

    def __init__(self, operation: Elementwise) -> None:
        self.operation = operation
        self.over = 3 if operation.aligned else 0
        self.dtype: Callable[..., DType] = cache(self._dtype)
        ufunc: np.ufunc | None = None  # that gives the same, of the same dtypes
        if isinstance(operation.function, np.ufunc) and operation.types is None and not operation.parameters:
            ufunc = operation.function
            self.returns = partial(ufunc, order="C")
        self.loop: Any = _Logistic() if type(operation) is Sigmoid else Loop(ufunc)
        super().__init__(
            operation.function_name, operation.into if operation.function else self._by_kernel, prompt=True
        )

    def _by_kernel(self, *inputs: Any, out: Value) -> None:
        load_library("cpu", "numpy")
        operation = self.operation
        function = find_kernel(operation, "cpu", inputs[0].dtype).function

        def compute(*inputs: Any, out: Value) -> None:
            function(operation, inputs, [out])

        self.compute = compute
        compute(*inputs, out=out)

    def _dtype(self, *dtypes: DType) -> DType:
        operation = self.operation
        types = operation.types or (of_ufunc(operation.function) if isinstance(operation.function, np.ufunc) else None)
        if types is None:
            found: DType = operation.infer(*[TensorSpec((), dtype) for dtype in dtypes])[0].dtype
            return found
        try:
            found = types(*dtypes)
        except TypeError as error:
            names = " and ".join(str(dtype) for dtype in dtypes)
            raise DTypeError(f"{self.name}: no such operation on {names}") from error
        return found


@cache
def _inexact(kind: Any) -> Callable[[Operation], Any] | None:
    names = [field.name for field in fields(kind) if re.search("float|complex|Any|object", str(field.type))]
    return attrgetter(*names) if names else None


def exact_of(operation: Operation) -> str:
    """Text for a key beside an operation: equal ones may compute other results, as zeros of both signs are equal."""
    kind: Any = type(operation)
    inexact = _inexact(kind)
    return "" if inexact is None else repr(inexact(operation))


#: By class, for operations without parameters, whose values need not be hashed.
_by_class: dict[type[Elementwise], ElementwisePrimitive] = {}
_by_value = lru_cache(maxsize=4_096)(lambda operation, _exact: ElementwisePrimitive(operation))


def elementwise_primitive(operation: Elementwise) -> ElementwisePrimitive:
    """The primitive of an elementwise operation, the same one for equal operations."""
    kind = type(operation)
    found = _by_class.get(kind)
    if found is None:
        if operation.parameters:
            return _by_value(operation, exact_of(operation))
        found = _by_class[kind] = ElementwisePrimitive(operation)
    return found


class ReductionPrimitive(Primitive):
    """A reduction by a ufunc; it ends a chain of elementwise operations in the same pass.

    Its parameters are the axes, None for all, ``keepdims``, and the dtype in which sums and products are formed.
    """

    reduction = True

    def __init__(self, operation: Reduction) -> None:
        super().__init__(operation.function_name, lambda x, *params: self.of_all(params)(x), prompt=True)
        self.operation = operation

    def bound(self, params: Any, shape: tuple[int, ...]) -> Callable[..., Any] | None:
        return self.of_all(params) if shape else None

    def of_all(self, params: Any) -> Callable[..., Any]:
        """Computes it from an array alone; gives a number where no axis is left."""
        axes, keepdims, dtype = params
        axis = axes[0] if axes is not None and len(axes) == 1 else axes  # NumPy is slower with a tuple, and with all
        return partial(self.operation.ufunc.reduce, axis=axis, keepdims=keepdims, dtype=dtype)


@lru_cache(maxsize=4_096)
def reduction_primitive(kind: Any, axes: tuple[int, ...], keepdims: bool) -> ReductionPrimitive:
    """The primitive of a reduction, the same one for equal reductions."""
    return ReductionPrimitive(kind(axes, keepdims))


_calls = count()


class OperationPrimitive(Primitive):
    """An operation of `actorflow.ops` with a first input of some dtype, computed by its kernel for the CPU."""

    random = False

    def __init__(self, operation: Operation, dtype: DType, outputs: int) -> None:
        quick = view_of(operation)
        compute = quick or operation.compute
        super().__init__(operation.function_name, compute, view=operation.is_view)
        self.operation = operation
        if operation.is_view:
            self.returns = quick
            self.prompt = type(operation).compute.__module__.startswith("actorflow.")
            return
        load_library("cpu", "numpy")
        kernel = find_kernel(operation, "cpu", dtype)
        self.random, self.pure = kernel.random, not kernel.random
        self.prompt = kernel.threaded or type(operation).__module__ in _BRIEF
        self._outputs = outputs
        self._call = partial(_of_stream, kernel.function) if kernel.random else kernel.function
        self._call = partial(self._call, operation)
        if kernel.returns:
            self.compute = self._compute_returned
        elif outputs > 1:
            self.compute = self._compute_several
        else:
            self.compute, self.into, self.over = self._compute_into, True, int(operation.writes_over)
            self.threaded = kernel.threaded
            if isinstance(operation, Matmul) and not operation.batch:
                self.turned = operation.transpose_a, operation.transpose_b

    def _compute_into(self, *inputs: Any, out: Value) -> None:
        self._call([*inputs], [out])

    def _compute_returned(self, *inputs: Any) -> Any:
        found = self._call([*inputs], None)
        if len(found) != self._outputs:
            raise GraphError(f"the kernel must return {self._outputs} values, got {len(found)}")
        return found[0] if self._outputs == 1 else tuple(found)

    def _compute_several(self, *inputs: Any) -> tuple[Value, ...]:
        read = inputs[:-1] if self.random else inputs
        found = [np.empty(*spec) for spec in self.operation.infer(*[TensorSpec(x.shape, x.dtype) for x in read])]
        self._call([*inputs], found)
        return tuple(found)

    def again(self, inputs: Any, params: Any) -> tuple[Any, Any]:
        return inputs, ((next(_calls),) if self.random else params)


#: Modules whose operations take as long for each element as those on elements do.
_BRIEF = frozenset(f"actorflow.ops.{name}" for name in ("indexing", "reductions", "shaping"))
#: Views that one call of the interpreter's own makes.
_VIEWS: dict[type[Operation], Callable[[Any], Callable[..., Any]]] = {
    Slice: lambda operation: itemgetter(numpy_key(operation.key)),
    Transpose: lambda operation: methodcaller("transpose", operation.axes),
    Reshape: lambda operation: methodcaller("reshape", operation.shape),
}


def view_of(operation: Operation) -> Callable[[Any], Any] | None:
    """The one call that makes the view that an operation is; None for others."""
    make = _VIEWS.get(type(operation))
    return None if make is None else make(operation)


def _of_stream(function: Callable[..., Any], operation: Operation, inputs: list[Any], outputs: Any) -> Any:
    """Call a random kernel; the last input is the number of its stream."""
    return function(operation, inputs[:-1], outputs, inputs[-1])


class Numbered(Primitive):
    """A random operation that is given its parameters, among them the number of the call, before what it reads."""

    def __init__(self, op: Primitive, shape: tuple[int, ...], dtype: DType) -> None:
        self.numbered = op.operation
        super().__init__(op.name, lambda params, *inputs: op.called(params, shape, dtype)(*inputs), pure=False)
