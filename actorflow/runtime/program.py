"""Programs: plans made ready to run. A program has the actors; each frame brings its own counts and values."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from sys import getrefcount
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from actorflow import core
from actorflow.actors.blob import BlobActor
from actorflow.actors.budget import Account, Budget
from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.frame import FINISHED, Frame, FrameListener, FrameObserver, FrameStart
from actorflow.actors.op import parts_of
from actorflow.core import UNSHARED, fill
from actorflow.devices.memory import COPIED_BYTES, POOLED_BYTES, Bucket, Memory
from actorflow.errors import (
    ActorflowError,
    DTypeError,
    FeedError,
    GraphError,
    OpError,
    ShapeError,
    did_you_mean,
    text_of,
)
from actorflow.graph.nodes import Blob, Variable
from actorflow.interchange import as_array, read_only, to_numpy
from actorflow.loop import Steps, at_once, in_slices
from actorflow.ops.transfer import Stage, Transfer
from actorflow.place import Place
from actorflow.plan.memory import places_of, slot_charges
from actorflow.plan.plan import Plan, PlannedOp
from actorflow.runtime.branches import Branches
from actorflow.runtime.items import ItemResults
from actorflow.runtime.resources import Resources
from actorflow.spec import Lengths, TensorSpec
from actorflow.threads import CHEAP_BYTES, aside
from actorflow.trace.counters import NodeState

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.runtime.build import Builder

_NOT_FED = object()
#: In the place of a result that is not there: a view, which nothing takes for a buffer of its own.
_ABSENT = np.empty(0)[:]
_Default = TypeVar("_Default")


class Result(core.Fetched, Mapping["Blob | str", npt.NDArray[Any]]):
    """Fetched values of a frame: arrays by blob or by name; iterates over the names.

    The arrays are the application's: no frame changes them, and nothing else shows their memory, but for a variable's,
    which is read-only. That of a blob on an accelerator stays there; `actorflow.to_numpy` copies it. ``result[y]``
    raises KeyError, with the names of the fetched blobs, if ``y`` was not.

    Attributes:
        frames: Numbers of the frames that computed it: one, or of a batched run of many rows several.
        errors: Of a run with ``partial=True``, the names of fetched blobs that are not there, each with the error of
            the op that it depends on: ``result[y]`` raises that, and iterating leaves ``y`` out. An op that has failed
            and that nothing fetched depends on is there by its own name.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["n"])
        >>> y = af.ops.exp(x - x, name="one")
        >>> result = graph.run_sync({x: [1, 2, 3]}, fetch=[x, y])
        >>> result
        <Result x: float32[3], one/out: float32[3]>
        >>> result[y], result["x"]
        (array([1., 1., 1.], dtype=float32), array([1., 2., 3.], dtype=float32))
        >>> result.lengths, result.frames
        ({'n': 3}, (0,))
    """

    __slots__ = ("_names",)
    _names: Mapping[Any, str]  # of blobs, where they are others than their own
    frames: tuple[int, ...]
    errors: Mapping[str, OpError]

    def __init__(
        self,
        blobs: Mapping[Blob, int],
        by_name: Mapping[str, int],
        values: list[Any],
        frames: tuple[int, ...],
        lengths: Lengths = (),
        errors: Mapping[str, OpError] | None = None,
    ) -> None:
        if errors:
            blobs = {blob: i for blob, i in blobs.items() if blob.name not in errors}
            by_name = {name: i for name, i in by_name.items() if name not in errors}
        super().__init__(blobs, by_name, values, frames, lengths, errors or {})

    @property
    def lengths(self) -> dict[str, int]:
        """Length of each open axis in the frame, by its name; none of a batched run, whose frames others share."""
        return dict(self._lengths)

    @classmethod
    def joined(cls, results: Sequence[Result]) -> Result:
        """The rows of several results one after the other, as arrays in the host's memory.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch"])
            >>> y = x + 1
            >>> parts = [graph.run_sync({x: [1, 2]}), graph.run_sync({x: [3]})]
            >>> result = type(parts[0]).joined(parts)
            >>> result[y], result.frames
            (array([2., 3., 4.], dtype=float32), (0, 1))
        """
        for name, index in results[0]._by_name.items():
            shapes = sorted({result._values[index].shape[1:] for result in results})
            if len(shapes) > 1:
                raise ShapeError(
                    f"rows of {name!r} cannot be put together: in several frames they have shapes {shapes}"
                )
        values = [np.concatenate(list(map(to_numpy, parts))) for parts in zip(*[r._values for r in results])]  # noqa: B905
        frames = tuple(dict.fromkeys(number for result in results for number in result.frames))
        return cls(results[0]._blobs, results[0]._by_name, values, frames)

    def __getitem__(self, key: Blob | str) -> npt.NDArray[Any]:
        index = self._index(key)
        if index is None:
            names: Mapping[Any, str] = getattr(self, "_names", {})
            error = self.errors.get(names.get(key, getattr(key, "name", cast(str, key))))
            raise KeyError(self._why_not(key)) if error is None else error
        value: npt.NDArray[Any] = self._values[index]
        return value

    def __contains__(self, key: Any) -> bool:
        return self._index(key) is not None

    @overload
    def get(self, key: Blob | str, default: None = None) -> npt.NDArray[Any] | None: ...
    @overload
    def get(self, key: Blob | str, default: npt.NDArray[Any] | _Default) -> npt.NDArray[Any] | _Default: ...
    def get(self, key: Blob | str, default: Any = None) -> Any:
        """The value, or the default if it was not fetched.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [])
            >>> y, z = x + 1, x + 2
            >>> result = graph.run_sync({x: 1}, fetch=y)
            >>> result.get(y), result.get(z)
            (array(2., dtype=float32), None)
        """
        index = self._index(key)  # not by the KeyError, whose message takes long to make in a large graph
        return default if index is None else self._values[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def _index(self, key: Blob | str) -> int | None:
        return self._by_name.get(key) if isinstance(key, str) else self._blobs.get(key)

    def _why_not(self, key: object) -> str:
        fetched = f"fetched: {', '.join(self._by_name) or 'nothing (ops are run, only blobs have values)'}"
        name = getattr(key, "name", key)
        for blob in self._blobs:
            graph = blob.graph.root
            if name not in graph:
                known = [each.name for each in graph.blobs]
                return f"graph {graph.name!r} has no blob {name!r}; {fetched}{did_you_mean(name, known)}"
            node = graph.resolve(name)
            if not isinstance(node, Blob):
                outputs = ", ".join(each.name for each in getattr(node, "outputs", ())) or "none"
                return f"{node!r} is not a blob, so it has no value; its outputs: {outputs}; {fetched}"
            break
        return f"{name!r} was not fetched: ask for it, fetch=[{name!r}, ...]; {fetched}"

    def _by(self, names: Mapping[Any, Blob]) -> dict[Any, npt.NDArray[Any]]:
        values, places = self._values, self._blobs
        found = {name: (blob, values[places[blob]]) for name, blob in names.items()}
        return {name: value if blob.spec.is_object else to_numpy(value) for name, (blob, value) in found.items()}

    def _under(self, names: Mapping[Any, Blob]) -> Result:
        """The same under names that blobs have elsewhere, and so the errors."""
        blobs = {getattr(name, "name", name): blob for name, blob in names.items()}
        errors = {name: self.errors[blob.name] for name, blob in blobs.items() if blob.name in self.errors}
        found = {name: self._blobs[blob] for name, blob in blobs.items() if name not in errors}
        result, told = Result(self._blobs, found, self._values, self.frames, self._lengths), {*errors.values()}
        result._names = {blob: name for name, blob in blobs.items()}
        result.errors = errors | {name: error for name, error in self.errors.items() if error not in told}
        return result

    def __repr__(self) -> str:
        shown = [f"{name}: {_describe(value)}" for name, value in self.items()]
        return f"<Result {', '.join([*shown, *[f'{name}: {type(e).__name__}' for name, e in self.errors.items()]])}>"


class Program:
    """The actors of one plan, and the values that each frame starts from. It does not keep the plan.

    Attributes:
        graph: The root graph.
        exchange: Its messages to and from other ranks, if there are any.
        ops: The actors that fire.
        uses: Its reads and updates of variables whose frames take turns.
        tapped: Blobs whose values are kept for taps.
        branches: Says on which lanes ops are; None where they stay on the plan's.
        looks_on: Whether more is done with a frame's results than to return them.
        per_item: Names of results that are returned for each item of an op that emits, and not once in a frame.
        is_partial: Whether its frames go on without failed ops.
        draws: Whether a run should await `draw` before it starts a frame.
    """

    def __init__(self, plan: Plan, built: Builder, resources: Resources) -> None:
        self.graph = plan.graph
        self.exchange = built.exchange
        options = plan.graph.options
        self._resources = resources
        self._is_dry = options.dry_run
        self._lengths = plan.lengths
        self.ops = ops = built.fired
        self.is_partial = plan.is_partial
        if plan.is_partial:
            for each in ops:
                each.confine()
        stay = options.sequential or options.dry_run or resources.budget is not None or self.exchange is not None
        self.branches = None if stay else Branches(ops, resources.trace, resources.lanes_like)
        pending = built.pending
        self._turnstiles = tuple([actor.turnstile for actor in ops if actor.turnstile is not None])
        self._listeners: list[FrameListener] = [*self._turnstiles]
        if self.exchange is not None:
            self._listeners += [self.exchange, *self.exchange.actors]
        self._values = [_NOT_FED if slot.is_fed else None for slot in plan.slots]
        for index, value in built.constants.items():
            self._values[index] = value
        counts = array("i", [1 if slot.index in built.kept else max(slot.readers, 1) for slot in plan.slots])
        self._feeds: dict[Blob | str, tuple[int, Blob, TensorSpec, bool]] = {}
        self._fits: dict[Blob | str, tuple[int, Any, Any]] = {}
        for source, slot_index in plan.feeds.items():
            spec = plan.slots[slot_index].spec
            self._feeds[source] = self._feeds[source.name] = (slot_index, source, spec, spec.is_object)
            fit = slot_index, spec.shape, None if spec.is_object else spec.dtype
            self._fits[source] = self._fits[source.name] = fit

        self._variables_read, self.uses, self._weights = built.variables_read, built.uses, built.weights
        self._unread = [] if options.dry_run else [resources.variable_actor(variable) for variable in plan.reads]
        self.draws = bool(self._unread)
        for slot_index in plan.feeds.values():
            for op in plan.slots[slot_index].consumers:
                pending[built.receivers[op].index] -= 1
        roots = dict.fromkeys(built.receivers[op] for op in plan.roots)
        self._first = tuple([op for op in roots if not pending[op.index]])
        for op in self._first:
            pending[op.index] = 1  # the frame's start
        # One end more than there are: the frame's start, so that an empty frame ends, too.
        ends = sum(actor.ends for actor in ops) + len(self.uses) + 1
        self._counts = pending, counts, ends
        self._start: FrameStart | None = None  # of the loop that it runs on, and of who watches now
        self._node_ids = np.array([each.node_id for actor in built.ops for each in parts_of(actor)], dtype=np.intp)

        places = {plan.slots[index].place for index in plan.fetches.values()}
        lenders = [device for device in map(resources.device, places) if device.is_stream]
        # Memory of results that is worth using again; what is a view, or a device's, is another one's.
        fetched = [built.blobs[index] for index in plan.fetches.values()]
        own = [each.bucket if type(each) is BlobActor and type(each.bucket) is Bucket else None for each in fetched]
        given = [built.blobs[index] for index in plan.results]
        self._own_buckets = {each.slot: each.bucket for each in given if type(each) is BlobActor and each.bucket}
        # A variable's value is its memory, which only its updates change.
        variables = [i for i, blob in enumerate(plan.fetches) if isinstance(blob, Variable)]
        slots = [plan.slots[index] for index in plan.fetches.values()]
        arrays = [i for i, each in enumerate(slots) if resources.device(each.place).is_host and not each.spec.is_object]
        arrays = [i for i in arrays if i not in variables]
        copied = tuple([i for i in arrays if slots[i].spec.size_bytes <= COPIED_BYTES])
        sizes = [(i, slots[i].spec.size_bytes) for i in arrays]
        parted = [(i, own[i] if size >= POOLED_BYTES else None) for i, size in sizes if size > COPIED_BYTES]
        self._sources = plan.feeds
        # Fed blobs of a device that ops of the host read, too.
        self._read_on_host = {
            index
            for index in plan.feeds.values()
            if resources.device(plan.slots[index].place).is_host
            and any(not _moves(plan.ops[op]) for op in plan.slots[index].consumers)
        }
        self._account = None if resources.budget is None else _account(plan, resources, resources.budget)
        # Values that a frame makes for itself alone, and constants, are handed out as they are; others are copied.
        self.tapped = tuple(plan.tapped)
        kept = [(blob, built.blobs[index]) for blob, index in plan.tapped.items()]
        self._kept = [
            (each.slot, (type(each) is not BlobActor or each.bucket is None) and not isinstance(blob, Variable))
            for blob, each in kept
        ]
        self._fetch_specs = [plan.slots[index].spec for index in plan.fetches.values()]
        self._shared = (
            {blob: i for i, blob in enumerate(plan.fetches)},
            {blob.name: i for i, blob in enumerate(plan.fetches)},
            self._lengths,
        )
        hand_out = partial(_hand_out, parted, lenders, variables) if parted or lenders or variables else None
        taken = tuple([core.Blob(each.slot, to) for each, to in zip(fetched, own, strict=True)])
        self.fetcher = core.Fetcher(Result, taken, copied, hand_out, self._shared)
        self._scalars = (
            []
            if options.dry_run
            else [
                (blob.name, i)
                for i, blob in enumerate(plan.fetches)
                if blob.shape == () and np.issubdtype(blob.dtype, np.number) and blob.dtype.kind != "c"
            ]
        )
        self.looks_on = bool(self.tapped or self._scalars)
        self.per_item = tuple([blob.name for blob in plan.per_item])

    # -- frames --------------------------------------------------------------------------------------------------------

    async def draw(self) -> None:
        """Have first values of variables, large ones computed in a thread, as far as possible; `feed` does the rest."""
        variables = [actor.variable for actor in reversed(self._unread) if actor.variable._value is None]
        size_bytes = sum([variable.spec.size_bytes for variable in variables])
        with suppress(ActorflowError):  # which `feed` raises
            if size_bytes > CHEAP_BYTES:
                await aside(lambda: [variable.held for variable in variables], size_bytes)
            await in_slices(self._preparing())
        self.draws = False

    def _preparing(self) -> Steps[None]:
        while self._unread:
            self._unread[-1].prepare()
            self._unread.pop()
            yield

    def feed(self, feeds: Mapping[Blob | str, npt.ArrayLike]) -> list[Any]:
        """The values that a frame starts with. Values that variables begin with are there afterwards, too.

        Raises:
            FeedError, ShapeError, DTypeError: if the feeds do not fit the sources.
            GraphError: if the initial value of a variable cannot be had; OutOfMemoryError if its device has no room.
        """
        if self._unread:
            at_once(self._preparing())
        try:
            values = self._values.copy()
            filled = fill(values, feeds, self._fits, len(self._sources), _NOT_FED)
            return values if filled else self._fed(feeds)
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # it would say to the caller that it was cancelled, or closed
            raise FeedError(
                f"the feeds of graph {self.graph.name!r} raised {type(error).__name__}: {text_of(error)}"
            ) from error

    def _fed(self, feeds: Mapping[Blob | str, npt.ArrayLike]) -> list[Any]:
        """As `fill`, with conversions, and with errors that name the mistake."""
        values = self._values.copy()
        left = len(self._sources)
        for key, value in checked_feeds(feeds).items():
            known = self._feeds.get(key)
            if known is None:
                check_unneeded(self.graph, key)
                continue
            left -= 1
            index, blob, spec, is_object = known
            if values[index] is not _NOT_FED:
                raise FeedError(f"blob {blob.name!r} is fed twice")
            if is_object:
                values[index] = value
            else:
                values[index] = self._converted(value, index, blob, spec)
        if left:
            missing = [f"{b.name!r} {b.spec}" for b, index in self._sources.items() if values[index] is _NOT_FED]
            fed = ", ".join(repr(getattr(key, "name", key)) for key in feeds) or "nothing"
            raise FeedError(f"graph {self.graph.name!r} needs values for {', '.join(missing)}; fed: {fed}")
        return values

    def bucket_of(self, slot: int) -> Bucket | None:
        """Where the buffers of a slot come from and can go back to, if each of its values is one of these."""
        return self._own_buckets.get(slot)

    def frame(self, number: int, values: list[Any], observer: FrameObserver, atomic: bool) -> Frame:
        """A frame that has not begun."""
        start = self.begins_now(observer)
        if self._lengths:
            self._resources.trace.add_lengths(number, self._lengths)
        frame = Frame(start, number, values, copy_context())
        if atomic:
            frame.atomic = True
        if self.per_item:
            frame.items = ItemResults()
        if self.is_partial:
            frame.failures, frame.ends_quietly = {}, False
        return frame

    def layout(self, feeds: Sequence[Blob]) -> tuple[list[Any], list[int | None]]:
        """The values that each frame begins with, and the slot of each of these feeds; None for feeds not needed."""
        return [None if value is _NOT_FED else value for value in self._values], [
            known[0] if (known := self._feeds.get(blob)) else None for blob in feeds
        ]

    def begins_now(self, observer: FrameObserver, *, is_inner: bool = False) -> FrameStart:
        """Start of frames on the graph's loop; ``is_inner`` for frames inside an op, whose memory counts there."""
        start, resources = self._start, self._resources
        if start is None or start.dispatcher is not resources.home or start.monitor is not resources.monitor:
            start = self._start = self.beginning(resources.dispatcher, observer, is_inner=is_inner)
        return start

    def beginning(self, dispatcher: Dispatcher, observer: FrameObserver, *, is_inner: bool = False) -> FrameStart:
        """Start of frames of a dispatcher, with an observer for all of them."""
        resources = self._resources
        return FrameStart(
            *self._counts,
            dispatcher,
            None if is_inner else resources.budget,
            resources.monitor,
            resources.trace,
            observer=observer,
            listeners=self._listeners,
            turnstiles=self._turnstiles,
            first=self._first,
            weights=self._weights,
            ops=self.ops,
            node_ids=self._node_ids,
            lengths=self._lengths,
        )

    def begin(self, frame: Frame) -> None:
        """Deliver the values that are there. The caller wakes the dispatcher."""
        if self._is_dry:
            frame.open = 1
            frame.close_end()
            return
        if frame.monitor is not None:
            frame.monitor.show_all(self._node_ids, NodeState.WAITING)
        if frame.budget is not None:
            assert self._account is not None
            frame.budget.open(frame, Account(*self._account))
        frame.begin()
        if self.exchange is not None:
            for listener in self._listeners[len(self._turnstiles) :]:
                listener.expect(frame)
        values = frame.values
        for slot, actor in self._variables_read:
            value = actor.variable._value  # not `held`, of which each call would be felt: `feed` had the first made
            values[slot] = value if value is actor._counted else actor.read()
        for use in self.uses:
            use.enter(frame)
        frame.close_end()

    def result(self, frame: Frame) -> Result:
        """The result of a finished frame."""
        if not (frame.failures or self._is_dry):
            made: Result = self.fetcher.result(frame, frame.number)
            return made
        errors = self._errors(frame) if frame.failures else None
        fetched: list[Any] = [*self._fetch_specs] if self._is_dry else self.fetcher.values(frame)
        by_blob, by_name, lengths = self._shared
        return Result(by_blob, by_name, fetched, (frame.number,), lengths, errors)

    def _errors(self, frame: Frame) -> dict[str, OpError]:
        """Errors in place of results of a frame that went on without some ops, and all other ones, by name."""
        failures, errors = frame.failures or {}, {}
        for name, i in self._shared[1].items():
            slot = self.fetcher.blobs[i].slot
            if slot in failures:
                errors[name], frame.values[slot] = failures[slot], _ABSENT
        frame.failures = None  # as `Frame.error`: by its traceback an error refers to the frame
        told = {*errors.values()}
        others = {key: error for key, error in failures.items() if isinstance(key, str) and error not in told}
        return errors | others

    async def outcome(self, frame: Frame) -> Result:
        """Wait for a frame's end and return its results; see `Frame.wait`."""
        if frame.state is not FINISHED or not frame.has_ended:  # else there is nothing to wait for
            await frame.wait()
        if self.tapped:
            self.hand_out(frame)
            copying = self._resources.taps.copying(frame)
            if copying is not None:
                await asyncio.wait([copying])  # the caller may write into what it has fed as soon as it has the result
        result = self.result(frame)
        for name, index in self._scalars:
            if name not in result.errors:
                self._resources.scalars.add(name, frame.number, to_numpy(result._values[index]))
        return result

    def hand_out(self, frame: Frame) -> None:
        """Give the taps the values that a frame has kept for them, if it has ended well and has not done so before."""
        taps = self._resources.taps
        is_wanted = any(frame in tap.sampled for tap in taps.open) and taps.copying(frame) is None
        if not is_wanted or frame.state is not FINISHED or frame.failures or self._is_dry:
            return
        values: dict[Blob, Any] = {}
        foreign = []
        own = {id(frame.values[slot]) for slot, is_foreign in self._kept if not is_foreign}
        for blob, (slot, is_foreign) in zip(self.tapped, self._kept, strict=True):
            values[blob] = value = frame.values[slot]
            if type(value) is np.ndarray:
                values[blob] = read_only(value)
                # A view of such memory keeps it from being used again, as such memory does itself.
                is_own = id(value.base) in own or type(getattr(value.base, "base", None)) is Memory
                if is_foreign and not is_own:
                    foreign.append(blob)

        def result(some: Mapping[Blob, Any]) -> Result:
            by_blob = {blob: i for i, blob in enumerate(some)}
            by_name = {blob.name: i for blob, i in by_blob.items()}
            return Result(by_blob, by_name, [*some.values()], (frame.number,), self._lengths)

        taps.give(frame, values, foreign, result)

    # -- feeds ---------------------------------------------------------------------------------------------------------

    def _converted(self, value: Any, index: int, blob: Blob, spec: TensorSpec) -> Any:
        what = f"feed for blob {blob.name!r}"
        device = self._resources.device(blob.place)
        try:
            is_own = self._resources.are_shared and not device.is_host  # computed by graphs that share the device
            adopted = value if is_own else None if device.is_host else device.adopt(value)
            if adopted is None:
                return read_only(as_array(value, spec, what))
            if adopted.shape != spec.shape:
                raise ShapeError(f"{what}: expected shape {spec.shape}, got {adopted.shape}")
            if adopted.dtype != spec.dtype:
                raise DTypeError(f"{what}: expected dtype {spec.dtype}, got {adopted.dtype} on {blob.place}")
            return read_only(to_numpy(adopted)) if index in self._read_on_host else adopted
        except (ActorflowError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the value's own methods may raise anything
            why = f"a {type(value).__name__} cannot be made an array: {type(error).__name__}: {text_of(error)}"
            raise FeedError(f"{what}: {why}") from error


def checked_feeds(feeds: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The feeds; raises TypeError if they are no mapping."""
    if getattr(feeds, "items", None) is None:
        got = type(feeds).__name__
        raise TypeError(f"feeds must be a mapping of blobs, or their names, to arrays, got {got}")
    return feeds


def check_unneeded(graph: Graph, key: Any) -> None:
    """Check a feed that is not needed: it may be another source of the graph, and nothing else.

    Raises:
        FeedError: if it is.
    """
    try:
        blob = graph.resolve(key)
    except GraphError as error:
        sources = ", ".join(repr(source.name) for source in graph.sources) or "none"
        raise FeedError(f"cannot feed {key!r}, sources are {sources}: {error}") from None
    if not isinstance(blob, Blob):
        raise FeedError(f"cannot feed {blob!r}: it is not a blob")
    if isinstance(blob, Variable):
        raise FeedError(f"cannot feed variable {blob.name!r}: assign its .value")
    if blob.producers:
        ranks = graph.world.size
        why = "nothing that is run reads it" if ranks == 1 else f"{ranks} ranks run the graph"
        raise FeedError(f"cannot feed blob {blob.name!r}: op {blob.producers[0].name!r} writes it, and {why}")


def _hand_out(parted: list[Any], lenders: list[Any], variables: list[int], fetched: list[Any]) -> None:
    """Make arrays that the application may keep of a frame's results that are not copied."""
    for i, bucket in parted:
        address = id(fetched[i])
        fetched[i] = _parted(fetched, i)
        if bucket is not None and id(fetched[i]) == address:
            bucket.lend(fetched[i])
    for device in lenders:
        for value in fetched:
            if device.is_array(value):
                device.lend(value)
    for i in variables:
        if type(fetched[i]) is np.ndarray:
            fetched[i] = read_only(fetched[i])


def _parted(values: list[Any], index: int) -> Any:
    """An array that is taken out of a list, as one whose memory nothing else shows: itself if that is so, or a copy.

    A feed's memory is the caller's, a function may keep its result, and a view shows another value's.
    """
    array: Any = values[index]
    values[index] = None
    if type(array) is not np.ndarray or getrefcount(array) != UNSHARED:
        return array.copy()
    owner = array.base
    if owner is None:
        array.setflags(write=True)
        return array
    if type(owner) is not np.ndarray or owner.base is not None or getrefcount(owner) != UNSHARED + 1:
        return array.copy()
    owner.setflags(write=True)
    if (owner.shape, owner.strides, owner.dtype) == (array.shape, array.strides, array.dtype):
        return owner  # of which a read-only view was in the frame
    if not _overlaps(array):
        array.setflags(write=True)
        return array
    return array.copy()


def _overlaps(array: npt.NDArray[Any]) -> bool:
    """Return whether elements of a view may share memory, as after a broadcast."""
    step = array.itemsize
    for stride, length in sorted((abs(stride), n) for stride, n in zip(array.strides, array.shape, strict=True)):
        if length > 1:
            if stride < step:
                return True
            step = stride * length
    return False


def _moves(op: PlannedOp) -> bool:
    return isinstance(op.operation, Stage | Transfer)


def _account(
    plan: Plan, resources: Resources, budget: Budget
) -> tuple[dict[Place, int], list[int], list[int], list[Place]]:
    charges = slot_charges(plan.ops, plan.slots)
    needs = [sum(charges[slot] for slot in op.outputs) for op in plan.ops]
    places = [plan.slots[op.outputs[0]].place if op.outputs else op.place for op in plan.ops]
    peaks = {}
    for place in places_of(plan.slots):
        limit = plan.graph.budget_of(place)
        if limit is not None:
            variables = sum(variable.spec.size_bytes for variable in plan.graph.variables if variable.place == place)
            constants = sum(value.nbytes for value in resources.constants[place].values())
            budget.capacities[place] = limit - variables - constants
            peaks[place] = plan.footprint(place).peak_bytes
    return peaks, needs, charges, places


def _describe(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) and value.shape else repr(value)
