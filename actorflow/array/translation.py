"""Records as ops of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.array import indexing, linear, manipulation, statistical
from actorflow.array import ufuncs as ew
from actorflow.array.creation import FULL
from actorflow.array.lifting import GraphOperation
from actorflow.array.operate import CAST
from actorflow.array.primitives import PART, Primitive, Value
from actorflow.array.records import Node
from actorflow.errors import GraphError
from actorflow.graph import Graph
from actorflow.node import Blob
from actorflow.spec import TensorSpec

__all__ = ["translate"]

_Rule = Callable[..., Any]


def translate(graph: Graph, node: Node, inputs: list[Any]) -> Any:
    """An op for a record.

    Args:
        graph: Where it is made.
        node: The record.
        inputs: Its inputs: blobs, and NumPy arrays that are constants.
    Returns:
        The blob of its result; a tuple for an operation with several.
    """
    op = node.op
    assert op is not None
    if op is PART and isinstance(inputs[0], tuple):
        return inputs[0][node.params[0]]
    if isinstance(op, GraphOperation):
        return graph.apply(op.operation, *inputs)
    if op is FULL:
        spec = TensorSpec(node.shape, node.dtype)
        return (
            graph.apply(ops.Fill(inputs[0].item(), spec)) if node.dtype.kind == "f" else _as_variable(graph, node, op)
        )
    rule = _RULES.get(op)
    if rule is not None and any(isinstance(each, Blob) for each in inputs):
        try:
            return rule(node, *_of_one_dtype(op, inputs))
        except GraphError:  # there is no such op for these shapes or dtypes
            return _as_function(graph, node, inputs)
    return _as_function(graph, node, inputs)


def _of_one_dtype(op: Primitive, inputs: list[Any]) -> list[Any]:
    """Inputs as the ops want them: blobs of one dtype, and Python numbers."""
    if not op.elementwise or op is CAST:
        return inputs
    free = 1 if op is ew.WHERE else 0  # the condition
    kind = np.result_type(*[each.dtype for each in inputs[free:]])
    found = inputs[:free]
    for each in inputs[free:]:
        if isinstance(each, Blob):
            found.append(each if each.dtype == kind else ops.cast(each, kind))
        else:
            found.append(each.item() if each.ndim == 0 else each)
    return found


def _as_function(graph: Graph, node: Node, inputs: list[Any]) -> Any:
    op, params, spec = node.op, node.params, TensorSpec(node.shape, node.dtype)
    assert op is not None
    positions = [i for i, each in enumerate(inputs) if isinstance(each, Blob)]

    def compute(*values: Value) -> Any:
        arguments = list(inputs)
        for i, value in zip(positions, values, strict=True):
            arguments[i] = value
        return _call(op, arguments, params, spec)

    if not positions:
        return _as_variable(graph, node, op)
    function = graph.function(graph.unique_name(op.name), compute, outputs=spec)
    return function(*[inputs[i] for i in positions])


def _as_variable(graph: Graph, node: Node, op: Primitive) -> Blob:
    """What is made of constants alone."""
    value = _call(op, [*node.inputs], node.params, TensorSpec(node.shape, node.dtype))
    return graph.variable(graph.unique_name(op.name), node.shape, node.dtype, init=value)


def _call(op: Primitive, arguments: list[Any], params: tuple[Any, ...], spec: TensorSpec) -> Any:
    with np.errstate(all="ignore"):
        if op.elementwise or op.into:
            out = np.empty(spec.shape, spec.dtype)
            op.compute(*arguments, *params, out=out)
            return out
        if op.owns:
            return op.compute(*arguments, *params, owned=False)
        return op.compute(*arguments, *params)


def _direct(function: _Rule) -> _Rule:
    return lambda _, *inputs: function(*inputs)


def _reduction(function: _Rule) -> _Rule:
    return lambda node, x: function(x, axis=node.params[0], keepdims=node.params[1])


def _index(node: Node, x: Blob, *arrays: Blob) -> Blob:
    if arrays:
        raise GraphError("index arrays have no op")
    return ops.slice(x, indexing.key_of(node.params[0], ()))


def _matmul(_: Node, a: Blob, b: Blob) -> Blob:
    if min(len(a.shape), len(b.shape)) < 2:
        raise GraphError("products of vectors have no op")
    return ops.matmul(a, b)


_RULES: dict[Primitive, _Rule] = {
    **{
        primitive: _direct(function)
        for primitive, function in (
            (ew.ADD, ops.add),
            (ew.SUBTRACT, ops.subtract),
            (ew.MULTIPLY, ops.multiply),
            (ew.DIVIDE, ops.divide),
            (ew.MAXIMUM, ops.maximum),
            (ew.MINIMUM, ops.minimum),
            (ew.POW, ops.power),
            (ew.NEGATIVE, ops.negative),
            (ew.ABS, ops.absolute),
            (ew.EXP, ops.exp),
            (ew.LOG, ops.log),
            (ew.SQRT, ops.sqrt),
            (ew.SQUARE, ops.square),
            (ew.TANH, ops.tanh),
            (ew.RECIPROCAL, ops.reciprocal),
            (ew.SIGN, ops.sign),
            (ew.CEIL, ops.ceil),
            (ew.FLOOR, ops.floor),
            (ew.ROUND, ops.round),
            (ew.EQUAL, ops.equal),
            (ew.NOT_EQUAL, ops.not_equal),
            (ew.LESS, ops.less),
            (ew.LESS_EQUAL, ops.less_equal),
            (ew.GREATER, ops.greater),
            (ew.GREATER_EQUAL, ops.greater_equal),
            (ew.LOGICAL_AND, ops.logical_and),
            (ew.LOGICAL_OR, ops.logical_or),
            (ew.LOGICAL_XOR, ops.logical_xor),
            (ew.LOGICAL_NOT, ops.logical_not),
            (ew.WHERE, ops.where),
            (ew.COPY, ops.copy),
        )
    },
    **{
        primitive: _reduction(function)
        for primitive, function in (
            (statistical.SUM, ops.sum),
            (statistical.PROD, ops.prod),
            (statistical.MAX, ops.max),
            (statistical.MIN, ops.min),
            (statistical.ALL, ops.all),
            (statistical.ANY, ops.any),
            (statistical.ARGMAX, ops.argmax),
            (statistical.ARGMIN, ops.argmin),
        )
    },
    CAST: lambda node, x: ops.cast(x, node.dtype),
    indexing.READ: _index,
    indexing.TAKE: lambda node, x, indices: ops.take(x, indices, axis=node.params[0]),
    indexing.TAKE_ALONG: lambda node, x, indices: ops.take_along_axis(x, indices, axis=node.params[0]),
    linear.MATMUL: _matmul,
    manipulation.RESHAPE: lambda node, x: ops.reshape(x, node.shape),
    manipulation.PERMUTE: lambda node, x: ops.transpose(x, node.params[0]),
    manipulation.BROADCAST: lambda node, x: ops.broadcast_to(x, node.shape),
    manipulation.FLIP: lambda node, x: ops.flip(x, node.params[0]),
    manipulation.CONCAT: lambda node, *parts: ops.concat(parts, axis=node.params[0]),
    manipulation.STACK: lambda node, *parts: ops.stack(parts, axis=node.params[0]),
}
