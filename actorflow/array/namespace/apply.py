"""Recording of operations: operands, broadcasting, axes, dtypes, parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial, reduce
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.array.record.placement import default_place, home_of, transfer
from actorflow.array.record.primitives import (
    DType,
    ElementwisePrimitive,
    OperationPrimitive,
    ReductionPrimitive,
    Value,
    elementwise_primitive,
    exact_of,
    reduction_primitive,
    view_of,
)
from actorflow.array.record.record import HOST, SEVERAL, Input, Record, given, parts_of, record
from actorflow.core import desk
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import Cast, WeightedSum
from actorflow.ops.indexing import Key, Scatter, Take, numpy_key, parsed, part_shape, read
from actorflow.ops.linalg import Matmul
from actorflow.ops.operation import Operation, axes_of, inferred
from actorflow.ops.shaping import Reduction
from actorflow.spec import TensorSpec, broadcast_shapes, integers

if TYPE_CHECKING:
    from actorflow.array.array import Array

_COMPARISONS = frozenset({"equal", "greater", "greater_equal", "less", "less_equal", "not_equal"})
_SAMPLES = {bool: True, int: 1, float: 1.0, complex: 1j}


def node_of(name: str, argument: str, x: object) -> Record:
    """The record that an array shows; DTypeError, which names the argument, if it is not an array."""
    if type(x) is Record.array_type:
        return x._node
    raise DTypeError(f"{name}: {argument} must be an array of actorflow.array, got {type(x).__name__}")


def constant(name: str, value: object, dtype: DType) -> Value:
    """A Python number beside an array: it takes the array's dtype, unless it is of a higher kind.

    Raises:
        DTypeError: if it is not a number.
        OverflowError: if an integer does not fit, and it is not only compared.
    """
    kind: Any = type(value)
    if kind not in _SAMPLES:
        if isinstance(value, np.ndarray | np.generic):
            if value.dtype.kind not in "biufc":
                raise DTypeError(f"{name}: expected booleans or numbers, got {value.dtype}")
            return np.array(value)
        kind = next((base for base in _SAMPLES if isinstance(value, base)), None)  # as of an enum
        if kind is None:
            raise DTypeError(f"{name}: expected arrays and numbers, got {type(value).__name__}")
    try:
        plain = kind(value)
        return _number(plain, kind, dtype, "" if kind is int else repr(plain))
    except OverflowError:
        if name in _COMPARISONS and dtype.kind in "iub":  # as NumPy does: it is beyond all that there can be
            return np.array(np.inf if value > 0 else -np.inf)  # type: ignore[operator]
        raise


@lru_cache(maxsize=4_096)
def _number(value: Any, kind: type, dtype: DType, _text: str) -> Value:  # as keys, zeros of both signs are equal
    found = value_of(value, np.result_type(dtype, _SAMPLES[kind]))
    found.flags.writeable = False
    return found


def value_of(value: Any, dtype: npt.DTypeLike | None) -> Value:
    """Python numbers, or nested sequences of them, as an array; floats beyond a dtype are infinities, not warned of."""
    with np.errstate(all="ignore"):
        return np.array(value, dtype)


def pair(name: str, x1: Any, x2: Any) -> tuple[Input, Input]:
    """Two operands, arrays, or one of them a number, which is as for `constant`."""
    if type(x1) is Record.array_type:
        one = x1._node
        return one, x2._node if type(x2) is Record.array_type else constant(name, x2, one.dtype)
    other = node_of(name, "one of the arguments", x2)
    return constant(name, x1, other.dtype), other


@lru_cache(maxsize=4_096)
def broadcast(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(f"{name}: shapes {', '.join(map(str, shapes))} do not broadcast") from None


def unary(op: ElementwisePrimitive, x: Array) -> Array:
    """Record an operation on each element of an array."""
    node = node_of(op.name, "x", x)
    found: Array | None = op.loop.of_one(x)
    if found is not None:
        return found
    return record(op, (node,), node.shape, op.dtype(node.dtype), (), node.evaluator)


def binary(op: ElementwisePrimitive, x1: Any, x2: Any) -> Array:
    """Record an operation on each pair of elements; one of the two may be a number."""
    found: Array | None = op.loop.of_two(x1, x2)
    return recorded(op, x1, x2) if found is None else found


def recorded(op: ElementwisePrimitive, x1: Any, x2: Any) -> Array:
    """The same, where that is not computed at once."""
    a, b = pair(op.name, x1, x2)
    shape = a.shape if a.shape == b.shape else broadcast(op.name, a.shape, b.shape)
    return record(op, (a, b), shape, op.dtype(a.dtype, b.dtype))


def cast(x: Array, dtype: DType) -> Array:
    """The array with elements of another dtype; itself if it has it."""
    if x._node.dtype == dtype:
        return x
    found: Array | None = None
    if dtype.kind not in "iu" or x._node.dtype.kind not in "fV":  # as an integer, what is too large is the nearest one
        found = desk.call(methodcaller("astype", dtype, "C"), x, is_view=False)
    return unary(elementwise_primitive(Cast(dtype)), x) if found is None else found


def elementwise(operation: Any, inputs: Sequence[Any]) -> Array:
    """Record an elementwise operation on arrays, at least one, and numbers."""
    if type(operation) is Cast:
        return cast(inputs[0], operation.dtype)
    op, count = elementwise_primitive(operation), len(inputs)
    if count == 2:
        return binary(op, *inputs)
    if count == 1:
        x: Array = inputs[0]  # a sum of one
        return x if operation.arguments[0][0] == "*" else unary(op, x)
    if operation.conditions:
        return _chosen(op, *inputs)
    found: Array = reduce(partial(binary, op), inputs)
    return found


def _chosen(op: ElementwisePrimitive, condition: Any, x1: Any, x2: Any) -> Array:
    which = node_of(op.name, "condition", condition)
    if which.dtype != np.bool_:
        raise DTypeError(f"{op.name}: condition must be bool, got {which.dtype}")
    if Record.array_type in (type(x1), type(x2)):
        one, other = pair(op.name, x1, x2)
    else:
        kind = np.result_type(x1, x2)
        one, other = value_of(x1, kind), value_of(x2, kind)
    shape = broadcast(op.name, which.shape, one.shape, other.shape)
    return record(op, (which, one, other), shape, op.dtype(which.dtype, one.dtype, other.dtype))


@lru_cache(maxsize=4_096)
def _reduction(
    kind: Any, axis: int | tuple[int, ...] | None, keepdims: bool, shape: tuple[int, ...], dtype: DType
) -> tuple[ReductionPrimitive, tuple[int, ...], DType, tuple[Any, ...], Callable[..., Any] | None]:
    """The primitive of a reduction, shape and dtype of its result, its parameters, and what computes it at once."""
    axes = axes_of(kind.function_name, axis, len(shape))
    op = reduction_primitive(kind, axes, keepdims)
    [spec] = op.operation.infer(TensorSpec(shape, dtype))
    params = None if len(axes) == len(shape) else axes, keepdims, spec.dtype
    return op, spec.shape, spec.dtype, params, op.of_all(params)


def reduced(kind: type[Reduction], x: Array, axis: int | Sequence[int] | None, keepdims: bool) -> Array:
    """Record a reduction by a ufunc."""
    node = node_of(kind.function_name, "x", x)
    if axis is not None and type(axis) is not int:
        axis = integers(axis)
    keepdims = bool(keepdims)
    op, shape, dtype, params, bound = _reduction(kind, axis, keepdims, node.shape, node.dtype)  # type: ignore[arg-type]
    found: Array | None = desk.call(bound, x, is_view=False)
    return record(op, (node,), shape, dtype, params, node.evaluator, node.size) if found is None else found


# -- operations -------------------------------------------------------------------------------------------------


def applied(operation: Operation, inputs: Sequence[Any]) -> Any:
    """Record an operation of `actorflow.ops`; gives its result, a tuple of them for several.

    Args:
        inputs: Arrays, at least one; numbers and NumPy arrays beside them are constants.
    """
    if operation.elementwise and type(operation) is not WeightedSum:
        return elementwise(operation, inputs)
    if isinstance(operation, Reduction) and operation.ufunc is not None:
        return reduced(type(operation), inputs[0], operation.axes(inputs[0].ndim), operation.keepdims)
    nodes: tuple[Input, ...] = (inputs[0]._node,) if len(inputs) == 1 else _nodes(operation, inputs)
    specs, primitive = prepared(operation, tuple([(node.shape, node.dtype) for node in nodes]))
    evaluator = nodes[0].evaluator if type(nodes[0]) is Record else None
    work = sum([node.size for node in nodes])
    if type(operation) is Matmul and specs[0].shape:
        work *= specs[0].shape[-1]
    params = primitive.again((), ())[1] if primitive.random else ()
    if len(specs) == 1:
        found = [record(primitive, nodes, *specs[0], params, evaluator, work)]
    else:
        found = parts_of(record(primitive, nodes, (), SEVERAL, params, evaluator, work)._node, specs)
    if primitive.random and desk.placing is not None:  # it was drawn on the CPU
        place = home_of(next(node for node in nodes if type(node) is Record))
        found = [transfer(x, place) for x in found]
    return found[0] if len(specs) == 1 else tuple(found)


def applied_to(x: Array, make: Callable[..., Operation], *params: Any) -> Array:
    """Record an operation that reads one array, and is known by its class and parameters: the shortest way to do it."""
    operation, at_once = _made(make, params)
    found: Array | None = desk.call(at_once, x, is_view=True)
    if found is None:
        node_of(operation.function_name, "x", x)
        found = applied(operation, (x,))
    return found


@lru_cache(maxsize=4_096)
def _made(make: Any, params: tuple[Any, ...]) -> tuple[Operation, Callable[..., Any] | None]:
    """An operation, and the one call of NumPy that computes it, if it is a view and right."""
    operation = make(*params)
    with suppress(Exception):
        return operation, view_of(operation)
    return operation, None


def _nodes(operation: Operation, inputs: Sequence[Any]) -> tuple[Input, ...]:
    kind = Record.array_type
    like = next(each for each in inputs if type(each) is kind)._node.dtype
    nodes = [each._node if type(each) is kind else constant(operation.function_name, each, like) for each in inputs]
    if operation.one_dtype and [node for node in nodes if node.dtype != like]:
        wanted = np.result_type(*[node.dtype for node in nodes])
        pairs = zip(inputs, nodes, strict=True)
        return tuple(
            [node.astype(wanted) if isinstance(node, np.ndarray) else cast(x, wanted)._node for x, node in pairs]
        )
    return tuple(nodes)


#: Shapes and dtypes of an operation's inputs.
_Types = tuple[tuple[tuple[int, ...], DType], ...]


def _prepare(operation: Operation, types: _Types) -> tuple[tuple[TensorSpec, ...], OperationPrimitive]:
    operation.check_arity(len(types))
    found = inferred(operation, [TensorSpec(*each) for each in types])
    if found is None:
        raise GraphError(f"{operation.kind} does not say what its outputs are: it cannot be applied to arrays")
    return found, OperationPrimitive(operation, types[0][1], len(found))


_known = lru_cache(maxsize=4_096)(lambda operation, types, _exact: _prepare(operation, types))


def prepared(operation: Operation, types: _Types) -> tuple[tuple[TensorSpec, ...], OperationPrimitive]:
    """The types of an operation's results, and how arrays record it."""
    try:
        return _known(operation, types, exact_of(operation))
    except TypeError:  # an array among its parameters, or an input of a wrong dtype: that is said again
        return _prepare(operation, types)


# -- parts ------------------------------------------------------------------------------------------------------


def read_index(x: Array, key: Any) -> Array:
    """``x[key]``. A mask's result has a shape that depends on values: it is computed at once.

    A single element of an array whose value is there is read at once, too: to record and plan that would take longer.
    """
    node = x._node
    parts = key if type(key) is tuple else (key,)
    is_there = type(node.value) is np.ndarray and default_place() is HOST and not desk.dry_runs
    if is_there and len(parts) == len(node.shape) and {*map(type, parts)} == {int} and not node.evaluator.sequential:
        return given(np.array(node.value[parts]), node.evaluator)  # type: ignore[index]
    if type(key) is Record.array_type and key.dtype.kind in "iu" and key.shape and node.shape:
        found: Array = applied(Take(0), (x, key))
        return found
    fixed, indices = _parsed(parts, len(node.shape))
    if any(each.dtype.kind == "b" for each in indices):
        values = [each._value() if type(each) is Record.array_type else each for each in indices]
        if not node.evaluator.dry_run:
            return given(np.array(x._value()[numpy_key(fixed, values)]), node.evaluator, place=node.place)
        indices = values
    return read(x, fixed, indices)


def write_index(x: Array, key: Any, value: Any) -> Array:
    """The array after ``x[key] = value``."""
    node = x._node
    fixed, indices = _parsed(key if type(key) is tuple else (key,), len(node.shape))
    part_shape("setitem", node.shape, fixed, indices)
    if type(value) is Record.array_type:
        if not np.can_cast(value.dtype, node.dtype, "same_kind"):
            raise DTypeError(f"assignment: expected {node.dtype}, got {value.dtype}")
        written: Input = cast(value, node.dtype)._node
    else:
        written = value_of(value, node.dtype)
    inputs = (node, written, *[each._node if type(each) is Record.array_type else each for each in indices])
    _, primitive = prepared(Scatter(fixed), tuple([(each.shape, each.dtype) for each in inputs]))
    return record(primitive, inputs, node.shape, node.dtype, (), node.evaluator)


def _parsed(parts: tuple[Any, ...], rank: int) -> tuple[Key, list[Any]]:
    """A key with arrays; of integers whose values are there, single ones are plain integers."""
    kind = Record.array_type
    known = [type(p) is kind and p.dtype.kind in "iu" and not p.shape and p._node.done for p in parts]
    found = parsed("getitem", tuple([int(p) if now else p for p, now in zip(parts, known, strict=True)]), rank)
    for index in found[1]:
        if index.dtype.kind not in "iub":
            raise IndexError(f"an index must be of integers or bools, got an array of {index.dtype}")
    return found
