"""Gradients of operations of graphs on arrays: those that the operations build in graphs, recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from actorflow.array.transforms.lifting import GraphOperation, Replay
from actorflow.errors import GraphError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob

if TYPE_CHECKING:
    from actorflow.array.array import Array
    from actorflow.graph.nodes import Op


def pull_back_lifted(
    lifted: GraphOperation, inputs: Sequence[Array], outputs: Any, grad: Any, wanted: Sequence[bool]
) -> list[Array | None]:
    """The gradients of the inputs of one op on arrays.

    Args:
        lifted: The operation.
        inputs: What it read.
        outputs: What it gave; a tuple for several.
        grad: The gradient of that; of several by their positions.
        wanted: Which inputs' gradients are asked for.
    Raises:
        GraphError: if the operation has no gradient.
    """
    operation = lifted.operation
    if not operation.differentiable:
        raise GraphError(f"{operation} has no gradient")
    results = [outputs] if not isinstance(outputs, tuple) else [*outputs]
    grads = {0: grad} if not isinstance(grad, dict) else grad
    wanted = [want and not operation.is_constant(i) for i, want in enumerate(wanted)]
    graph = Graph(lifted.name)
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
    """An op as its gradient sees it: its outputs are given, so that they are not computed again."""

    def __init__(self, op: Op, outputs: Sequence[Blob]) -> None:
        self._op = op
        self.outputs = tuple(outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)
