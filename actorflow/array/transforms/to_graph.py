"""Array code as graphs: `to_graph`, and programs of steps, run by the core on the thread that asks for the values."""

from __future__ import annotations

import inspect
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow import ops
from actorflow.array.namespace.creation import FULL, RANDB, RANDN
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import LARGE, PART, Numbered, Primitive, Value, compact, copied
from actorflow.array.record.record import HOST, SEVERAL, InterruptedStepError, Record, Tracing, called, site_of
from actorflow.array.record.steps import Step, common, needed, reached
from actorflow.array.transforms.calls import Arguments, Structure, flatten, is_array, paths
from actorflow.errors import DTypeError, OpError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op
from actorflow.ops.fills import Constant
from actorflow.ops.operation import Operation
from actorflow.ops.registry import kernel
from actorflow.ops.shaping import Reshape
from actorflow.ops.step import StepError
from actorflow.place import Place
from actorflow.runtime.caller import CallError, CallersProgram
from actorflow.runtime.program import Result
from actorflow.spec import TensorSpec
from actorflow.trace.counters import OpProfile

if TYPE_CHECKING:
    from actorflow.runtime.service import Service

#: Elements from which on results have memory of the plan's: to allocate it takes no time for fewer.
_LEAST = 1 << 13
_OBJECT = TensorSpec((), np.dtype(object))


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


# -- programs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Recorded(Operation):
    """A step that no operation of a graph stands for: what it was recorded with computes it."""

    arguments = ("*inputs",)
    differentiable = False

    call: Callable[..., Any]
    results: tuple[TensorSpec, ...]

    def check_arity(self, count: int) -> None:
        """Take any number in the place of the one that it was recorded with."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return self.results


@kernel(Recorded, returns=True)
def _recorded(operation: Recorded, inputs: list[Any], _: None) -> list[Any]:
    found = called(operation.call, *inputs)
    return [found] if len(operation.results) == 1 else [*found]


class Given(NamedTuple):
    """A value that a graph is given.

    Attributes:
        spec: Its type; None for what is no array.
        number: Its value, if that is part of the graph.
    """

    spec: TensorSpec | None
    place: Place = HOST
    number: Value | None = None


class Program:
    """Some results of steps, as blobs of a graph, which the calling thread runs, or a service.

    Args:
        steps, given: In order, and the types of the values that they are given.
        outputs: Positions of the results, which are steps'.
        is_served: Whether a service runs it; results live where their steps say then.
        capture: As for `actorflow.Graph`.

    Attributes:
        graph: The graph.
        fetched: The blobs that are computed.
        repeats: How many steps repeat others.
        program: Runs it on the calling thread; there is none for a service.
    Raises:
        GraphError: if there is no such graph.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        given: Sequence[Given],
        outputs: Sequence[int],
        is_served: bool = False,
        capture: bool = False,
    ) -> None:
        self.graph = graph = Graph("arrays", capture=capture) if is_served else Graph("arrays", trace_capacity=1)
        self._given: list[Any] = [
            each.number if each.number is not None else graph.blob(f"x{i}", *(each.spec or _OBJECT), each.place)
            for i, each in enumerate(given)
        ]
        self._is_served = is_served
        self._ends: list[int] = []  # nodes made for a step have lower ids
        own = reached(steps, outputs)
        read = [[each if each >= 0 else self._given[-1 - each] for each in step.reads] for step in steps]
        same, twins = common([(i, steps[i], read[i]) for i in own])
        self.repeats = len(same)
        self._blobs: list[Any] = []
        for i, step in enumerate(steps):
            if i in same:
                found = self._blobs[same[i]]
                self._blobs.append(self._twin(found) if i in twins and (step.place or HOST) is HOST else found)
            else:
                self._blobs.append(self._made(step, step.place or HOST) if i in own else None)
            self._ends.append(graph.size)
        #: The sources, with their positions among what is given.
        self._feeds = [(i, blob) for i, blob in enumerate(self._given) if isinstance(blob, Blob)]
        #: A blob for each result, or a tuple of them for one of several values.
        self._fetches = [self._result(self._blobs[i], steps[i].place or HOST) for i in outputs]
        several = [each if isinstance(each, tuple) else (each,) for each in self._fetches]
        self.fetched = [*dict.fromkeys(blob for each in several for blob in each)]
        if is_served:
            return
        self._owned = [steps[i].op.into for i in outputs]
        owned = {blob for blob, is_owned in zip(self._fetches, self._owned, strict=True) if is_owned}
        self.program = CallersProgram(graph, [blob for _, blob in self._feeds], self.fetched, owned)
        slots = {blob: i for i, blob in enumerate(self.fetched)}
        self._slots = self._results(slots)  # positions of what is fetched

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The results for given values, as `CallersProgram` computes them; raises StepError if a step fails."""
        try:
            fetched = self.program([values[i] for i, _ in self._feeds])
        except CallError as error:
            if isinstance(error.__cause__, InterruptedStepError) and error.__cause__.__cause__ is not None:
                raise error.__cause__.__cause__ from None
            raise StepError(self.position(error.op)) from error.__cause__
        found = [tuple([fetched[k] for k in i]) if isinstance(i, tuple) else fetched[i] for i in self._slots]
        for i, is_owned in enumerate(self._owned):
            if not is_owned:
                found[i] = compact(found[i])
        return found

    async def serve(self, service: Service, values: Sequence[Any]) -> list[Any]:
        """The results, as a service computes them."""
        return self._results(await service.run(self.graph, {blob: values[i] for i, blob in self._feeds}, self.fetched))

    @property
    def profiles(self) -> dict[int, list[OpProfile]]:
        """Profiles of the ops, by the position of the step that each was made for."""
        known = self.graph.engine.profile if self._is_served else self.program.profiles
        found: dict[int, list[OpProfile]] = {}
        for op in self.graph.ops:
            profile = known.get(op.id)
            if profile is not None:
                found.setdefault(self.position(op), []).append(profile)
        return found

    def step_of(self, error: OpError) -> int:
        """The position of the step whose op has failed on a service."""
        op = next((op for op in self.graph.ops if op.name == error.op.name), None)
        return self.position(op) if op is not None else -1

    def _results(self, values: Result | Mapping[Blob, Any]) -> list[Any]:
        return [tuple([values[x] for x in each]) if isinstance(each, tuple) else values[each] for each in self._fetches]

    def position(self, op: Op) -> int:
        """The position of the step that an op was made for."""
        return min(bisect_right(self._ends, op.id), len(self._ends) - 1)

    def _result(self, found: Any, place: Place) -> Any:
        """A result as a blob that the graph computes, where its value is to live; of several, all."""
        if not self._is_served:
            return found
        if isinstance(found, tuple):
            return tuple([self._at_place(x, place) for x in found])
        return self._at_place(found, place)

    def _at_place(self, value: Any, place: Place) -> Blob:
        with self.graph.at(place):
            blob = as_blob(self.graph, value)  # numbers are part of the graph
            if blob.producers and blob.place == place:
                return blob  # a fed blob is never fetched as it was fed
            moved: Blob = self.graph.apply(Reshape(blob.shape), blob)
        return moved

    def _twin(self, found: Any) -> Any:
        """A copy on the host of what a step before has computed, one array or several."""
        if isinstance(found, tuple):
            return tuple(map(self._twin, found))
        with self.graph.at(HOST):
            return self.graph.apply(Recorded(copied, (found.spec,)), found, name="copy")

    def _made(self, step: Step, place: Place) -> Any:
        inputs = [self._blobs[each] if each >= 0 else self._given[-1 - each] for each in step.reads]
        if step.op is PART and isinstance(inputs[0], tuple):
            return inputs[0][step.params[0]]
        if step.op is PART and self._is_served and inputs[0].dtype != _OBJECT.dtype:
            return inputs[0]
        if step.op is TRANSFER and self._is_served:
            return self._at_place(inputs[0], place)
        with self.graph.at(place):
            return self._computed(step, place, inputs)

    def _computed(self, step: Step, place: Place, inputs: list[Any]) -> Any:
        if place is not HOST:
            return translate(self.graph, step, inputs)
        spec = TensorSpec(step.shape, step.dtype)
        operation, read = step.op.operation, inputs
        if operation is not None and step.op is not TRANSFER and not _is_called(step, inputs):
            found = translate(self.graph, step, inputs)
            if isinstance(found, tuple) or (found.spec == spec and found.producers and found not in self._blobs):
                return found  # what is given has no producers
        results: tuple[TensorSpec, ...] = (spec,)
        if step.dtype == SEVERAL:
            if isinstance(step.op, Numbered):
                operation, read = step.op.numbered, inputs[1:]
            results = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in read])
        operation = Recorded(step.op.called(step.params, step.shape, step.dtype), results)
        return self.graph.apply(operation, *[as_blob(self.graph, each) for each in inputs], name=step.op.name)


def _is_called(step: Step, inputs: Sequence[Any]) -> bool:
    """Return whether a step is a call of NumPy's function: where to join it gains nothing, or adds up otherwise.

    So is one of the user's code, whose interrupt would end a service's loop.
    """
    if not type(step.op.operation).__module__.startswith("actorflow."):
        return True
    if not (step.op.reduction or step.op.elementwise):  # a view stays one: products of it with what it shows differ
        return step.op.bound(step.params, step.shape) is not None
    most = max([prod(step.shape), *[each.spec.size if isinstance(each, Blob) else each.size for each in inputs]])
    return most < (LARGE if step.op.reduction else _LEAST)
