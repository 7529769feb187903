"""Ops that join the items of ops that emit into values of the frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actorflow.errors import GraphError, ShapeError
from actorflow.graph.body import ops_before
from actorflow.graph.nodes import Blob
from actorflow.ops.function import Emitting, check_runs, is_coroutine_function, name_of
from actorflow.ops.operation import Application, Grads, Operation
from actorflow.place import Place
from actorflow.spec import TensorSpec

_OBJECT = TensorSpec.of((), object)


@dataclass(frozen=True)
class Collect(Operation):
    """Joins the values that a blob has for the items of one frame; see `actorflow.collect`.

    The op that emits the items computes it: a plan takes both, and the ops between them, as one.

    Attributes:
        fn: Called with the list of values; None if they are joined by `how`.
        how: "stack" or "list".
        length: Number of items that there must be; None for any.
        spec: Type of the result, where that does not follow.
    """

    fn: Callable[..., Any] | None = None
    how: str = "stack"
    length: Any = None
    spec: TensorSpec | None = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        if self.fn is None and self.how == "stack" and self.length is not None and not x.is_object:
            return (TensorSpec((self.length, *x.shape), x.dtype),)
        return (self.spec or _OBJECT,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        raise GraphError(
            f"{op.name!r} joins the items of an op that emits, and there is no gradient through that: "
            "take the gradient of each item, and collect it; or use af.scan"
        )

    def __str__(self) -> str:
        return f"Collect({self.how if self.fn is None else name_of(self.fn)})"


def collect(
    blob: Blob,
    how: str | Callable[[list[Any]], Any] = "stack",
    *,
    length: int | str | None = None,
    outputs: TensorSpec | None = None,
    name: str | None = None,
) -> Blob:
    """Join the values that a blob has for the items of an op that emits into one value of the frame.

    How many items there are is known when the generator has ended. So the result is a blob of a Python object, which
    functions read, and which can be fetched; unless the number is given by ``length``, or the type by ``outputs``.

    Args:
        blob: A blob computed for each item of an op that `Graph.function` has made with ``emits=True``.
        how: ``"stack"`` gives an array with an entry per item along a new first axis, ``"list"`` a list; a function is
            called with the list, on the loop, and gives the value.
        length: Number of items, or the name of an open axis that is as long: the stack is an array of that length,
            which any op reads, and it is an error if there are more items, or fewer.
        outputs: Type of the function's result.
        name: Name of the op, made unique.
    Raises:
        GraphError: if the blob does not follow from an op that emits; if an argument goes with another ``how``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["n"])
        >>> @graph.function(outputs=af.TensorSpec.of([2]), emits=True)
        ... def pairs(values):
        ...     for i in range(len(values) - 1):
        ...         yield values[i : i + 2]
        >>> y = af.ops.sum(pairs(x))
        >>> stacked, listed = af.collect(y), af.collect(y, "list")
        >>> largest = af.collect(y, max, outputs=y.spec)
        >>> result = graph.run_sync({x: [1, 5, 2, 0]}, fetch=[stacked, largest * 2])
        >>> print(result[stacked], result[largest.consumers[0].outputs[0]])
        [6. 7. 2.] 14.0
    """
    if not isinstance(blob, Blob):
        raise TypeError(f"collect: expected a blob, got {type(blob).__name__}")
    if not callable(how) and how not in ("stack", "list"):
        raise GraphError(f"collect: how must be 'stack', 'list' or a function, got {how!r}")
    if length is not None and how != "stack":
        raise GraphError("collect: length= is for how='stack'")
    if outputs is not None and not callable(how):
        raise GraphError("collect: outputs= is for a function: a stack has length=, and a list has no type")
    if length is not None and blob.spec.is_object:
        raise ShapeError(f"collect: blob {blob.name!r} is a Python object, whose stack has no type: leave length= out")
    if not _emissions_around(blob):
        raise GraphError(
            f"collect: blob {blob.name!r} does not follow from an op that emits: graph.function(..., emits=True)"
        )
    if callable(how):
        check_runs(how, "af.collect")
        if is_coroutine_function(how):
            raise GraphError(f"collect: {name_of(how)} is async: collect a list, and have an async function read that")
    count = None if length is None else TensorSpec.of([length]).shape[0]
    spec = None if outputs is None else TensorSpec.of(*outputs)
    fn = how if callable(how) else None
    operation = Collect(fn, "list" if callable(how) else how, count, spec)
    root = blob.graph.root
    with root.at(Place(blob.place.rank)):  # where items are joined, wherever they are computed
        made: Blob = root.apply(operation, blob, name=name)
    return made


def _emissions_around(blob: Blob) -> int:
    """Number of ops that emit, nested, with a value per item."""
    around: dict[Blob, int] = {}
    for op in ops_before([blob]):
        count = max([around.get(each, 0) for each in op.inputs], default=0)
        count += isinstance(op.operation, Emitting) - isinstance(op.operation, Collect)
        around.update(dict.fromkeys(op.outputs, count))
    return around.get(blob, 0)
