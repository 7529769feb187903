"""Records as ops of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.array.namespace.creation import FULL, RANDB, RANDN
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART, Primitive
from actorflow.array.record.record import OpStep, Record, site_of
from actorflow.array.transforms.recipe import needed
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.ops.fills import Constant
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec


def translate_all(
    graph: Graph,
    results: Sequence[Record],
    known: dict[Record, Any],
    first: int,
    capture: Callable[[Record], Blob] | None = None,
) -> None:
    """Ops for all that results need.

    Args:
        graph: Where they are made.
        results: Records that are wanted.
        known: Blobs of records, to which those of all others are added.
        first: Records with lower numbers were there before the tracing began.
        capture: Makes a blob for such a one.
    """
    nodes, before = needed(results, [*known], first)
    for node in before:
        assert capture is not None
        known[node] = capture(node)
    for node in nodes:
        known[node] = translate(graph, node, [_input(each, known) for each in node.inputs])
    for node in results:
        if node not in known:  # made of numbers alone
            assert node.value is not None
            known[node] = _as_blob(graph, node.value)


def _input(each: Any, known: Mapping[Record, Any]) -> Any:
    if type(each) is not Record:
        return each
    return known.get(each, each.value)


def translate(graph: Graph, node: Record | OpStep, inputs: list[Any]) -> Any:
    """An op for a record; it has the operation's name, and as its place of creation the line that recorded it.

    Args:
        graph: Where it is made.
        node: The record.
        inputs: Its inputs: blobs, and NumPy arrays that are constants.
    Returns:
        The blob of its result; a tuple for an operation with several.
    """
    found = _translated(graph, node, inputs)
    _locate(found, inputs, node)
    return found


def _translated(graph: Graph, node: Record | OpStep, inputs: list[Any]) -> Any:
    op = node.op
    assert op is not None
    if op is PART:
        return inputs[0][node.params[0]]
    if op is TRANSFER:  # the caller of `to_graph` says where it is computed
        return inputs[0]
    operation: Any = op.operation
    if operation is None:
        return _constant(graph, node, op, inputs)
    if op.elementwise and len(inputs) > 1:  # of arrays of several dtypes; blobs have one
        free = operation.conditions
        kind = np.result_type(*[each.dtype for each in inputs[free:]])
        inputs = [*inputs[:free], *[_converted(each, kind) for each in inputs[free:]]]
    return graph.apply(operation, *[_as_blob(graph, each) for each in inputs], name=op.name)


def _converted(each: Any, kind: np.dtype[Any]) -> Any:
    if isinstance(each, Blob):
        return each if each.dtype == kind else ops.cast(each, kind)
    return each.astype(kind)


def _as_blob(graph: Graph, each: Any) -> Blob:
    found: Blob = each if isinstance(each, Blob) else graph.apply(Constant(each), name="constant")
    return found


def _constant(graph: Graph, node: Record | OpStep, op: Primitive, inputs: list[Any]) -> Blob:
    """An op for what reads nothing: a number everywhere, random numbers, or an array that is computed now."""
    spec, params = TensorSpec(node.shape, node.dtype), node.params
    operation: Operation
    if op is FULL and node.dtype.kind == "f":
        operation = ops.Fill(inputs[0].item(), spec)
    elif op is RANDN:
        operation = ops.Gaussian(spec, _seed(inputs), mean=params[1], std=params[2])
    elif op is RANDB:
        operation = ops.Bernoulli(spec, _seed(inputs), probability=params[1])
    else:
        operation = Constant(np.asarray(op.compute(*inputs, *params), node.dtype))
    made: Blob = graph.apply(operation, name=op.name)
    return made


def _seed(inputs: list[Any]) -> int:
    return int(inputs[0][0]) << 64 | int(inputs[0][1])


def _locate(found: Any, inputs: list[Any], node: Record | OpStep) -> None:
    """Give what was made for a record the line of the user's code that recorded it."""
    site = site_of(node.origin)
    known = {id(each) for each in inputs}
    stack: list[Any] = [*found] if isinstance(found, tuple) else [found]
    while stack:
        each = stack.pop()
        if id(each) not in known:
            known.add(id(each))
            each.site = site
            stack.extend(each.producers if isinstance(each, Blob) else each.inputs)
