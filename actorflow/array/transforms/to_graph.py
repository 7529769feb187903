"""From array code to graphs: `to_graph`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorflow.array.record.record import Record, tracing
from actorflow.array.transforms.calls import Arguments, StandIns, Structure, flatten, is_array, paths, signature_of
from actorflow.array.transforms.recipe import captured_array
from actorflow.array.transforms.translation import translate_all
from actorflow.errors import DTypeError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
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
        examples: For each argument an array, a `TensorSpec`, or containers of them: shape and dtype count. Anything
            else is given to the function as it is.
        name: Of the graph; the function's if left out.
        place: Where it computes, such as ``"cuda:0"``. Arguments and results stay on the CPU; copies are inserted.
    Returns:
        A graph with a blob for each argument, of its name (``w``; ``weights.w1`` in a dict, ``x.0`` in a tuple), and
        one named ``result/out`` (``result0/out``, ... of a tuple or list, ``result.loss/out`` of a dict) for what the
        function returns. Arrays that it uses besides are variables of the graph.
    Raises:
        GraphError: if the function asks for a value; `DTypeError` if it returns something else than arrays.
    """
    title = name or getattr(function, "__name__", "graph").strip("<>")
    arguments = Arguments(examples, {}, lambda _: False)
    stand_ins = StandIns()
    graph = Graph(title)
    known: dict[Record, Any] = {}
    leaves = []
    for leaf, path in zip(arguments.leaves, _paths(function, arguments), strict=True):
        if is_array(leaf) or isinstance(leaf, TensorSpec):
            leaves.append(stand_ins.of(leaf))
            known[stand_ins.nodes[-1]] = graph.blob(path, leaf.shape, leaf.dtype)
        else:
            leaves.append(leaf)
    with tracing(stand_ins.evaluator):
        found, nesting = flatten(arguments.call(function, leaves))
    wrong = [each for each in found if not is_array(each)]
    if wrong:
        raise DTypeError(f"to_graph: the function must return arrays, got {type(wrong[0]).__name__}")
    with graph.at(place):
        translate_all(graph, [x._node for x in found], known, stand_ins.first, lambda node: _variable(graph, node))
    from actorflow.ops import copy  # under its own name, it would hide the module `copy` from readers

    for x, title in zip(found, _result_names(nesting), strict=True):
        with graph.at("cpu"):
            copy(known[x._node], name=title)
    return graph


def _variable(graph: Graph, node: Record) -> Blob:
    array = captured_array(node)
    return graph.variable(graph.unique_name("captured"), node.shape, node.dtype, init=array.to_numpy())


def _paths(function: Callable[..., Any], arguments: Arguments) -> list[str]:
    """Names for the arguments' leaves: those of the function's parameters."""
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):  # a builtin may not say
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    structures = [structure for _, _, structure in arguments.spans]
    names = [*named[: len(structures)], *[f"x{i}" for i in range(len(named), len(structures))]]
    return [path for structure, name in zip(structures, names, strict=True) for path in paths(structure, name)]


def _result_names(nesting: Structure) -> list[str]:
    if nesting.kind is None or nesting.kind is dict:
        return paths(nesting, "result")
    return [path for i, part in enumerate(nesting.parts) for path in paths(part, f"result{i}")]
