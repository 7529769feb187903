"""Calls of other graphs: an op that runs a graph, with its own variables, budget and settings, inside each frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from actorflow.actors.frame import Frame
from actorflow.actors.task import Call, callers
from actorflow.errors import DTypeError, GraphError, ShapeError, listed
from actorflow.graph.body import made_again, ops_before, with_bodies
from actorflow.graph.flow import _switch
from actorflow.graph.gradient import pulled_back
from actorflow.graph.graph import Graph, targets_of
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.graph.options import Attempts
from actorflow.interchange import to_numpy
from actorflow.ops.function import Function
from actorflow.ops.operation import Application, Grads
from actorflow.plan.validate import chosen
from actorflow.runtime.model import Model
from actorflow.runtime.program import check_unneeded
from actorflow.spec import TensorSpec, may_equal, replaced

if TYPE_CHECKING:
    from actorflow.graph.graph import Fetch


class Run:
    """Runs a graph, as an async function of the values that it is fed.

    Args:
        graph: The graph, a root.
        inputs: Blobs that are fed.
        fetch: Blobs, ops and sub-graphs that are computed.
        outputs: The blobs among that.

    All of them are attributes.
    """

    def __init__(self, graph: Graph, inputs: Sequence[Blob], fetch: Sequence[Any], outputs: Sequence[Blob]) -> None:
        self.graph = graph
        self.inputs = tuple(inputs)
        self.fetch = tuple(fetch)
        self.outputs = tuple(outputs)

    async def __call__(self, *values: Any) -> Any:
        result = await self.graph.run(dict(zip(self.inputs, values, strict=True)), fetch=self.fetch)
        arrays: list[npt.NDArray[Any]] = [to_numpy(result[blob]) for blob in self.outputs]
        return arrays[0] if len(arrays) == 1 else arrays or None

    def inside(self, call: Call) -> list[Frame]:
        """The frames of the graph that an op's call awaits."""
        return [frame for frame in self.graph.engine.running if next(callers(frame.context), None) == call]

    def __repr__(self) -> str:
        return f"run of graph {self.graph.name!r}"


@dataclass(frozen=True, slots=True)
class GraphCall(Function):
    """An op that runs another graph; see `Graph.call`."""

    fn: Run

    differentiable = True

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        """Compute it once more, as a part of this graph on the values of that one's variables, and backwards."""
        known = [g for g in grads if g is not None]
        if not known or not any(wanted):
            return [None] * len(wanted)
        run, root = self.fn, op.inputs[0].graph.root
        ops = ops_before(run.outputs)
        variables = self._variables(op.name, ops)
        kept: Any = call(root, run.graph, {}, variables, None, self.concurrency, None) if variables else ()
        given = [*op.inputs, *([kept] if isinstance(kept, Blob) else kept)]

        def back(*blobs: Blob) -> list[Blob]:
            rest = iter(blobs[len(given) :])
            y = made_again(ops, run.outputs, dict(zip([*run.inputs, *variables], blobs)), root)  # noqa: B905
            wrt = [blob for blob, is_wanted in zip(blobs, wanted) if is_wanted]  # noqa: B905
            return pulled_back(y, [None if g is None else next(rest) for g in grads], wrt)

        index = root.constant(0, "int64")
        found = iter(_switch("call_back", index, [back], [*given, *known]))
        return [next(found) if is_wanted else None for is_wanted in wanted]

    def _variables(self, name: str, ops: Sequence[Op]) -> list[Variable]:
        """The variables that its graph reads.

        Raises:
            GraphError: if that does not give the same when it is computed once more.
        """
        found = dict.fromkeys([x for op in with_bodies(ops) for x in op.inputs if isinstance(x, Variable)])
        why = [f"op {op.name!r} draws random numbers" for op in with_bodies(ops) if hasattr(op.operation, "seed")]
        called, _ = chosen(self.fn.graph, self.fn.fetch)
        why += [f"op {op.name!r} updates variable {x.name!r}" for op in called for x in op.outputs if x in found]
        if why:
            raise GraphError(
                f"there is no gradient through {name!r}: {why[0]} of graph {self.fn.graph.name!r}, and what it gives "
                "is computed once more for its gradient; take the gradient in that graph, and fetch it by the call"
            )
        return [*found]


def call(
    graph: Graph,
    other: Graph | Model,
    feeds: Mapping[Any, Any],
    fetch: Fetch,
    name: str | None,
    concurrency: int | None,
    attempts: Attempts | None,
) -> Any:
    """Make an op that runs another graph; see `Graph.call`."""
    if isinstance(other, Model):
        target, wanted = other.graph, other._wanted(fetch)  # type: ignore[arg-type]  # names that it knows
        keys: Any = {other.inputs.get(key, key): value for key, value in feeds.items()}
        chosen_targets: Sequence[Any] = [*dict.fromkeys(wanted.values())]
    elif isinstance(other, Graph):
        target, keys, wanted = other, feeds, None
        if other.parent is not None:
            raise GraphError(
                f"call: {other.name!r} is a sub-graph: call its root {other.root.name!r}, with fetch=[...]"
            )
        targets = targets_of(fetch)
        chosen_targets = other.sinks if targets is None else [other.resolve(each) for each in targets]
    else:
        raise TypeError(f"call: expected a graph or a model, got {type(other).__name__}")
    if graph.root in reached(target):
        raise GraphError(f"call: graph {target.name!r} is graph {graph.root.name!r} or calls it, without end")
    ops, outputs = chosen(target, chosen_targets)
    needed = dict.fromkeys([*(blob for op in ops for blob in op.inputs), *outputs])
    sources = [blob for blob in needed if not blob.producers and not isinstance(blob, Variable)]
    given: dict[Blob, Blob] = {}
    for key, value in keys.items():
        blob = target.resolve(key)
        if not isinstance(blob, Blob) or blob not in sources:
            check_unneeded(target, key)
            continue
        given[blob] = value if isinstance(value, Blob) else graph.root.constant(value, blob.dtype)
    missing = [f"{blob.name!r} {blob.spec}" for blob in sources if blob not in given]
    if missing:
        raise GraphError(f"call: graph {target.name!r} needs values for {listed(missing)}")
    lengths = _lengths(target, given)
    specs = tuple([TensorSpec(replaced(blob.shape, lengths), blob.dtype) for blob in outputs])
    root = graph.root
    operation = GraphCall(Run(target, [*given], chosen_targets, outputs), specs, concurrency)
    op = root.current_scope._add_op(root.unique_name(name or target.name), operation, None, None, attempts)
    op(*given.values())
    by_blob = dict(zip(outputs, op.outputs, strict=True))
    if wanted is not None:
        return {key: by_blob[blob] for key, blob in wanted.items()}
    return op.outputs[0] if len(op.outputs) == 1 else op.outputs


def reached(graph: Graph) -> Iterator[Graph]:
    """A graph, and all that it calls."""
    found, todo = {graph}, [graph]
    while todo:
        each = todo.pop()
        yield each
        called = [op.operation.fn.graph for op in each.ops if isinstance(op.operation, GraphCall)]
        todo += [other for other in dict.fromkeys(called) if other not in found]
        found.update(called)


def _lengths(graph: Graph, given: Mapping[Blob, Blob]) -> dict[str, Any]:
    """Lengths that the open axes of a graph have in a call.

    Raises:
        ShapeError, DTypeError: if what is given does not fit.
    """
    lengths: dict[str, Any] = {}
    for source, blob in given.items():
        if blob.dtype != source.dtype:
            raise DTypeError(f"call: {source.name!r} of graph {graph.name!r} is {source.spec}, got {blob.spec}")
        if len(blob.shape) == len(source.shape):
            for axis, length in zip(source.spec.shape, blob.spec.shape, strict=True):
                name = getattr(axis, "name", None)
                if name is not None:
                    lengths.setdefault(name, length)
            if may_equal(replaced(source.shape, lengths), blob.shape):
                continue
        raise ShapeError(f"call: {source.name!r} of graph {graph.name!r} is {source.spec}, got {blob.spec}")
    return lengths
