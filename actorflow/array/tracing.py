"""From array code to graphs: `trace`, and gradients by way of them: `grad`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.lifting import Replay
from actorflow.array.operate import node_of
from actorflow.array.records import Node
from actorflow.array.session import Session
from actorflow.array.translation import translate
from actorflow.autograd import gradient
from actorflow.errors import DTypeError, GraphError
from actorflow.graph import Graph
from actorflow.node import Blob
from actorflow.place import Place
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.arrays import Array

__all__ = ["grad", "trace", "value_and_grad"]


class _Trace:
    """What a function of arrays records when it is called once with arrays that have no values.

    Attributes:
        graph: The operations.
        inputs: A blob for each argument.
        captured: Arrays that the function uses besides its arguments, with their blobs.
        outputs: The blobs of what it returns.
        is_single: Whether that is one array.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        specs: Sequence[TensorSpec],
        name: str,
        variables: bool,
        place: Place | str | None = None,
    ) -> None:
        self.graph = Graph(name)
        self.captured: list[tuple[Array, Blob]] = []
        self._variables = variables
        session = Session(dry_run=True)
        nodes = [Node(None, (), spec.shape, spec.dtype, (), session) for spec in specs]
        names = _names(function, len(specs))
        self.inputs = [self.graph.blob(n, spec.shape, spec.dtype) for n, spec in zip(names, specs, strict=True)]
        self._known: dict[Node, Any] = dict(zip(nodes, self.inputs, strict=True))
        arguments = [node.show() for node in nodes]
        found = function(*arguments)
        self.is_single = isinstance(found, Node.array_type)
        results = [found] if self.is_single else list(found)
        wanted = [node_of(name, "what the function returns", each) for each in results]
        with self.graph.at(place):
            self._translate(wanted, session)
        self.outputs = [self._known[node] for node in wanted]

    def _translate(self, wanted: Sequence[Node], session: Session) -> None:
        order: set[Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node not in order and node not in self._known:
                order.add(node)
                if node.session is session and node.op is not None:
                    stack.extend(each for each in node.inputs if type(each) is Node)
        for node in sorted(order, key=lambda node: node.number):
            if node.session is session and node.op is not None:
                inputs = [self._known[each] if type(each) is Node else each for each in node.inputs]
                self._known[node] = translate(self.graph, node, inputs)
            else:
                self._known[node] = self._capture(node)

    def _capture(self, node: Node) -> Blob:
        """A blob for an array that was there before; a variable with its value where the graph is to run by itself."""
        name = f"captured{len(self.captured)}"
        held = node.handle() if node.handle is not None else None
        array = held if held is not None and held._node is node else node.show()
        if self._variables:
            blob: Blob = self.graph.variable(name, node.shape, node.dtype, init=array.to_numpy())
        else:
            blob = self.graph.blob(name, node.shape, node.dtype)
        self.captured.append((array, blob))
        return blob


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """The blobs' names: those of the function's arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin may not say
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*named[:count], *[f"x{i}" for i in range(len(named[:count]), count)]]


def _spec_of(argument: Any) -> TensorSpec:
    if isinstance(argument, TensorSpec):
        return argument
    return TensorSpec(tuple(argument.shape), np.dtype(argument.dtype))


def trace(
    function: Callable[..., Any], *examples: Any, name: str | None = None, place: Place | str | None = None
) -> Graph:
    """Turn array code into a graph: to run, stream, differentiate, place and watch.

    The function is called once, with arrays that have no values: it may use shapes and dtypes, not values. Operations
    that `actorflow.ops` has become these; others become functions, which have no gradient.

    Args:
        function: Takes arrays; gives one or several.
        examples: For each argument an array, or a `TensorSpec`: shape and dtype count.
        name: Of the graph; the function's if left out.
        place: Where it computes: ``"cuda:0"``, say. Arguments and results stay on the CPU; copies are inserted.
    Returns:
        A graph with a blob for each argument, of its name, and one named ``result/out`` (``result0/out``, ...) for what
        the function returns. Arrays that it uses besides are variables of the graph.
    Raises:
        GraphError: if the function asks for a value; `DTypeError` if it returns no arrays.
    """
    specs = [_spec_of(each) for each in examples]
    title = name or getattr(function, "__name__", "trace").strip("<>")
    traced = _Trace(function, specs, title, variables=True, place=place)
    from actorflow.ops import copy  # under its own name, it would hide the module `copy` from readers

    for i, blob in enumerate(traced.outputs):
        with traced.graph.at("cpu"):
            copy(blob, name="result" if traced.is_single else f"result{i}")
    return traced.graph


def value_and_grad(
    function: Callable[..., Array], argnums: int | Sequence[int] = 0
) -> Callable[..., tuple[Array, Array | tuple[Array, ...]]]:
    """The function of the same arguments that gives the function's value, and its gradient.

    Args:
        function: Takes arrays; gives a 0-d floating array. It is called once for each shape and dtype of arguments, as
            by `trace`.
        argnums: Which arguments to differentiate by.
    Returns:
        A function that records both on its arguments; of several ``argnums`` the gradients are a tuple.
    Raises:
        GraphError: where it is called, if the value depends on an argument by an operation without a gradient, or not
            at all; the message names the operation and the line.
    """
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    known: dict[Any, tuple[Replay, list[Array]]] = {}

    def both(*arrays: Array) -> tuple[Array, Array | tuple[Array, ...]]:
        specs = tuple([_spec_of(node_of("grad", f"argument {i}", x)) for i, x in enumerate(arrays)])
        found = known.get(specs)
        if found is None:
            found = known[specs] = _differentiated(function, specs, wanted)
        replay, captured = found
        value, *grads = replay([*arrays, *captured])
        return value, grads[0] if isinstance(argnums, int) else tuple(grads)

    return both


def grad(function: Callable[..., Array], argnums: int | Sequence[int] = 0) -> Callable[..., Array | tuple[Array, ...]]:
    """The function of the same arguments that gives the function's gradient; see `value_and_grad`."""
    both = value_and_grad(function, argnums)

    def gradient_of(*arrays: Array) -> Array | tuple[Array, ...]:
        return both(*arrays)[1]

    return gradient_of


def _differentiated(
    function: Callable[..., Any], specs: Sequence[TensorSpec], argnums: Sequence[int]
) -> tuple[Replay, list[Array]]:
    traced = _Trace(function, specs, getattr(function, "__name__", "trace").strip("<>"), variables=False)
    if not traced.is_single:
        raise DTypeError("grad: the function must return one array")
    for i in argnums:
        if not 0 <= i < len(specs):
            raise GraphError(f"grad: there is no argument {i}, the function was called with {len(specs)}")
    loss = traced.outputs[0]
    grads = gradient(loss, [traced.inputs[i] for i in argnums])
    blobs = [*traced.inputs, *[blob for _, blob in traced.captured]]
    return Replay(blobs, [loss, *grads]), [array for array, _ in traced.captured]
