"""Rows: what a batcher knows of a graph, and how the feeds of requests become those of one frame."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from actorflow.actors.task import callers, within
from actorflow.errors import FeedError, GraphError, ShapeError
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.interchange import as_array
from actorflow.plan.lengths import shape_of
from actorflow.plan.validate import chosen
from actorflow.runtime.engine import Engine, Fetch
from actorflow.runtime.program import Result, check_unneeded
from actorflow.spec import Length, at, axes_in

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from actorflow.actors.dispatcher import Dispatcher
    from actorflow.runtime.batched import Batch, Batcher, Group
    from actorflow.runtime.pause import Permit


class Request:
    """The rows of one caller, or a part of them that goes into one frame.

    Attributes:
        arrays: An array per source.
        rows: Their common length.
        lengths: Lengths of the other open axes.

    The other attributes are set by the batcher, which takes it in.

    Attributes:
        place: Where it is: a group at first, then a batch, None at its end.
        order: Lower ones go first.
        since_s: When it came, by the loop's clock.
        started: When its frame did, by `time.perf_counter`.
        future: Its result; None if it has failed.
        error: What it has failed with, until its caller has that: by its traceback an error refers to requests.
        requester: The span that it came from, if frames have spans.
    """

    __slots__ = ("arrays", "error", "future", "lengths", "order", "place", "requester", "rows", "since_s", "started")

    place: Group | Batch | None
    order: float
    since_s: float
    started: float
    future: asyncio.Future[Result | None]
    requester: Span | None

    def __init__(self, arrays: list[Any], rows: int, lengths: tuple[int, ...]) -> None:
        self.arrays = arrays
        self.rows = rows
        self.lengths = lengths
        self.error: BaseException | None = None

    def fail(self) -> NoReturn:
        """Raise what it has failed with; the caller of this sees to it that it is not kept."""
        error = self.error
        assert error is not None
        try:
            raise error
        finally:
            del error  # whose traceback refers to this call


class Rows:
    """What is computed by rows: a part of a graph whose sources and results all begin with one open axis.

    Args:
        engine: Runs the frames.
        fetch: As for `Graph.run`.
        axis: Name of the axis; None for the one that the sources begin with.

    Attributes:
        name: Name of the graph.
        trace: Where ended requests are entered.
        axis: Name of the axis.
        repeatable: Whether rows may be computed again: no variable is updated.

    Raises:
        GraphError: if a source or a result has no such axis, or rows depend on each other.
    """

    def __init__(self, engine: Engine, fetch: Fetch, axis: str | None) -> None:
        graph = engine.graph
        if graph.options.dry_run:
            raise GraphError(f"graph {graph.name!r} computes nothing (dry_run=True): there are no rows to hand out")
        self._engine = engine
        self._claim: Dispatcher | None = None
        self._number = -1
        self._fetch = None if fetch is None else tuple(fetch)
        targets = None if self._fetch is None else [graph.resolve(target) for target in self._fetch]
        ops, fetched = chosen(graph, targets)
        read = dict.fromkeys((*fetched, *[blob for op in ops for blob in op.inputs]))
        self.name = graph.name
        self.trace = engine.trace
        self._sources = [blob for blob in read if not blob.producers and not isinstance(blob, Variable)]
        self._specs = [blob.spec for blob in self._sources]
        self.axis = _axis_of(graph.name, self._sources, axis)
        _check_rows(self.axis, ops, fetched)
        away = next((op for op in ops if op.place.rank != graph.world.rank), None)
        if away is not None:
            raise GraphError(f"op {away.name!r} runs on {away.place}: frames of batched runs stay on one rank")
        self.repeatable = not any(isinstance(blob, Variable) for op in ops for blob in op.outputs)
        self._index: dict[Any, int] = {}
        for index, source in enumerate(self._sources):
            self._index[source] = self._index[source.name] = index
        #: Shapes without the first axis, where they are known, and dtypes.
        self._expected = [(None if axes_in(s.shape[1:]) else s.shape[1:], s.dtype) for s in self._specs]
        self._others = sorted({name for spec in self._specs for name in axes_in(spec.shape)} - {self.axis})
        lengths: Iterable[Any] = [length for spec in self._specs for length in spec.shape]
        unsaid = {*self._others} - {length.name for length in lengths if isinstance(length, Length)}
        if unsaid:
            raise GraphError(f"graph {self.name!r}: no feed says the length of {', '.join(map(repr, sorted(unsaid)))}")

    # -- one request -----------------------------------------------------------------------------------------------

    def read(self, feeds: Mapping[Any, Any]) -> Request:
        """The rows of a request.

        Raises:
            FeedError, ShapeError, DTypeError, TypeError: if the feeds do not fit.
            GraphError: for a request of an op of the graph itself, which might wait for its own end.
        """
        if within.get() is not None:
            self._check_caller()
        try:
            pairs = feeds.items()
        except AttributeError:
            got = type(feeds).__name__
            raise TypeError(f"feeds must be a mapping of blobs, or their names, to arrays, got {got}") from None
        arrays: list[Any] = [None] * len(self._sources)
        lengths: dict[str, int] = {}
        count = 0
        others: list[int] = []  # sources whose feed is no array of their type, as far as one has seen
        for key, value in pairs:
            index = self._index.get(key)
            if index is None:
                check_unneeded(self._engine.graph, key)
                continue
            if arrays[index] is not None:
                raise FeedError(f"blob {self._sources[index].name!r} is fed twice")
            arrays[index] = value
            count += 1
            inner, dtype = self._expected[index]
            if type(value) is np.ndarray and value.shape[1:] == inner and value.dtype == dtype:
                n = len(value)
                if lengths.setdefault(self.axis, n) == n:
                    continue
            self._note(value, index, lengths)
            others.append(index)
        if count < len(arrays):
            missing = [blob for blob, array in zip(self._sources, arrays, strict=True) if array is None]
            names = ", ".join(f"{blob.name!r} {blob.spec}" for blob in missing)
            fed = ", ".join(repr(getattr(key, "name", key)) for key in feeds) or "nothing"
            raise FeedError(f"graph {self.name!r} needs values for {names}; fed: {fed}")
        for index in others:
            arrays[index] = as_array(arrays[index], at(self._specs[index], lengths), self._what(index))
        rows = lengths[self.axis]
        if not rows:
            raise ShapeError(f"a batched run of graph {self.name!r} needs at least 1 row, got none")
        return Request(arrays, rows, tuple([lengths[name] for name in self._others]) if self._others else ())

    def _check_caller(self) -> None:
        for frame, op in callers():
            if frame in self._engine.resources.running:
                raise GraphError(f"op {op.what!r} of graph {self.name!r} cannot await a batched run of its own graph")

    def _note(self, value: Any, index: int, lengths: dict[str, int]) -> None:
        """Take the lengths of open axes from a feed."""
        wanted: tuple[Any, ...] = self._specs[index].shape
        shape = shape_of(value, self._sources[index])
        if len(shape) != len(wanted):
            raise ShapeError(f"{self._what(index)}: expected shape {wanted}, got {shape}")
        for length, n in zip(wanted, shape, strict=True):
            name = length.name if isinstance(length, Length) else None
            if name is not None and lengths.setdefault(name, n) != n:
                raise ShapeError(
                    f"{self._what(index)}: axis {name!r} is {n}, and {lengths[name]} in another feed of the request"
                )

    def _what(self, index: int) -> str:
        return f"feed for blob {self._sources[index].name!r}"

    def feeds(self, request: Request) -> dict[Blob, Any]:
        """The rows of a request, as functions of the user get them."""
        return dict(zip(self._sources, request.arrays, strict=True))

    def split(self, request: Request, most: int) -> list[Request]:
        """Parts of at most so many rows."""
        starts = range(0, request.rows, most)
        parts = [[array[start : start + most] for array in request.arrays] for start in starts]
        return [Request(arrays, len(arrays[0]), request.lengths) for arrays in parts]

    # -- frames ----------------------------------------------------------------------------------------------------

    def joined(self, requests: Sequence[Request], added: int) -> dict[Blob, Any]:
        """Feeds of one frame: the rows one after the other, and the last one so many times more."""
        if len(requests) == 1 and not added:
            return self.feeds(requests[0])
        feeds = {}
        for source, *arrays in zip(self._sources, *[request.arrays for request in requests], strict=True):
            if added:
                last = arrays[-1][-1:]
                arrays.append(np.broadcast_to(last, (added, *last.shape[1:])))
            feeds[source] = np.concatenate(arrays)
        return feeds

    def enter(self, batcher: Batcher) -> None:
        """Keep the graph on the running loop, and show the batcher to those who watch it, until it leaves."""
        self._claim = self._engine.resources.claim()
        self._number = self._engine.open_batcher(batcher)

    @property
    def are_kept(self) -> bool:
        """True from `enter` until `leave`."""
        return self._claim is not None

    def leave(self) -> None:
        """Undo `enter`; idempotent."""
        self._engine.batchers.pop(self._number, None)
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release()

    def requester(self) -> Span | None:
        """The current span, if frames have spans."""
        instrumentation = self._engine.instrumentation
        return None if instrumentation is None else instrumentation.current()

    async def turn(self) -> Permit | None:
        """Wait until a frame may start, while the graph is paused; returns the permit for it, to be given back."""
        queue = self._engine.queue
        return await queue.keep() if queue.closed else None

    def give_back(self, permit: Permit | None) -> None:
        """End a turn, in which a frame has started or not."""
        self._engine.queue.give_back(permit)

    async def run(self, feeds: Mapping[Blob, Any], requesters: Sequence[Span], permit: Permit | None) -> Result:
        """Compute the rows of one frame.

        Args:
            feeds: As `joined` gives them.
            requesters: The spans of the requests.
            permit: What `turn` has returned.
        """
        begun = self._engine.begin(feeds, self._fetch, False, permit=permit, requesters=requesters)
        program, frame = await begun
        return await program.outcome(frame)


def _axis_of(name: str, sources: Sequence[Blob], wanted: str | None) -> str:
    """The open axis that all sources begin with."""
    if not sources:
        raise GraphError(f"graph {name!r} is fed nothing that is needed: there are no rows to batch")
    for blob in sources:
        first, found = _first(blob)
        wanted = wanted or found
        if found is None or found != wanted:
            axis = wanted or "batch"
            shape = ", ".join(map(repr, (axis, *blob.shape[1:])))
            advice = "every source must"
            if type(first) is int:
                option = f"axes={{{blob.name!r}: {{0: {axis!r}}}}} (--axes {blob.name}:0={axis})"
                advice = f"name the axis, shape=({shape}), or, if it comes from a file of ONNX, {option}"
            raise GraphError(
                f"blob {blob.name!r} {blob.spec} cannot be fed in batches: it does not begin with an open axis"
                f"{f' {wanted!r}' if wanted else ''}; {advice}"
            )
    assert wanted is not None
    return wanted


def _first(blob: Blob) -> tuple[Any, str | None]:
    """The length of a blob's first axis, None if there is none; its name, if it is open."""
    first: Any = blob.shape[0] if blob.shape else None
    return first, first.name if isinstance(first, Length) else None


def _check_rows(axis: str, ops: Iterable[Op], fetched: Iterable[Blob]) -> None:
    """Check that results have a row for each row that is fed, which depends on no other, as far as shapes say it."""
    for blob in fetched:
        if _first(blob)[1] != axis or axis in axes_in(blob.shape[1:]):
            raise GraphError(
                f"blob {blob.name!r} {blob.spec} cannot be fetched from batched runs: it must have one row for each "
                f"row that is fed, along its first axis {axis!r} alone"
            )
    for op in ops:
        for blob in op.inputs:
            if (
                not isinstance(blob, Variable)
                and axis not in axes_in(blob.shape)
                and any(axis in axes_in(read.shape) for producer in blob.producers for read in producer.inputs)
            ):
                raise GraphError(
                    f"op {op.name!r} reads blob {blob.name!r} {blob.spec}, which is made of all rows of a batch: "
                    "callers of batched runs would get results that depend on each other's rows"
                )
