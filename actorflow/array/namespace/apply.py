"""Operations of `actorflow.ops` on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.namespace.operate import cast, constant, elementwise, node_of, reduced
from actorflow.array.record.placement import home_of, transfer
from actorflow.array.record.primitives import VIEWS, DType, OperationPrimitive, exact_of, primitive_of
from actorflow.array.record.record import SEVERAL, Input, Record, parts_of, record
from actorflow.core import desk
from actorflow.errors import GraphError
from actorflow.ops.elementwise import WeightedSum
from actorflow.ops.linalg import Matmul
from actorflow.ops.linalg import matmul as product_of
from actorflow.ops.linalg import matrix_transpose as transpose_of
from actorflow.ops.operation import Operation, apply, inferred
from actorflow.ops.shaping import Reduction, Transpose
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: Types of an operation's results, and how arrays record it.
_Prepared = tuple[tuple[TensorSpec, ...], OperationPrimitive]


def applied(operation: Operation, inputs: Sequence[Any]) -> Any:
    """Record an operation of `actorflow.ops`.

    Args:
        operation: The operation.
        inputs: Arrays, at least one; numbers and NumPy arrays beside them are constants.
    Returns:
        Its result; a tuple of them for several.
    Raises:
        GraphError: as its ``infer`` does.
    """
    if operation.elementwise and type(operation) is not WeightedSum:
        return elementwise(operation, inputs)
    if isinstance(operation, Reduction) and operation.ufunc is not None:
        return reduced(type(operation), inputs[0], operation.axes(inputs[0].ndim), operation.keepdims)
    nodes: tuple[Input, ...] = (inputs[0]._node,) if len(inputs) == 1 else _nodes(operation, inputs)
    specs, primitive = prepared(operation, tuple([(node.shape, node.dtype) for node in nodes]))
    evaluator = nodes[0].evaluator if type(nodes[0]) is Record else None
    work = sum([node.size for node in nodes])
    params = primitive.again((), ())[1] if primitive.random else ()
    if len(specs) == 1:
        found = [record(primitive, nodes, *specs[0], params, evaluator, work)]
    else:
        found = parts_of(record(primitive, nodes, (), SEVERAL, params, evaluator, work)._node, specs)
    if primitive.random and desk.placing is not None:  # it was drawn on the CPU
        place = home_of(next(node for node in nodes if type(node) is Record))
        found = [transfer(x, place) for x in found]
    return found[0] if len(specs) == 1 else tuple(found)


def matmul(x1: Array, x2: Array, /) -> Array:
    """As `numpy.matmul`.

    Raises:
        ShapeError: if the lengths along which is summed differ, or an array is 0-d.
    Gradient: da = g @ b.H; db = a.H @ g; summed over axes that were broadcast.
    Example:
        >>> xp.matmul(xp.asarray([[1, 2], [3, 4]]), xp.asarray([1, 10]))
        Array([21, 43], dtype=int64)
    """
    found: Array | None = desk.product(x1, x2)
    if found is not None:
        return found
    kind = Record.array_type
    if type(x1) is not kind or type(x2) is not kind:
        return product_of(x1, x2)
    a, b = x1._node, x2._node
    if a.dtype != b.dtype:
        return product_of(x1, x2)
    (spec,), primitive = _made(Matmul, (), a.shape, a.dtype, b.shape, b.dtype)
    return record(primitive, (a, b), *spec, (), a.evaluator, a.size * (b.shape[-1] if len(b.shape) > 1 else 1))


def matrix_transpose(x: Array, /) -> Array:
    """The array with its last two axes exchanged.

    Raises:
        ShapeError: if there are fewer.

    Example:
        >>> xp.matrix_transpose(xp.asarray([[1, 2, 3]])).shape
        (3, 1)
    """
    rank = len(x._node.shape) if type(x) is Record.array_type else 0
    return applied_to(x, Transpose, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else transpose_of(x)


def applied_to(x: Array, make: Callable[..., Operation], *params: Any) -> Array:
    """Record an operation that reads one array, and is known by its class and parameters: the shortest way to do it.

    Raises:
        DTypeError: if ``x`` is not an array.
        GraphError: as the operation's ``infer`` does.
    """
    found: Array | None = desk.call(_at_once(make, params), x, is_view=True)
    if found is not None:
        return found
    node = x._node if type(x) is Record.array_type else node_of(make.__name__.lower(), "x", x)
    (spec,), primitive = _made(make, params, node.shape, node.dtype)
    return record(primitive, (node,), spec.shape, spec.dtype, (), node.evaluator, node.size)


@lru_cache(maxsize=4_096)
def _at_once(make: Callable[..., Operation], params: tuple[Any, ...]) -> Callable[..., Any] | None:
    """The one call of NumPy that computes a view; None for other operations, and wrong ones."""
    with suppress(Exception):
        return VIEWS[make](make(*params)) if make in VIEWS else None
    return None


def applied_to_all(xs: Sequence[Array], make: Any, *params: Any) -> Array:
    """The same for an operation that reads several arrays; any others are as for `applied`."""
    kind = Record.array_type
    nodes = tuple([x._node for x in xs if type(x) is kind])
    types: list[Any] = []
    work = 0
    for node in nodes:
        types += node.shape, node.dtype
        work += node.size
    if len(nodes) != len(xs) or not xs or (make.one_dtype and types.count(types[1]) != len(xs)):
        found: Array = apply(make(*params), *xs)
        return found
    (spec,), primitive = _made(make, params, *types)
    return record(primitive, nodes, spec.shape, spec.dtype, (), nodes[0].evaluator, work)


@lru_cache(maxsize=16_384)
def _made(make: Callable[..., Operation], params: tuple[Any, ...], *types: Any) -> _Prepared:
    """``types``: a shape and a dtype for each input, in turn."""
    return _prepare(make(*params), tuple(zip(types[::2], types[1::2], strict=True)))


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


def _prepare(operation: Operation, types: _Types) -> _Prepared:
    operation.check_arity(len(types))
    found = inferred(operation, [TensorSpec(*each) for each in types])
    if found is None:
        raise GraphError(f"{operation.kind} does not say what its outputs are: it cannot be applied to arrays")
    return found, primitive_of(operation, types[0][1], len(found))


_known = lru_cache(maxsize=4_096)(lambda operation, types, _exact: _prepare(operation, types))


def prepared(operation: Operation, types: _Types) -> _Prepared:
    """The types of an operation's results, and how arrays record it.

    Raises:
        GraphError: as its ``infer`` does.
    """
    try:
        return _known(operation, types, exact_of(operation))
    except TypeError:  # an array among its parameters, or an input of a wrong dtype: that is said again
        return _prepare(operation, types)
