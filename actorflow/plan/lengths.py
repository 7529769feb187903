"""The lengths of open axes: found in the feeds of a frame, put into types and operations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from actorflow.errors import DTypeError, FeedError, GraphError, ShapeError, text_of
from actorflow.graph.flow import Loop, WithBodies
from actorflow.graph.nodes import Blob, Op
from actorflow.loop import Steps
from actorflow.ops.operation import Operation
from actorflow.spec import Length, Lengths, TensorSpec, at, axes_in, opened, said

#: Errors of functions of lengths whose arguments, which a file may have made, do not fit the lengths.
_UNFIT = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
#: Shapes of feeds whose lengths are kept: finding them anew takes as long as everything else at the start of a frame.
_MOST_KNOWN = 64


class Closed:
    """The types of blobs and the operations of ops, for certain lengths of the open axes.

    Types are inferred once more, by the same rules, which checks everything that was open when the ops were connected.

    Args:
        lengths: Lengths of all axes that are open there.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = dict(lengths)
        self._specs: dict[Blob, TensorSpec] = {}
        self._operations: dict[Op, Operation] = {}

    def close(self, ops: Iterable[Op]) -> Steps[None]:
        """Infer the types of the ops' outputs.

        Args:
            ops: All that are planned, in a topological order.
        Raises:
            ShapeError, DTypeError: if the lengths do not fit; it names the op, the line that made it, and the lengths.
        """
        for op in ops:
            try:
                self._close(op)
            except GraphError as error:
                raise type(error)(self._said(op, str(error))) from None
            except _UNFIT as error:
                problem = f"{op.operation!s:.200}: {type(error).__name__}: {error}"
                raise ShapeError(self._said(op, problem)) from error
            yield

    def _said(self, op: Op, problem: str) -> str:
        return f"op {op.name!r}, with {said(tuple(self._lengths.items()))}: {problem}\n  created at {op.site}"

    def spec(self, blob: Blob) -> TensorSpec:
        """The type of a blob."""
        found = self._specs.get(blob)
        if found is None:
            found = self._specs[blob] = at(blob.spec, self._lengths)
        return found

    def operation(self, op: Op) -> Operation:
        """The operation of an op."""
        return self._operations.get(op, op.operation)

    def _close(self, op: Op) -> None:
        operation: Operation = at(op.operation, self._lengths)
        if operation is not op.operation:
            self._operations[op] = operation
        elif not any(axes_in(blob.spec.shape) for blob in (*op.inputs, *op.outputs)):
            return
        if isinstance(operation, WithBodies):  # whose parts are closed as they are planned
            if isinstance(operation, Loop):
                self._check_loop(operation, op)
            return
        inferred = operation.infer(*[TensorSpec(opened(blob.shape, self._lengths), blob.dtype) for blob in op.inputs])
        for blob, found in zip(op.outputs, inferred or (), strict=bool(inferred)):
            shape = self.spec(blob).shape
            if found.shape != shape:
                raise ShapeError(f"{operation} gives shape {found.shape}, but {blob.name!r} has {blob.shape} = {shape}")
            if found.dtype != blob.dtype:
                raise DTypeError(f"{operation} gives {found}, but {blob.name!r} is of {blob.dtype}")

    def _check_loop(self, operation: Loop, op: Op) -> None:
        (body, *_), carries = operation.bodies, operation.carries
        for blob, after in zip(op.inputs[:carries], body.outputs, strict=False):
            if (begin := self.spec(blob)) != (made := self.spec(after)):
                raise ShapeError(f"{operation} begins with {blob.name!r}, {begin}, and carries on {made}")
        for blob in op.inputs[carries : operation.given]:
            if (count := self.spec(blob).shape[0]) != operation.length:
                raise ShapeError(f"{operation}: {blob.name!r} must have {operation.length} entries, got {count}")


class OpenAxes:
    """The open axes of a part of a graph, and the sources whose feeds give their lengths.

    Args:
        name: The graph's.
        ops: The ops of the part.
        fetched: The blobs that are fetched.
        crosses_ranks: Whether anything goes from one rank to another there, so that all must have the same lengths.
        fed: Blobs that are fed though ops write them.
    """

    def __init__(
        self,
        name: str,
        ops: Sequence[Op],
        fetched: Sequence[Blob],
        crosses_ranks: bool = False,
        fed: Collection[Blob] = (),
    ) -> None:
        self.crosses_ranks = crosses_ranks
        blobs = dict.fromkeys((*fetched, *[blob for op in ops for blob in (*op.inputs, *op.outputs)]))
        self.names = sorted({*axes_in(tuple([op.operation for op in ops])), *axes_in(tuple([b.spec for b in blobs]))})
        self._name = name
        self._sources = [
            blob for blob in blobs if (not blob.producers or blob in fed) and not blob.is_variable and blob.spec.axes
        ]
        self._known: dict[tuple[tuple[int, ...], ...], Lengths] = {}  # by the shapes of the feeds

    def checked(self, given: Mapping[str, Any]) -> Lengths:
        """Lengths that the user gives.

        Raises:
            GraphError: if one is missing, is no length, or is of no axis.
        """
        if sorted(given) != self.names or not all(
            isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in given.values()
        ):
            wanted, example = ", ".join(map(repr, self.names)) or "none", dict.fromkeys(self.names, 8)
            how = f"give the length of each, axes={example}, got {dict(given)}"
            raise GraphError(f"the open axes of graph {self._name!r} are {wanted}: {how}")
        return tuple([(name, int(given[name])) for name in self.names])

    def of(self, feeds: Any) -> Lengths:
        """The lengths that feeds have.

        Raises:
            FeedError, ShapeError: if an axis has no length, or several ones.
        """
        arrays = map(feeds.get, self._sources) if type(feeds) is dict else ()
        shapes = tuple([array.shape for array in arrays if type(array) is np.ndarray])
        lengths = self._known.get(shapes)
        if lengths is None:
            lengths = self.whole(self.found(feeds))
            if len(shapes) == len(self._sources):  # else some are fed otherwise, or not at all
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[shapes] = lengths
        return lengths

    def found(self, feeds: Any, rank: int | None = None) -> dict[str, int]:
        """The lengths of the axes that feeds have, of sources on a rank alone if one is given.

        Raises:
            FeedError, ShapeError: if a value has no such shape, or an axis several lengths.
        """
        found: dict[str, tuple[int, Blob]] = {}
        for blob in self._sources:
            if rank is not None and blob.place.rank != rank:
                continue
            value = feeds.get(blob, feeds.get(blob.name, feeds)) if hasattr(feeds, "get") else feeds
            if value is feeds:
                continue
            shape = shape_of(value, blob)
            if len(shape) != len(blob.shape):
                raise ShapeError(f"feed for blob {blob.name!r}: expected shape {blob.shape}, got {shape}")
            lengths: tuple[Any, ...] = blob.shape
            for length, n in zip(lengths, shape, strict=True):
                name = length.name if isinstance(length, Length) else None
                if name is None:
                    continue
                known, other = found.setdefault(name, (n, blob))
                if known != n:
                    raise ShapeError(
                        f"axis {name!r} is {known} in the feed for blob {other.name!r} {other.spec}, "
                        f"and {n} in the one for {blob.name!r} {blob.spec}"
                    )
        return {name: n for name, (n, _) in found.items()}

    def whole(self, found: Mapping[str, int]) -> Lengths:
        """The lengths, in their order.

        Raises:
            FeedError: if an axis has none.
        """
        missing = [name for name in self.names if name not in found]
        if missing:
            sources = ", ".join(f"{blob.name!r} {blob.spec}" for blob in self._sources) or "no source"
            raise FeedError(
                f"graph {self._name!r}: no feed says the length of {', '.join(map(repr, missing))}; "
                f"open axes are those of {sources}"
            )
        return tuple([(name, found[name]) for name in self.names])


def shape_of(value: Any, blob: Blob) -> tuple[int, ...]:
    """The shape of a feed.

    Raises:
        FeedError: if it has none.
    """
    try:
        shape = getattr(value, "shape", None)
        return tuple(shape) if shape is not None else np.shape(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the value's own methods may raise anything
        raise FeedError(
            f"feed for blob {blob.name!r}: a {type(value).__name__} has no shape: "
            f"{type(error).__name__}: {text_of(error)}"
        ) from error
