"""The operations of graphs on arrays: a planned graph, recorded op by op."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.namespace.operate import node_of
from actorflow.array.record.placement import home_of, transfer
from actorflow.array.record.primitives import Primitive, Value
from actorflow.array.record.record import Record, record, record_parts
from actorflow.array.transforms.cache import RecentCache
from actorflow.array.transforms.calls import signature_of
from actorflow.errors import GraphError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.ops.function import Function
from actorflow.place import Place
from actorflow.plan.plan import PlannedOp, Slot
from actorflow.plan.planner import make_plan

if TYPE_CHECKING:
    from actorflow.array.array import Array
    from actorflow.graph.nodes import Op

_HOST = Place()
#: Of one function.
_MOST_PLANS = 64
_OF_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_calls = count()


class GraphOperation(Primitive):
    """An op of a plan as an operation on arrays.

    Attributes:
        operation: What it computes.
        outputs: Types of its results; with several the value is a tuple.
    """

    def __init__(self, planned: PlannedOp, slots: Sequence[Slot]) -> None:
        kernel = planned.kernel
        self.operation = planned.operation
        self.outputs = [slots[i].spec for i in planned.outputs]
        self.random = kernel is not None and kernel.random
        kinds = [(spec.shape, spec.dtype) for spec in self.outputs]
        results = (lambda *_: kinds) if len(kinds) > 1 else None
        super().__init__(self.operation.kind.lower(), self._run, pure=not self.random, results=results)
        self._kernel = kernel

    def _run(self, *arguments: Any) -> Any:
        """Call the kernel; a random one's last argument is the number of its stream."""
        number = arguments[-1:] if self.random else ()
        inputs = list(arguments[:-1] if self.random else arguments)
        if isinstance(self.operation, Function):
            found = self.operation.fn(*inputs)
            return tuple(found) if len(self.outputs) > 1 else found
        assert self._kernel is not None
        buffers: list[Value] | None = None
        if not self._kernel.returns:
            buffers = [np.empty(spec.shape, spec.dtype) for spec in self.outputs]
        returned = self._kernel.function(self.operation, inputs, buffers, *number)
        results = returned if buffers is None else buffers
        return tuple(results) if len(self.outputs) > 1 else results[0]

    def new_params(self) -> tuple[int, ...]:
        """The parameters of another call: the number of its random stream, if it draws from one."""
        return (next(_calls),) if self.random else ()

    def record(self, inputs: Sequence[Array]) -> list[Array]:
        """Record it on arrays."""
        params = self.new_params()
        nodes = tuple([each._node for each in inputs])
        work = sum([node.size for node in nodes])
        if len(self.outputs) == 1:
            spec = self.outputs[0]
            found = [record(self, nodes, spec.shape, spec.dtype, params, nodes[0].evaluator, work)]
        else:
            found = record_parts(self, nodes, params, work)
        if Record.placing is None or not self.random:
            return found
        place = home_of(nodes[0])
        return [transfer(x, place) for x in found]  # which were drawn on the CPU

    def pull_back(self, inputs: Sequence[Array], outputs: Any, grad: Any, wanted: Sequence[bool]) -> list[Array | None]:
        """The gradients of the inputs of one op on arrays.

        Args:
            inputs: What it read.
            outputs: What it gave; a tuple for several.
            grad: The gradient of that; of several by their positions.
            wanted: For each input, whether its gradient is asked for.
        Raises:
            GraphError: if the operation has no gradient.
        """
        operation = self.operation
        if not operation.differentiable:
            raise GraphError(f"{operation} has no gradient")
        results = [outputs] if not isinstance(outputs, tuple) else [*outputs]
        grads = {0: grad} if not isinstance(grad, dict) else grad
        wanted = [want and not operation.is_constant(i) for i, want in enumerate(wanted)]
        graph = Graph(self.name)
        reads = [graph.blob(f"x{i}", x.shape, x.dtype) for i, x in enumerate(inputs)]
        made = graph.apply(operation, *reads)
        [op] = (made[0] if isinstance(made, tuple) else made).producers
        given = [graph.blob(f"y{i}", y.shape, y.dtype) for i, y in enumerate(results)]
        slopes = {i: graph.blob(f"g{i}", g.shape, g.dtype) for i, g in grads.items()}
        seen: Any = _Seen(op, given)
        found = operation.gradient(seen, [slopes.get(i) for i in range(len(results))], wanted)
        fetched = [blob for blob, want in zip(found, wanted, strict=True) if blob is not None and want]
        if not fetched:
            return [None] * len(reads)
        replay = Replay([*reads, *given, *slopes.values()], fetched)
        arrays = iter(replay([*inputs, *results, *grads.values()]))
        return [next(arrays) if blob is not None and want else None for blob, want in zip(found, wanted, strict=True)]


class _Seen:
    """An op whose outputs are given, for its gradient, so that they are not computed a second time."""

    def __init__(self, op: Op, outputs: Sequence[Blob]) -> None:
        self._op = op
        self.outputs = tuple(outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


class Replay:
    """A part of a graph, ready to be recorded on arrays.

    Args:
        inputs: Blobs that arrays stand for.
        outputs: Blobs whose arrays are wanted, of the same graph.
    """

    def __init__(self, inputs: Sequence[Blob], outputs: Sequence[Blob]) -> None:
        plan = make_plan(inputs[0].graph.root, list(dict.fromkeys(outputs)))
        self._feeds = {blob: plan.feeds.get(blob) for blob in inputs}
        self._fetches = [plan.fetches[blob] for blob in outputs]
        self._ops = [(_operation_of(op, plan.slots), op.inputs, op.outputs) for op in plan.ops]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Record it on arrays for ``inputs``; returns those for ``outputs``."""
        from actorflow.array.namespace.creation import full

        fed = zip(self._feeds.values(), arrays, strict=True)
        values = {slot: array for slot, array in fed if slot is not None}
        for operation, reads, writes in self._ops:
            if reads:
                values.update(zip(writes, operation.record([values[i] for i in reads]), strict=True))
            else:  # a constant
                spec = operation.outputs[0]
                values[writes[0]] = full(spec.shape, operation.operation.value, dtype=spec.dtype)  # type: ignore[attr-defined]
        return [values[i] for i in self._fetches]


def _operation_of(op: PlannedOp, slots: Sequence[Slot]) -> GraphOperation:
    if op.place != _HOST:
        raise GraphError(f"op {op.node.name!r} is on {op.place}: arrays live on the CPU")
    if not op.inputs and not hasattr(op.operation, "value"):
        raise GraphError(f"op {op.node.name!r} ({op.operation}) reads nothing, and is not a constant")
    return GraphOperation(op, slots)


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """The functional form of an operation, ``af.ops.softmax`` say, as a function of arrays.

    Args:
        function: Takes blobs and gives one or several. Which of its first parameters are blobs, their annotations say;
            without these, all that are given by position.
    Returns:
        A function of arrays in the place of the blobs. It is planned once for the same shapes, dtypes and other
        arguments, and the newest 64 plans are kept.
    """
    known: RecentCache[tuple[Replay, bool]] = RecentCache(_MOST_PLANS)
    name = getattr(function, "__name__", "function")
    signature = signature_of(function)
    blobs = _blobs_of(signature)

    def lifted(*arrays: Any, **options: Any) -> Any:
        if blobs and (options or len(arrays) > len(blobs)):
            try:
                options = signature.bind(*arrays, **options).arguments
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
            arrays = tuple([options.pop(blob) for blob in blobs if options.get(blob) is not None])
        nodes = [node_of(name, f"argument {i}", array) for i, array in enumerate(arrays)]
        key = tuple([(node.shape, node.dtype) for node in nodes]), repr(sorted(options.items()))
        found = known.get(key)
        if found is None:
            found = _planned(function, name, nodes, options)
            known.put(key, found)
        replay, is_single = found
        results = replay(arrays)
        return results[0] if is_single else tuple(results)

    lifted.__name__ = lifted.__qualname__ = name
    lifted.__signature__ = signature  # type: ignore[attr-defined]
    lifted.__doc__ = f"`actorflow.ops.{name}` on arrays.\n\n{function.__doc__}"
    return lifted


def _blobs_of(signature: inspect.Signature) -> list[str]:
    """The parameters that blobs are given for; none if that is not known."""
    parameters = signature.parameters.values()
    if any(p.kind in _OF_ANY_NUMBER for p in parameters):
        return []
    return [p.name for p in parameters if "Blob" in str(p.annotation)]


def _planned(
    function: Callable[..., Any], name: str, nodes: Sequence[Record], options: Mapping[str, Any]
) -> tuple[Replay, bool]:
    graph = Graph(name)
    blobs = [graph.blob(f"x{i}", node.shape, node.dtype) for i, node in enumerate(nodes)]
    found = function(*blobs, **options)
    outputs = [found] if isinstance(found, Blob) else list(found)
    return Replay(blobs, outputs), isinstance(found, Blob)
