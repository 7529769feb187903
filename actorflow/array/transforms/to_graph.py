"""From array code to graphs: `to_graph`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.array.namespace.creation import FULL, RANDB, RANDN
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART, Primitive
from actorflow.array.record.record import Record, Tracing, site_of
from actorflow.array.record.steps import Step, needed
from actorflow.array.transforms.calls import Arguments, Structure, flatten, is_array, paths
from actorflow.errors import DTypeError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.ops.fills import Constant
from actorflow.ops.operation import Operation
from actorflow.place import Place
from actorflow.spec import TensorSpec


def to_graph(
    function: Callable[..., Any], *examples: Any, name: str | None = None, place: Place | str | None = None
) -> Graph:
    """Turn array code into a graph: to run, stream, differentiate, place and watch.

    The function is called once, with arrays that have no values: it may use shapes and dtypes, not values. Operations
    that `actorflow.ops` has become these; others are computed on the CPU, wherever their arrays live. Ops have the
    names of the operations, and the lines of the function as their places of creation. `actorflow.gradient`
    differentiates the graph as any other, by the rules of `af.grad`: by real blobs; complex ones may be on the way.

    Args:
        function: Takes arrays, also in nested tuples, lists and dicts, and gives such.
        examples: For each argument an array, a `TensorSpec`, or containers of them: shape and dtype count. A
            `TensorSpec` may have open axes, ``af.TensorSpec.of(("batch", 784))``, which those of the graph are then.
            Anything else is given to the function as it is.
        name: Of the graph; the function's if left out.
        place: Where it computes, such as ``"cuda:0"``. Arguments and results stay on the CPU; copies are inserted.
    Returns:
        A graph with a blob for each argument, of its name (``w``; ``weights.w1`` in a dict, ``x.0`` in a tuple), and
        one named ``result/out`` (``result0/out``, ... of a tuple or list, ``result.loss/out`` of a dict) for what the
        function returns. Arrays that it uses besides are variables of the graph.
    Raises:
        GraphError: if the function asks for a value; `DTypeError` if it returns something else than arrays.

    Example:
        >>> def scores(x, weights):
        ...     return af.array.sum(x * weights["w"], axis=1)
        >>> graph = af.to_graph(scores, af.TensorSpec.of(["batch", 2]), {"w": af.TensorSpec.of([2])})
        >>> [blob.name for blob in graph.sources]
        ['x', 'weights.w']
        >>> graph.run_sync({"x": [[1, 2]], "weights.w": [3, 4]})["result/out"]
        array([11.], dtype=float32)
    """
    title = name or getattr(function, "__name__", "graph").strip("<>")
    arguments = Arguments(examples, {}, ())
    traced = Tracing()
    graph = Graph(title)
    known: dict[Record, Any] = {}
    leaves = []
    for leaf, path in zip(arguments.leaves, _paths(function, arguments), strict=True):
        if is_array(leaf) or isinstance(leaf, TensorSpec):
            leaves.append(traced.stand_in(leaf))
            known[traced.nodes[-1]] = graph.blob(path, leaf.shape, leaf.dtype)
        else:
            leaves.append(leaf)
    with traced:
        found, nesting = flatten(arguments.call(function, leaves))
    wrong = [each for each in found if not is_array(each)]
    if wrong:
        raise DTypeError(f"to_graph: the function must return arrays, got {type(wrong[0]).__name__}")
    results = [x._node for x in found]
    with graph.at(place):
        nodes, before = needed(results, [*known], traced.first)
        for node in before:
            init = node.unheld().to_numpy()
            known[node] = graph.variable(graph.unique_name("captured"), node.shape, node.dtype, init=init)
        for node in nodes:
            inputs = [known.get(each, each.value) if isinstance(each, Record) else each for each in node.inputs]
            known[node] = translate(graph, node, inputs)
            _locate(known[node], inputs, node)
        blobs = [as_blob(graph, known.get(node, node.value)) for node in results]  # some are made of numbers alone
    for blob, title in zip(blobs, _result_names(nesting), strict=True):
        with graph.at("cpu"):
            ops.copy(blob, name=title)
    return graph


def _paths(function: Callable[..., Any], arguments: Arguments) -> list[str]:
    """Names for the arguments' leaves: those of the function's parameters."""
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):  # annotations, evaluated here, may name what only type checkers know
        from annotationlib import Format

        options["annotation_format"] = Format.FORWARDREF
    try:
        parameters = list(inspect.signature(function, **options).parameters.values())
    except (TypeError, ValueError):  # a builtin may not say
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    structures = [structure for _, _, structure in arguments.spans]
    names = [*named[: len(structures)], *[f"x{i}" for i in range(len(named), len(structures))]]
    return [path for structure, name in zip(structures, names, strict=True) for path in paths(structure, name)]


def _result_names(nesting: Structure) -> list[str]:
    if nesting is None or nesting[0] is dict:
        return paths(nesting, "result")
    return [path for i, part in enumerate(nesting[2]) for path in paths(part, f"result{i}")]


def translate(graph: Graph, node: Record | Step, inputs: list[Any]) -> Any:
    """The blob of a record's result, or a tuple of several, by an op with the operation's name.

    Args:
        inputs: Blobs, and NumPy arrays that are constants.
    """
    op = node.op
    assert op is not None
    if op is PART:
        return inputs[0][node.params[0]]
    if op is TRANSFER:  # the caller of `to_graph` says where it is computed
        return inputs[0]
    operation: Any = op.operation
    if operation is None:
        return _constant(graph, node, op, inputs)
    if type(operation) is ops.Negative and inputs[0].dtype.kind == "u":  # of arrays it is taken, as NumPy does
        operation, inputs = ops.Subtract(), [np.zeros((), node.dtype), *inputs]
    if op.elementwise and len(inputs) > 1:  # of arrays of several dtypes; blobs have one
        free = operation.conditions
        kind = np.result_type(*[each.dtype for each in inputs[free:]])
        inputs = [*inputs[:free], *[_converted(each, kind) for each in inputs[free:]]]
    return graph.apply(operation, *[as_blob(graph, each) for each in inputs], name=op.name)


def _converted(each: Any, kind: np.dtype[Any]) -> Any:
    if isinstance(each, Blob):
        return each if each.dtype == kind else ops.cast(each, kind)
    return each.astype(kind)


def as_blob(graph: Graph, each: Any) -> Blob:
    """The blob of an input; of an array that is a constant, a new one."""
    found: Blob = each if isinstance(each, Blob) else graph.apply(Constant(each), name="constant")
    return found


def _constant(graph: Graph, node: Record | Step, op: Primitive, inputs: list[Any]) -> Blob:
    """An op for what reads nothing: a number everywhere, random numbers, or an array that is computed now."""
    spec, params = TensorSpec(node.shape, node.dtype), node.params
    operation: Operation
    if op is FULL and node.dtype.kind == "f":
        operation = ops.Fill(inputs[0].item(), spec)
    elif op is RANDN or op is RANDB:
        seed = int(inputs[0][0]) << 64 | int(inputs[0][1])
        operation = ops.Gaussian(spec, seed, *params[1:]) if op is RANDN else ops.Bernoulli(spec, seed, *params[1:])
    else:
        operation = Constant(np.asarray(op.compute(*inputs, *params), node.dtype))
    made: Blob = graph.apply(operation, name=op.name)
    return made


def _locate(found: Any, inputs: list[Any], node: Record) -> None:
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
