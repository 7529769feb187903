"""Bodies: parts of a graph that an op computes by itself, once, many times or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from actorflow.errors import CycleError, GraphError
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.graph.options import Hints

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph


class Body:
    """A branch, or the body of a loop: ops and blobs in a scope of their own, which only an op outside computes.

    Blobs from outside that its ops read are inputs, too: each has a blob in the body that stands for it.

    Args:
        scope: The sub-graph that its nodes are made in.

    Attributes:
        outer: The body that it lies in, if it lies in one.
        parameters: Blobs that stand for the values the op gives it.
        captured: Blobs from outside that it reads, each with the one that stands for it, in the order of first use.
        outputs: Blobs of the body that the op takes.
        is_closed: Whether the op that computes it is there, so that it cannot read more.
    """

    def __init__(self, scope: Graph) -> None:
        assert scope.parent is not None
        self.scope = scope
        self.outer = scope.parent.body
        self.parameters: tuple[Blob, ...] = ()
        self.captured: dict[Blob, Blob] = {}
        self.outputs: tuple[Blob, ...] = ()
        self.is_closed = False
        scope.body = self

    def __repr__(self) -> str:
        return f"<Body {self.scope.name!r}>"

    @property
    def inputs(self) -> tuple[Blob, ...]:
        """Its parameters, then the blobs that stand for blobs from outside."""
        return (*self.parameters, *self.captured.values())

    @property
    def ops(self) -> list[Op]:
        """The ops that its outputs need, in topological order."""
        return ops_before(self.outputs)

    def readers(self, blob: Blob) -> list[tuple[Op, int]]:
        """The ops that read one of its blobs, and as which input."""
        return [(op, i) for op in dict.fromkeys(blob.consumers) for i, each in enumerate(op.inputs) if each is blob]

    def own(self, blob: Blob) -> Blob:
        """The blob of the body that is, or stands for, a blob.

        Raises:
            GraphError: if the blob is of another body, or the body can read no more.
        """
        if blob.graph.body is self:
            return blob
        if blob.graph.body is not self.outer:
            if self.outer is None:
                assert blob.graph.body is not None
                raise GraphError(
                    f"blob {blob.name!r} is a part of {blob.graph.body.scope.name!r}, which an op of its own computes: "
                    "only what that op returns can be read outside"
                )
            blob = self.outer.own(blob)  # which hands it on
        if blob in self.captured:
            return self.captured[blob]
        if self.is_closed:
            raise GraphError(f"{self.scope.name!r} is complete: it cannot read blob {blob.name!r} from outside, too")
        with self.scope:
            root = self.scope.root
            name = root.unique_name(blob.name.rpartition("/")[0].rpartition("/")[2] or blob.name)
            stand_in = root._add_blob(self.scope, name, blob.spec, blob.place)
        self.captured[blob] = stand_in
        return stand_in

    def trace(self, fn: Callable[..., Any], names: Sequence[str], like: Sequence[Any]) -> Any:
        """Make its parameters, of the types of some blobs, and call a function with them; returns its result.

        Args:
            fn: Called with a blob for each parameter.
            names: Their names.
            like: Blobs of their types, and on their places.
        """
        root = self.scope.root
        with self.scope:
            made = [root._add_blob(self.scope, root.unique_name(name), b.spec, b.place) for name, b in zip(names, like)]  # noqa: B905
            self.parameters = tuple(made)
            return fn(*made)

    def inline(self, inputs: Sequence[Blob], root: Graph | None = None) -> list[Blob]:
        """Make its ops once more, on other blobs, as `made_again`; returns the outputs."""
        return made_again(self.ops, self.outputs, dict(zip(self.inputs, inputs, strict=True)), root or self.scope.root)


def made_again(ops: Sequence[Op], results: Sequence[Blob], stand_ins: Mapping[Blob, Blob], root: Graph) -> list[Blob]:
    """Make ops once more in the current scope of a graph, which may be another one; returns their results.

    Args:
        ops: The ops, each behind those that it needs.
        results: Blobs that they write, or that stand for others.
        stand_ins: By blob, the one read in its place.
        root: The graph.
    """
    made = dict(stand_ins)
    for op in ops:
        hints, inputs = op.hints or Hints(), [made.get(blob, blob) for blob in op.inputs]
        with root.at(op.place, op.lane, libraries=hints.libraries, force_cpu=hints.force_cpu):
            anew = None if op.graph.root is root else getattr(op.operation, "in_graph", None)  # has bodies of its graph
            found = root.apply(op.operation, *inputs) if anew is None else anew(root, inputs)
        made.update(zip(op.outputs, (found,) if isinstance(found, Blob) else found, strict=True))
    return [made.get(blob, blob) for blob in results]


def bodies_of(op: Op) -> Sequence[Body]:
    """The bodies that an op computes."""
    bodies: Sequence[Body] = getattr(op.operation, "bodies", ())
    return bodies


def with_bodies(ops: Sequence[Op]) -> Iterator[Op]:
    """Some ops, and all that they compute by bodies, at any depth."""
    for op in ops:
        yield op
        yield from with_bodies([*chain.from_iterable(body.ops for body in bodies_of(op))])


def _producers(blob: Blob) -> Sequence[Op]:
    return () if isinstance(blob, Variable) else blob.producers


def ops_before(results: Sequence[Blob]) -> list[Op]:
    """The ops that ``results`` need, in topological order; a variable needs none.

    Raises:
        CycleError: if ops wait for each other.
    """
    order: list[Op] = []
    state: dict[Op, bool] = {}  # False while the op's inputs are visited, True when it is in the order
    stack = [(op, False) for blob in reversed(results) for op in reversed(_producers(blob))]
    while stack:
        op, entered = stack.pop()
        if entered:
            state[op] = True
            order.append(op)
            continue
        if op in state:
            continue
        state[op] = False
        stack.append((op, True))
        for blob in reversed(op.inputs):
            for producer in reversed(_producers(blob)):
                known = state.get(producer)
                if known is False:
                    open_ops = [op for op, is_open in stack if is_open]
                    cycle = [*open_ops[open_ops.index(producer) :], producer]
                    raise CycleError([op.name for op in cycle], {op.name: op.site for op in cycle})
                if known is None:
                    stack.append((producer, False))
    return order
