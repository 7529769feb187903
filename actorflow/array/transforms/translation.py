"""Records as ops of a graph: those of `actorflow.ops`, else `Recorded` ones, which NumPy computes on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.array.array import Array
from actorflow.array.namespace.creation import FULL, RANDB, RANDN
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART, Primitive, Value
from actorflow.array.record.record import Evaluator, OpStep, Record, given, site_of, tracing
from actorflow.array.transforms.derivatives import Application as OldApplication
from actorflow.array.transforms.derivatives import fit, rule_of
from actorflow.array.transforms.recipe import needed
from actorflow.errors import ShapeError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.ops.fills import Constant
from actorflow.ops.operation import Application, Operation
from actorflow.ops.registry import kernel
from actorflow.spec import TensorSpec


@dataclass(frozen=True, eq=False, slots=True)
class Recorded(Operation):
    """An operation on arrays, with its parameters; computed on the CPU, wherever its arrays live.

    Its gradient is the one that `actorflow.array.transforms.derivatives` has for it, if there is one.

    Attributes:
        primitive: The operation.
        params: Its parameters.
        fixed: For each input of the operation, its value if it is a constant; None for a blob.
        specs: Types of the results.
    """

    arguments = ("*inputs",)
    takes_complex = True

    primitive: Primitive
    params: tuple[Any, ...]
    fixed: tuple[Value | None, ...]
    specs: tuple[TensorSpec, ...]

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        """Return whether there is a rule."""
        return rule_of(self.primitive.name) is not None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return self.specs

    def arranged(self, values: Sequence[Any]) -> list[Any]:
        """Values of the inputs with the constants between them."""
        rest = iter(values)
        return [next(rest) if constant is None else constant for constant in self.fixed]

    def gradient(self, op: Application, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Ops for what the rule records, called with arrays that have no values."""
        known: dict[Record, Any] = {}
        evaluator = Evaluator()

        def stand_in(blob: Blob) -> Array:
            node = Record(None, (), blob.shape, blob.dtype, (), evaluator)
            known[node] = blob
            return node.show()

        with tracing(evaluator):
            reads = [stand_in(blob) for blob in op.inputs]
            outputs = tuple([stand_in(blob) for blob in op.outputs])
            slopes = tuple([None if g is None else stand_in(g) for g in grads])
            single = len(self.specs) == 1
            inputs = [given(each, evaluator) if isinstance(each, np.ndarray) else each for each in self.arranged(reads)]
            application = OldApplication(tuple(inputs), self.params, outputs[0] if single else outputs)
            derive = rule_of(self.primitive.name)
            assert derive is not None
            derived = derive(application, slopes[0] if single else slopes)
            found = [g for g, constant in zip(derived, self.fixed, strict=True) if constant is None]
            fitted = [
                fit(g, x._node) if g is not None and want else None
                for g, x, want in zip(found, reads, wanted, strict=True)
            ]
        results = [g._node for g in fitted if g is not None]
        translate_all(op.inputs[0].graph.root, results, known, first=next(iter(known)).number)
        return [None if g is None else known[g._node] for g in fitted]

    def __str__(self) -> str:
        return self.primitive.name


def evaluate(op: Primitive, arguments: Sequence[Any], params: tuple[Any, ...], outputs: Sequence[Value]) -> None:
    """Compute an operation on values.

    Args:
        op: The operation.
        arguments: Values of its inputs.
        params: Its parameters.
        outputs: Arrays for its results, which it writes.
    Raises:
        ShapeError: if a result has another shape.
    """
    with np.errstate(all="ignore"):
        if op.elementwise or op.into:
            op.compute(*arguments, *params, out=outputs[0])
            return
        found = op.compute(*arguments, *params, owned=False) if op.owns else op.compute(*arguments, *params)
    for result, output in zip(found if type(found) is tuple else (found,), outputs, strict=True):
        if np.shape(result) != output.shape:
            raise ShapeError(f"{op.name}: recorded as shape {output.shape}, computed as {np.shape(result)}")
        np.copyto(output, result, casting="unsafe")


@kernel(Recorded)
def _compute(operation: Recorded, inputs: list[Value], outputs: list[Value]) -> None:
    evaluate(operation.primitive, operation.arranged(inputs), operation.params, outputs)


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
    if op is PART and isinstance(inputs[0], tuple):
        return inputs[0][node.params[0]]
    if op.operation is not None and any(isinstance(each, Blob) for each in inputs):
        return _applied(graph, op, inputs)
    if op is TRANSFER:  # the caller of `to_graph` says where it is computed
        return inputs[0]
    if not any(isinstance(each, Blob) for each in inputs):
        return _of_constants(graph, node, op, inputs)
    return _as_recorded(graph, node, inputs)


def _of_constants(graph: Graph, node: Record | OpStep, op: Primitive, inputs: list[Any]) -> Blob:
    spec = TensorSpec(node.shape, node.dtype)
    made: Any
    if op is FULL and node.dtype.kind == "f":
        made = graph.apply(ops.Fill(inputs[0].item(), spec), name=op.name)
    elif op is RANDN:
        made = graph.apply(ops.Gaussian(spec, _seed(inputs), mean=node.params[1], std=node.params[2]), name=op.name)
    elif op is RANDB:
        made = graph.apply(ops.Bernoulli(spec, _seed(inputs), probability=node.params[1]), name=op.name)
    else:
        value = np.empty(node.shape, node.dtype)
        evaluate(op, inputs, node.params, [value])
        made = graph.apply(Constant(value), name=op.name)
    found: Blob = made
    return found


def _as_blob(graph: Graph, each: Any) -> Blob:
    found: Blob = each if isinstance(each, Blob) else graph.apply(Constant(each), name="constant")
    return found


def _seed(inputs: list[Any]) -> int:
    return int(inputs[0][0]) << 64 | int(inputs[0][1])


def _applied(graph: Graph, op: Primitive, inputs: list[Any]) -> Any:
    """An op of the record's operation; its elementwise ones take blobs of one dtype, to which others are converted."""
    operation: Any = op.operation
    if op.elementwise and len(inputs) > 1:
        free = operation.conditions
        kind = np.result_type(*[each.dtype for each in inputs[free:]])
        inputs = [*inputs[:free], *[_converted(each, kind) for each in inputs[free:]]]
    return graph.apply(operation, *[_as_blob(graph, each) for each in inputs], name=op.name)


def _converted(each: Any, kind: np.dtype[Any]) -> Any:
    if isinstance(each, Blob):
        return each if each.dtype == kind else ops.cast(each, kind)
    return each.astype(kind)


def _as_recorded(graph: Graph, node: Record | OpStep, inputs: list[Any]) -> Any:
    op = node.op
    assert op is not None
    kinds = [(node.shape, node.dtype)] if op.results is None else op.results(*inputs, *node.params)
    specs = tuple([TensorSpec(tuple(shape), np.dtype(dtype)) for shape, dtype in kinds])
    constants = tuple([None if isinstance(each, Blob) else each for each in inputs])
    blobs = [each for each in inputs if isinstance(each, Blob)]
    return graph.apply(Recorded(op, node.params, constants, specs), *blobs, name=op.name)


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
