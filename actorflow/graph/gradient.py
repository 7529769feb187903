"""Gradients: the backward part of a graph, built as more of the same graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.graph.body import ops_before
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.graph.options import Hints
from actorflow.ops.backward import Backward
from actorflow.ops.elementwise import Sum
from actorflow.ops.fills import Fill
from actorflow.ops.operation import Application
from actorflow.spec import TensorSpec, may_equal


@overload
def gradient(loss: Blob, wrt: Blob) -> Blob: ...


@overload
def gradient(loss: Blob, wrt: Sequence[Blob]) -> list[Blob]: ...


def gradient(loss: Blob, wrt: Blob | Sequence[Blob]) -> Blob | list[Blob]:
    """Build the gradient of a scalar blob.

    Everything made goes into a sub-graph "gradient" of the current scope, in scopes named as those of the ops. An
    op's gradient is on the op's place and lane. Only the part ``wrt`` needs is built. Where some ops
    read a blob, their contributions are added in the order in which these were connected. A variable is differentiated
    as the value that the frame reads; updates are not looked through.

    Args:
        loss: Shape (), floating.
        wrt: The blob or blobs, variables or not, to differentiate by; floating, and ``loss`` depends on each.
    Returns:
        One blob per blob of ``wrt``, of its shape and dtype: one for one, a list for a sequence.
    Raises:
        ShapeError: if ``loss`` is not 0-d.
        DTypeError: if ``loss`` or one of ``wrt`` is not floating.
        GraphError: if ``loss`` does not depend on one of ``wrt``, or does so through an op that has no gradient.
        CycleError: if the ops that ``loss`` needs wait for each other.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [3])
        >>> loss = af.ops.sum(x * x)
        >>> dx = af.gradient(loss, x)
        >>> graph.run_sync({x: [1, 2, 3]})[dx]
        array([2., 4., 6.], dtype=float32)
    """
    if loss.shape != ():
        raise ShapeError(f"the loss must be 0-d, blob {loss.name!r} is {loss.spec}")
    targets = [wrt] if isinstance(wrt, Blob) else list(wrt)
    root = loss.graph.root
    for blob in (loss, *targets):
        if blob.graph.root is not root:
            raise GraphError(f"blob {blob.name!r} is of graph {blob.graph.root.name!r}, the loss of {root.name!r}")
        if not is_floating(blob):
            raise DTypeError(f"only floating blobs have gradients, blob {blob.name!r} is {blob.spec}")
    order = ops_before([loss])
    path = _path(order, _active(order, targets), [loss])
    for blob in targets:
        if blob not in path:
            raise GraphError(_why_not(loss, blob, order))
    _check_differentiable(order, path, [loss], targets)
    with root._store.all_or_nothing(), root.unique_subgraph("gradient") as scope:
        builder = _Builder(scope, path)
        with root._made(of=next(iter(loss.producers), None)), root.at(loss.place):
            one = root.apply(Fill(1.0, TensorSpec((), loss.dtype)), name="one")
        found = builder.run(order, [loss], [one], targets)
    return found[0] if isinstance(wrt, Blob) else found


def pulled_back(results: Sequence[Blob], grads: Sequence[Blob | None], wrt: Sequence[Blob]) -> list[Blob]:
    """Build gradients in the current scope from gradients of several results: zeros where nothing depends on a blob.

    Args:
        results: Blobs that the loss depends on.
        grads: Its gradient by each of them; None for zero.
        wrt: The blobs to differentiate by, floating.
    Raises:
        GraphError: if a result depends on one of ``wrt`` through an op that has no gradient.
    """
    root = wrt[0].graph.root
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if g is not None]
    seeds = [y for y, _ in pairs]
    order = ops_before(seeds)
    path = _path(order, _active(order, wrt), seeds)
    _check_differentiable(order, path, seeds, wrt)
    return _Builder(root.current_scope, path).run(order, seeds, [g for _, g in pairs], wrt)


def _check_differentiable(
    order: Sequence[Op], path: set[Blob], results: Sequence[Blob], targets: Sequence[Blob]
) -> None:
    """Check that all ops on a path have gradients.

    Raises:
        GraphError: if one has none.
    """
    for op in order:
        if (
            not op.operation.differentiable
            and any(b in path for b in _smooth(op))
            and any(b in path for b in op.outputs)
        ):
            name = results[0].name if len(results) == 1 else ", ".join(each.name for each in results)
            raise GraphError(
                f"loss {name!r} depends on {_first(targets, op, order).name!r} through op {op.name!r} "
                f"({op.operation}), which has no gradient; created at {op.site}"
            )


def trainable(loss: Blob) -> tuple[Variable, ...]:
    """The variables by which ``loss`` can be differentiated, in order of creation.

    Raises:
        CycleError: if the ops that ``loss`` needs wait for each other.
    """
    order = ops_before([loss])
    variables = {b for op in order for b in _smooth(op) if isinstance(b, Variable) and is_floating(b)}
    path = _path(order, _active(order, variables), [loss])
    return tuple(sorted((v for v in variables if v in path), key=lambda variable: variable.id))


def is_floating(blob: Blob) -> bool:
    """Return whether a blob is of numbers that change smoothly."""
    return blob.dtype.kind in "fV" and not blob.dtype.hasobject  # ml_dtypes' bfloat16 has kind V


def _smooth(op: Op) -> Sequence[Blob]:
    """The inputs that an op may be differentiated by."""
    operation = op.operation
    if not operation.constants:
        return op.inputs
    return [blob for i, blob in enumerate(op.inputs) if not operation.is_constant(i)]


def _active(order: Iterable[Op], sources: Iterable[Blob]) -> set[Blob]:
    """Blobs whose value changes smoothly with one of ``sources``: reached through floating blobs only."""
    active = set(sources)
    for op in order:
        if any(blob in active and _is_smooth(op, blob) for blob in _smooth(op)):
            active.update(blob for blob in op.outputs if _is_smooth(op, blob) and not isinstance(blob, Variable))
    return active


def _is_smooth(op: Op, blob: Blob) -> bool:
    """Return whether an op's input or output is floating; complex if the op has gradients for that."""
    return is_floating(blob) or (op.operation.takes_complex and blob.dtype.kind == "c")


def _path(order: Sequence[Op], active: set[Blob], results: Iterable[Blob]) -> set[Blob]:
    """The active blobs that ``results`` depend on through active blobs."""
    path = {*results} & active
    for op in reversed(order):
        if any(blob in path for blob in op.outputs):
            path.update(blob for blob in _smooth(op) if blob in active)
    return path


def _why_not(loss: Blob, blob: Blob, order: Sequence[Op]) -> str:
    reached = {blob}
    for op in order:
        if any(b in reached for b in op.inputs):
            reached.update(op.outputs)
    if loss not in reached:
        return f"loss {loss.name!r} does not depend on blob {blob.name!r}"
    stops = next((b.name for op in order for b in op.outputs if b in reached and not is_floating(b)), None)
    if stops is None:
        return f"loss {loss.name!r} depends on blob {blob.name!r} only through inputs that their ops hold constant"
    return f"loss {loss.name!r} depends on blob {blob.name!r} only through blob {stops!r}, which is not floating"


def _first(targets: Iterable[Blob], op: Op, order: Sequence[Op]) -> Blob:
    return next(t for t in targets if any(blob in _active(order, [t]) for blob in _smooth(op)))


def _application(op: Op) -> Application:
    """The op as its gradient sees it: an output is its own, computed again where the blob is a sum with others'."""
    if all(len(blob.producers) == 1 for blob in op.outputs):
        return Application(op.inputs, op.outputs, op.name)

    def again() -> Sequence[Blob]:
        made = op.graph.root.apply(op.operation, *op.inputs, name="again")
        return (made,) if isinstance(made, Blob) else tuple(made)

    return Application(op.inputs, again, op.name)


class _Builder:
    """Makes the ops of one backward pass.

    Attributes:
        scope: Where everything is made.
        path: Blobs whose gradients are built.
    """

    def __init__(self, scope: Graph, path: set[Blob]) -> None:
        self.scope = scope
        self.root = scope.root
        self.path = path
        outermost = self.root if scope.body is None else scope.body.scope
        self._scopes: dict[Graph, Graph] = {outermost: scope}

    def run(
        self, order: Sequence[Op], results: Sequence[Blob], grads: Sequence[Blob], targets: Sequence[Blob]
    ) -> list[Blob]:
        """Build everything from the gradients of results; the gradients of ``targets``."""
        backward = Backward(self.path, self._through, self._total)
        for result, grad in zip(results, grads, strict=True):
            backward.seed(result, grad)
        backward.walk(op for op in reversed(order) if any(blob in self.path for blob in op.outputs))
        found: dict[Blob, Blob] = {}
        for blob in targets:
            grad = found[blob] if blob in found else backward.grad(blob)
            if grad is None:  # an operation said that the gradient is zero
                with self.root.at(blob.place):
                    grad = self.root.apply(Fill(0.0, blob.spec), name="zero")
            found[blob] = grad
        return [found[blob] for blob in targets]

    def _through(self, op: Op, grads: list[Any], wanted: list[bool]) -> Sequence[Any]:
        hints = op.hints or Hints()
        with (
            self._scope_like(op.graph),
            self.root._made(of=op),
            self.root.at(op.place, op.lane, libraries=hints.libraries, force_cpu=hints.force_cpu),
        ):
            results = op.operation.gradient(_application(op), grads, wanted)
        if len(results) != len(op.inputs):
            raise GraphError(
                f"{op.operation.kind}.gradient() must return one blob or None per input: "
                f"{len(op.inputs)}, got {len(results)}, for op {op.name!r}"
            )
        for blob, grad, want in zip(op.inputs, results, wanted, strict=True):
            is_wrong = grad is not None and want and grad.spec != blob.spec
            if is_wrong and not (grad.dtype == blob.dtype and may_equal(grad.shape, blob.shape)):
                raise ShapeError(
                    f"{op.operation.kind}.gradient() must give {blob.spec} for {blob.name!r}, "
                    f"got {grad.spec}, for op {op.name!r}"
                )
        return results

    def _total(self, blob: Blob, terms: list[Any]) -> Blob:
        rank = {op: i for i, op in reversed(list(enumerate(blob.consumers)))}
        terms.sort(key=lambda term: rank.get(term[0], -1))  # the given gradient comes first
        # Where the terms are, if that is one place: a weight that lives elsewhere gets the sum, not each term.
        places = {term.place for _, term in terms}
        place = places.pop() if len(places) == 1 else blob.place
        maker = blob if isinstance(blob, Variable) else next(iter(blob.producers), None)
        with self._scope_like(blob.graph), self.root._made(of=maker), self.root.at(place, terms[-1][0].lane):
            grad: Blob = self.root.apply(Sum(), *(term for _, term in terms))
        return grad

    def _scope_like(self, graph: Graph) -> Graph:
        missing = []
        while graph not in self._scopes:
            missing.append(graph)
            assert graph.parent is not None
            graph = graph.parent
        scope = self._scopes[graph]
        for graph in reversed(missing):
            with scope:
                scope = self._scopes[graph] = self.root.unique_subgraph(graph.name.rpartition("/")[2])
        return scope
