"""A call that failed, as a graph of its own: to save, and to run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actorflow.errors import GraphError
from actorflow.graph.graph import Graph
from actorflow.interchange import to_numpy
from actorflow.ops.function import Function
from actorflow.ops.operation import Operation

if TYPE_CHECKING:
    from actorflow.actors.op import OpActor


def graph_of_call(actor: OpActor, inputs: Sequence[Any], number: int) -> Graph:
    """A graph of one op, whose inputs are variables with the values that a call had.

    Args:
        actor: What was called.
        inputs: What it read.
        number: Number of the frame, from which the graph counts.
    Raises:
        GraphError: if an input is not there any more, or is a Python object.
    """
    node = actor.node
    names = [blob.name.replace("/", ".") for blob in node.inputs]  # all of it: most are called "out"
    if actor.parts or len(names) != len(inputs):  # what the plan has made of several ops, or added
        names = [f"input{position}" for position in range(len(inputs))]
    for name, value in zip(names, inputs, strict=True):
        if getattr(value, "dtype", None) is None:
            why = "was not kept" if value is None else "is a Python object"
            raise GraphError(f"op {node.name!r} cannot be made a graph: its input {name!r} {why}")
    operation: Operation = getattr(actor, "operation", node.operation)
    if isinstance(operation, Function) and operation.specs is None:
        operation = replace(operation, specs=tuple([blob.spec for blob in node.outputs]))
    root = node.graph.root
    graph = Graph(f"{node.name.rpartition('/')[2]} of frame {number}", check_finite=root.check_finite or False)
    graph._first_frame = number
    variables = []
    for name, value in zip(names, inputs, strict=True):
        array = to_numpy(value)
        variables.append(graph.variable(graph.unique_name(name), array.shape, array.dtype, init=array))
    graph.apply(operation, *variables, name=node.name.rpartition("/")[2])
    return graph
