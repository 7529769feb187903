"""Rows: what a batcher knows of a graph, and how the feeds of requests become those of one frame."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from actorflow.actors.task import callers, within
from actorflow.errors import DTypeError, FeedError, GraphError, ShapeError, mapping
from actorflow.graph.cache import Cached
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op, State, Variable
from actorflow.interchange import as_array, to_numpy
from actorflow.loop import waits
from actorflow.plan.lengths import shape_of
from actorflow.plan.validate import chosen, states_of
from actorflow.runtime.blocks import Blocks, Held
from actorflow.runtime.engine import Engine, Fetch
from actorflow.runtime.program import Result, check_unneeded, checked_feeds
from actorflow.spec import Length, TensorSpec, at, axes_in, rows_axis

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from actorflow.actors.dispatcher import Dispatcher
    from actorflow.runtime.batched import Batch, Batcher, Group
    from actorflow.runtime.pause import Permit
    from actorflow.runtime.sessions import Session


@dataclass(slots=True, eq=False)
class Request:
    """The rows of one caller, or a part of them that goes into one frame.

    Attributes:
        arrays: An array per source.
        row: Which of their rows is its own; None if all are.
        rows: Number of its rows.
        lengths: Lengths of the other open axes.
        states: The row of each state that a session has brought; once there is a result, the next ones.
        caller: Whose it is; those of several callers take turns.
        weight: How large the share of its caller is.
        held: The blocks of a cache that its session has.
        used: Number of positions that are there for it; once there is a result, for the next step.
        adds: Number of positions that it adds there.
        feedback: Indices of sources, each with that of the result that its next step is fed: with its own result, the
            request has become that step.

        ahead: Steps that the batcher computes before they are asked for.

    The other attributes are set by the batcher, which takes it in.

    Attributes:
        place: Where it is: a group at first, then a batch, None at its end.
        order: Lower ones go first.
        lead_s: Seconds that it goes before others that come with it.
        since_s: When it came, by the loop's clock.
        asked: Likewise, by `time.perf_counter`.
        started: When its frame did, by `time.perf_counter`.
        future: Its result; None if it has failed.
        error: Its exception, until its caller has it: by its traceback an error refers to requests.
        requester: The span that it came from, if frames have spans.
    """

    arrays: list[Any]
    rows: int
    lengths: tuple[int, ...]
    adds: int = 0
    row: int | None = None
    states: Sequence[npt.NDArray[Any]] = ()
    caller: Hashable = None
    weight: float = 1.0
    held: Held | None = None
    used: int = 0
    feedback: tuple[tuple[int, int], ...] = ()
    ahead: Ahead | None = None
    place: Group | Batch | None = None
    order: float = 0.0
    lead_s: float = 0.0
    since_s: float = 0.0
    asked: float = 0.0
    started: float = 0.0
    future: asyncio.Future[Result | None] = field(init=False)
    error: BaseException | None = None
    requester: Span | None = None

    def fail(self) -> NoReturn:
        """Raise what it has failed with; the caller of this sees to it that it is not kept."""
        error = self.error
        assert error is not None
        try:
            raise error
        finally:
            del error  # whose traceback refers to this call


class Step(NamedTuple):
    """A step that was computed for an iteration.

    Attributes:
        result: Its result.
        states, used: States and positions of the session after it.
        following: Values of the request for the step that follows; see `_FOLLOWING`.
        left: How many steps may follow.
        size_bytes: Bytes of its frame's arrays, which it keeps: it is a view of them.
    """

    result: Result
    states: Sequence[npt.NDArray[Any]]
    used: int
    following: tuple[Any, ...]
    left: float
    size_bytes: int


_FOLLOWING = attrgetter("arrays", "row", "lengths", "adds", "error")


class Ahead:
    """Steps of an iteration that are computed before its caller asks for them.

    Args:
        session: The session.
        until: Index of the result that says which step is the last one; None without.
        left: How many steps there may be.

    Attributes:
        found: Steps that the caller has not read yet.
        last: The step before them.
        is_asked: Whether its caller has asked for the step under way, and awaits the future of the request.
        error: Error of the step behind them.
        waiter: Ends when there is a step, or an error; None while nobody waits.
    """

    __slots__ = ("error", "found", "is_asked", "last", "left", "session", "until", "waiter")

    #: Steps that may wait for their caller: it is woken for each, and may be late.
    MOST = 4
    #: Bytes of the frames of those that wait, from which on no further one is computed.
    MOST_BYTES = 1 << 20

    def __init__(self, session: Session, until: int | None, left: float) -> None:
        self.session, self.until, self.left = session, until, left
        self.found: deque[Step] = deque()
        self.last: Step | None = None
        self.is_asked = True
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the steps that wait are all that may."""
        found = self.found
        return bool(found) and (len(found) >= self.MOST or sum([s.size_bytes for s in found]) >= self.MOST_BYTES)

    def tell(self) -> None:
        """Wake the caller."""
        if self.waiter is not None and waits(self.waiter):
            self.waiter.set_result(None)

    def add(self, request: Request, result: Result, is_last: bool, size_bytes: int) -> None:
        """Take a step that was computed."""
        self.left = 0 if is_last else self.left - 1
        step = Step(result, request.states, request.used, _FOLLOWING(request), self.left, size_bytes)
        if self.is_asked:
            self.last = step
        else:
            self.found.append(step)
            self.tell()

    def rewind(self, request: Request) -> None:
        """Forget the steps that were not read."""
        if self.found and self.last is not None:
            self.left = self.last.left
            request.arrays, request.row, request.lengths, request.adds, request.error = self.last.following
        self.found.clear()
        self.error = None
        self.tell()


class Kept(NamedTuple):
    """A value that sessions keep from step to step: a source, and the blob that gives its next value."""

    source: Blob
    following: Blob
    axis: int  # that of the rows
    row: TensorSpec  # type of one row, without that axis
    first: npt.NDArray[Any]  # what a session begins with, as one row


class Rows:
    """A part of a graph whose sources and results all begin with one open axis, and that is computed by rows.

    Args:
        engine: Runs the frames.
        fetch: As for `Graph.run`.
        axis: Name of the axis; None for the one that the sources begin with.
        state: Sources that sessions keep, with what gives their next values, beside the states of the graph.
        fixed: Feeds that are the same in all frames.

    Attributes:
        name: Name of the graph.
        trace: Where ended requests are entered.
        axis: Name of the axis.
        repeatable: Whether rows may be computed again: no variable is updated.
        kept: The values that sessions keep.
        blocks: Memory of the cache that sessions keep positions in; None without one.

    Raises:
        GraphError: if a source or a result has no such axis, or rows depend on each other.
        ShapeError, DTypeError: if what is fixed does not fit.
    """

    def __init__(
        self,
        engine: Engine,
        fetch: Fetch,
        axis: str | None,
        state: Mapping[Any, Any],
        fixed: Mapping[Any, Any],
        feeds: Iterable[Any] = (),
    ) -> None:
        graph = engine.graph
        mapping("state", state)
        mapping("fixed", fixed)
        if graph.options.dry_run:
            raise GraphError(f"graph {graph.name!r} computes nothing (dry_run=True): there are no rows to hand out")
        self._engine = engine
        self._claim: Dispatcher | None = None
        self._number = -1
        self._fetch = None if fetch is None else tuple(fetch)
        targets = None if self._fetch is None else [graph.resolve(target) for target in self._fetch]
        between = engine.between([*feeds, *fixed])
        pairs = states_of(graph.ops if targets is None else targets, _pairs(graph, state))
        _, wanted = chosen(graph, targets)
        # By default, next values of states are results, too, where they have a row for each row as all results.
        left_out = set() if targets is not None else {blob for blob in pairs.values() if _first(blob)[1] is None}
        fetched = [blob for blob in wanted if blob not in left_out]
        if pairs:
            targets = list(dict.fromkeys([*(fetched if targets is None else targets), *pairs.values()]))
            self._fetch = tuple(targets)
        ops, _ = chosen(graph, targets, between)
        read = dict.fromkeys((*fetched, *pairs.values(), *[blob for op in ops for blob in op.inputs]))
        self.name = graph.name
        self.trace = engine.trace
        fed = [b for b in read if (not b.producers or b in between) and not isinstance(b, Variable)]
        cached = [blob for blob in fed if isinstance(blob, Cached)]
        self.kept = [_kept(*pair, fed) for pair in pairs.items() if pair[0] not in cached]
        self._fixed = _fixed_feeds(graph, fixed, fed)
        self._sources = [blob for blob in fed if blob not in {*pairs, *cached, *self._fixed}]
        for key in feeds:
            if graph.resolve(key) not in self._sources:
                raise GraphError(f"feeds: {getattr(key, 'name', key)!r} is not a blob that the results are computed of")
        self._specs = [blob.spec for blob in self._sources]
        self.axis = _axis_of(graph.name, self._sources, axis)
        _check_rows(self.axis, ops, fetched, between)
        for each in self.kept:
            if each.source.spec.axes != {self.axis}:
                name, spec = each.source.name, each.source.spec
                raise GraphError(f"state {name!r} {spec} must have the axis of the rows, {self.axis!r}")
        self.blocks = _blocks(graph.name, cached, self.axis)
        brought = [each.source for each in self.kept]
        self._axes = [0] * len(self._sources) + [each.axis for each in self.kept]
        if self.blocks is not None:
            brought += self.blocks.cache.table, self.blocks.cache.used
            self._axes += 0, 0
            self._fixed |= dict(self.blocks.arrays.items())
        self._joined = [*self._sources, *brought]
        taken = [*brought, *self._fixed]
        self._taken = {*taken, *[blob.name for blob in taken]}
        self._results = {blob: i for i, blob in enumerate(fetched)}
        self._result_names = {blob.name: i for blob, i in self._results.items()}
        away = next((op for op in ops if op.place.rank != graph.world.rank), None)
        if away is not None:
            raise GraphError(f"op {away.name!r} runs on {away.place}: frames of batched runs stay on one rank")
        self.repeatable = not any(isinstance(blob, Variable) for op in ops for blob in op.outputs)
        self._index: dict[Any, int] = {}
        for index, source in enumerate(self._sources):
            self._index[source] = self._index[source.name] = index
        #: Dtypes, with numbers and names of the axes; None where a length follows from others.
        self._expected = [(s.dtype, _lengths_of(s)) for s in self._specs]
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
        """
        arrays: list[Any] = [None] * len(self._sources)
        lengths: dict[str, int] = {}
        count = 0
        others: list[int] = []  # sources whose feed is no array of their type, as far as one has seen
        for key, value in checked_feeds(feeds).items():
            index = self._index.get(key)
            if index is None:
                self._check_free(key)
                continue
            if arrays[index] is not None:
                raise FeedError(f"blob {self._sources[index].name!r} is fed twice")
            arrays[index] = value
            count += 1
            dtype, wanted = self._expected[index]
            if type(value) is np.ndarray and value.dtype == dtype and wanted is not None:
                shape = value.shape
                if len(shape) == len(wanted):
                    for n, length in zip(shape, wanted):  # noqa: B905  of equal length
                        if n != (lengths.setdefault(length, n) if isinstance(length, str) else length):
                            break
                    else:
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
        new = 0 if self.blocks is None else self.blocks.cache.new
        adds = new if type(new) is int else int(at(new, lengths))
        return Request(arrays, rows, tuple([lengths[name] for name in self._others]) if self._others else (), adds)

    def known_by(self, inputs: Mapping[str, Blob], outputs: Mapping[str, Blob]) -> None:
        """Take feeds by these names, too, and give results by these."""
        places = {source: index for index, source in enumerate(self._sources)}
        self._index |= {name: places[blob] for name, blob in inputs.items() if blob in places}
        self._result_names = {name: self._results[blob] for name, blob in outputs.items() if blob in self._results}

    def source(self, key: Any) -> int:
        """Index of a source that requests feed, by itself or by its name.

        Raises:
            FeedError: if it is none.
        """
        index = self._index.get(key)
        if index is None:
            self._check_free(key)
            raise FeedError(f"graph {self.name!r}: {getattr(key, 'name', key)!r} is no source that is needed")
        return index

    def result(self, key: Any) -> int:
        """Index of what requests get, by itself or by its name.

        Raises:
            GraphError: if it is not fetched.
        """
        blob = self._engine.graph.resolve(key)
        if blob not in self._results:
            raise GraphError(f"{getattr(blob, 'name', blob)!r} is not fetched by batched runs of graph {self.name!r}")
        return self._results[blob]

    def _check_free(self, key: Any) -> None:
        """Check what is fed and not needed, which must not be what sessions or all frames are fed already."""
        if key in self._taken:
            name = getattr(key, "name", key)
            raise FeedError(f"cannot feed {name!r} of graph {self.name!r}: its sessions keep it, or it is fixed")
        check_unneeded(self._engine.graph, key)

    @property
    def states(self) -> dict[str, TensorSpec]:
        """Types of what a session keeps, by name."""
        pools = [] if self.blocks is None else [*self.blocks.arrays]
        cached = {pool.name: TensorSpec.of(("used", *pool.shape[2:]), pool.dtype) for pool in pools}
        return {each.source.name: each.row for each in self.kept} | cached

    def check_caller(self) -> None:
        """Check that no op of the graph itself asks, which might wait for its own end.

        Raises:
            GraphError: if one does.
        """
        if within.get() is None:
            return
        for frame, op in callers():
            if frame in self._engine.resources.running:
                raise GraphError(f"op {op.what!r} of graph {self.name!r} cannot await a batched run of its own graph")

    def _note(self, value: Any, index: int, lengths: dict[str, int]) -> None:
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
        return dict(zip(self._sources, _arrays(request), strict=True))

    def split(self, request: Request, most: int) -> list[Request]:
        """Parts of at most so many rows."""
        starts = range(0, request.rows, most)
        parts = [[array[start : start + most] for array in request.arrays] for start in starts]
        return [Request(arrays, len(arrays[0]), request.lengths) for arrays in parts]

    # -- frames ----------------------------------------------------------------------------------------------------

    def joined(self, requests: Sequence[Request], added: int) -> dict[Blob, Any]:
        """Feeds of one frame: the rows one after the other, and the last one so many times more."""
        columns: list[Sequence[Any]] = [*zip(*_pieces(requests), strict=True)]
        columns += zip(*[request.states for request in requests], strict=True)
        if self.blocks is not None:
            held = [request.held for request in requests if request.held is not None]
            columns += [each.table for each in held], [np.array([request.used for request in requests])]
        feeds: dict[Blob, Any] = dict(self._fixed)
        for source, axis, arrays in zip(self._joined, self._axes, columns, strict=True):
            if added:
                last = arrays[-1][(*(slice(None),) * axis, slice(-1, None))]
                arrays = *arrays, np.broadcast_to(last, (*last.shape[:axis], added, *last.shape[axis + 1 :]))
            feeds[source] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
        return feeds

    def keep(
        self, feeds: Mapping[Blob, Any], result: Result, requests: Sequence[Request], wanted: Sequence[bool]
    ) -> None:
        """Write what requests add to the cache behind what their sessions have, which is theirs when they say so.

        Args:
            feeds: The feeds of the frame.
            wanted: Whether each request is: the places of others may be somebody else's by now.
        """
        if self.blocks is None:
            return
        cache = self.blocks.cache
        adds = np.array([request.adds if is_wanted else 0 for request, is_wanted in zip(requests, wanted, strict=True)])
        rows, steps = np.nonzero(np.arange(adds.max()) < adds[:, np.newaxis])
        blocks, offsets = np.divmod(feeds[cache.used][rows] + steps, cache.block)
        places = feeds[cache.table][rows, blocks] * cache.block + offsets
        for pool in self.blocks.arrays:
            assert pool.following is not None
            value = to_numpy(result._values[result._blobs[pool.following]])
            self.blocks.write(pool, places, value.reshape(-1, *value.shape[2:]).take(rows * value.shape[1] + steps, 0))

    def parts(
        self, feeds: Mapping[Blob, Any] | None, result: Result, requests: Sequence[Request], wanted: Sequence[bool]
    ) -> Iterator[Result | None]:
        """The rows of each request in the result of their frame; the next rows of its states become its own.

        Args:
            feeds: The feeds of the frame; None if they were padded.
            wanted: As for `keep`: the others get None, and stay as they are: they may be further, in another frame.
        """
        values, start = result._values, 0
        nexts = [(to_numpy(values[result._blobs[each.following]]), (slice(None),) * each.axis) for each in self.kept]
        own, found = values[: len(self._results)], dict[Any, Request]()
        for request, is_wanted in zip(requests, wanted, strict=True):
            stop = start + request.rows
            if not is_wanted:
                yield None
                start = stop
                continue
            if nexts:
                # Copies: an array of the frame would be kept with the rows of others, or be changed by who has it.
                request.states = [value[(*before, slice(start, stop))].copy() for value, before in nexts]
            part = [value[start:stop] for value in own]
            request.used += request.adds
            if request.feedback:
                row, following = start, found.get(request.feedback)
                if feeds is None:
                    row, following = 0, self._following(request, _arrays(request), part)
                elif following is None:
                    following = self._following(request, [feeds[source] for source in self._sources], own)
                    found[request.feedback] = following
                request.arrays, request.row, request.error = following.arrays, row, following.error
                request.lengths, request.adds = following.lengths, following.adds
            yield Result(self._results, self._result_names, part, result.frames)
            start = stop

    def size_bytes(self, request: Request, result: Result) -> int:
        """Bytes of a frame's arrays of which a request of it has rows."""
        return sum([array.nbytes for array in (*result._values[: len(self._results)], *request.arrays)])

    def ends(self, until: int, result: Result) -> Sequence[bool]:
        """For each row of a frame, whether a result says that its step was the last one."""
        value = to_numpy(result._values[until])
        found: Any = value.reshape(len(value), -1).astype(bool).all(1)
        return [*found.tolist()]

    def _following(self, request: Request, arrays: Sequence[Any], values: Sequence[Any]) -> Request:
        """Request of the next step of rows, from the arrays that they were fed and the values that these gave."""
        feeds = dict(zip(self._sources, arrays, strict=True))
        for index, of in request.feedback:  # copies: callers may write into what they get
            feeds[self._sources[index]] = np.array(to_numpy(values[of]))
        try:
            return self.read(feeds)
        except (FeedError, ShapeError, DTypeError) as error:
            return Request([], 0, (), error=error)

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
            permit: The result of `turn`.
        """
        begun = self._engine.begin(feeds, self._fetch, False, awaited=True, permit=permit, requesters=requesters)
        program, frame = await begun
        return await program.outcome(frame)


def _arrays(request: Request) -> list[Any]:
    row = request.row
    return request.arrays if row is None else [array[row : row + 1] for array in request.arrays]


def _pieces(requests: Iterable[Request]) -> Iterator[Sequence[Any]]:
    """The rows of requests, by source, in as few pieces as there are: those of one iteration share arrays."""
    arrays, rows = list[Any](), list[int | None]()
    for request in [*requests, None]:
        if rows and (request is None or request.arrays is not arrays):
            yield arrays if rows == [*range(len(arrays[0]))] else [array[rows] for array in arrays]
            rows = []
        if request is not None and request.row is None:
            yield request.arrays
        elif request is not None:
            arrays = request.arrays
            rows.append(request.row)


def _pairs(graph: Graph, given: Mapping[Any, Any]) -> dict[Blob, Blob]:
    found = {}
    for key, value in given.items():
        source, following = graph.resolve(key), graph.resolve(value)
        if not isinstance(source, Blob) or not isinstance(following, Blob):
            raise GraphError(f"graph {graph.name!r}: a state is a blob with a blob, got {source!r} with {following!r}")
        found[source] = following
    return found


def _blocks(name: str, cached: Sequence[Cached], axis: str) -> Blocks | None:
    caches = [*dict.fromkeys([each.cache for each in cached])]
    if not caches:
        return None
    if len(caches) > 1:
        raise GraphError(f"graph {name!r} has {len(caches)} caches, {caches}: give all attention the same")
    if caches[0].used.spec.axes != {axis}:
        raise GraphError(f"{caches[0]} of graph {name!r} must have the axis of the rows: give it axis={axis!r}")
    return Blocks(name, caches[0], [each for each in cached if each.following is not None])


def _kept(source: Blob, following: Blob, fed: Sequence[Blob]) -> Kept:
    if source not in fed:
        raise GraphError(f"blob {source.name!r} cannot be a state: it is no source that the results need")
    index, row = rows_axis(source.spec, f"state {source.name!r}")
    if following.spec != source.spec:
        raise GraphError(
            f"state {source.name!r} is {source.spec}, and its next value {following.name!r} is {following.spec}"
        )
    first = source.init if isinstance(source, State) else np.zeros(row.shape, row.dtype)
    return Kept(source, following, index, row, np.expand_dims(first, index))


def _fixed_feeds(graph: Graph, given: Mapping[Any, Any], fed: Sequence[Blob]) -> dict[Blob, Any]:
    found = {}
    for key, value in given.items():
        blob = graph.resolve(key)
        if not isinstance(blob, Blob) or blob not in fed:
            raise GraphError(f"{getattr(blob, 'name', blob)!r} cannot be fixed: it is no source that the results need")
        if blob.spec.axes:
            raise GraphError(f"blob {blob.name!r} {blob.spec} cannot be fixed: it has an open axis")
        found[blob] = np.array(as_array(value, blob.spec, f"fixed feed for blob {blob.name!r}"))
    return found


def _axis_of(name: str, sources: Sequence[Blob], wanted: str | None) -> str:
    for blob in sources:
        if isinstance(blob, State):
            raise GraphError(f"state {blob.name!r} has no next value, {blob.name}.assign(y); created at {blob.site}")
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


def _lengths_of(spec: TensorSpec) -> list[int | str] | None:
    """The lengths of a type, those of open axes by name; None if one follows from others."""
    given: Sequence[Any] = spec.shape
    found: list[Any] = [length.name if isinstance(length, Length) else length for length in given]
    return None if None in found else found


def _first(blob: Blob) -> tuple[Any, str | None]:
    """The length of a blob's first axis, None if there is none; its name, if it is open."""
    first: Any = blob.shape[0] if blob.shape else None
    return first, first.name if isinstance(first, Length) else None


def _check_rows(axis: str, ops: Iterable[Op], fetched: Iterable[Blob], fed: Sequence[Blob]) -> None:
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
                and blob not in fed
                and axis not in axes_in(blob.shape)
                and any(axis in axes_in(read.shape) for producer in blob.producers for read in producer.inputs)
            ):
                raise GraphError(
                    f"op {op.name!r} reads blob {blob.name!r} {blob.spec}, which is made of all rows of a batch: "
                    "callers of batched runs would get results that depend on each other's rows"
                )
