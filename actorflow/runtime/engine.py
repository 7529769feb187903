"""Runs one graph: keeps its programs, starts frames, and waits for their results."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.actors.dispatcher import Dispatcher, leave_loop
from actorflow.actors.frame import FINISHED, Frame
from actorflow.actors.nesting import check_turns, turns_to_wait
from actorflow.actors.op import FunctionActor, OpActor
from actorflow.actors.task import callers, within
from actorflow.core import FrameState
from actorflow.devices import Device, Lane, device_kind
from actorflow.devices.memory import give_back_to_system
from actorflow.devices.team import team
from actorflow.errors import FeedError, GraphError, NotFiniteError, RunCancelledError, RunTimeoutError, listed
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.graph.options import FiniteCheck
from actorflow.loop import Steps, at_once, end, ended_with, in_slices, look_at, wait_out
from actorflow.ops.cpu.buffers import forget_scratch
from actorflow.ops.fills import Constant
from actorflow.ops.function import Function
from actorflow.ops.operation import KEPT
from actorflow.ops.registry import are_loaded, load_libraries
from actorflow.ops.transfer import Receive, Send, Transfer
from actorflow.place import Place
from actorflow.plan.lengths import OpenAxes
from actorflow.plan.plan import Plan
from actorflow.plan.planner import planning
from actorflow.plan.ranks import ranks_of_edges
from actorflow.plan.validate import chosen
from actorflow.runtime.build import building
from actorflow.runtime.limits import GRACE_S, limit_time
from actorflow.runtime.observer import Observer
from actorflow.runtime.portal import Turns
from actorflow.runtime.program import Program, Result, check_unneeded, checked_feeds
from actorflow.runtime.resources import Resources
from actorflow.runtime.taps import Tap
from actorflow.spec import Length, Lengths
from actorflow.threads import forget_in_child, held_at_fork, in_thread
from actorflow.trace.counters import Monitor, NodeNote

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from actorflow.runtime.batched import Batcher
    from actorflow.runtime.pause import Permit, Ticket
    from actorflow.runtime.stream import FrameStream
    from actorflow.trace.spans import Instrumentation

_log = logging.getLogger("actorflow")

Feeds = Mapping[Any, npt.ArrayLike]
Fetch = Iterable[Blob | Op | Graph | str] | None
#: Targets, what is looked for in results, lengths of open axes, what is kept for taps, what is fed though ops write it,
#: whether failures are confined.
_Key = tuple[tuple[Any, ...] | None, FiniteCheck | None, Lengths | None, tuple[Blob, ...], tuple[Blob, ...], bool]

#: How often a graph may have more nodes than in the run before, until that is taken for a mistake.
_MOST_GROWTHS = 100
#: The first run has kernels made ready, the second has them keep what follows from weights.
_WARM_RUNS = 2
#: Plans that are made again before that is logged.
_MANY_AGAIN = 8
#: Plans that had to go which are remembered to see that.
_MOST_EVICTED = 4096


class _Habits:
    """Figures of how a graph is used, by which habits that cost much are noticed.

    Attributes:
        size: Size of the graph as of the newest run.
        growths: How often that was more than before.
        evicted: Hashes of the keys of programs that had to go for others.
        made_again: How many of these were made again.
    """

    def __init__(self, size: int) -> None:
        self.size, self.growths = size, 0
        self.evicted: set[int] = set()
        self.made_again = 0


class Engine:
    """Runs one graph. It is made for a graph that has none yet, and the graph keeps it.

    Args:
        graph: A root graph.
        make_dispatcher: Called with the loop; tests bring dispatchers that try other orders.
        shared_device: Gives the device of a place, where devices are shared with others; they are not closed here.

    Attributes:
        resources: Devices and all else that frames share.
        queue: Where runs wait while the graph is paused.
        observer: Follows the frames.
        frames: Numbers of frames that started, finished, failed and were cancelled.
        next_number: Number of the next frame, which names its random streams; a checkpoint sets it.
        trace: The newest calls, failed ones among them.
        profile: Calls and times by `Node.id` of the op.
        scalars: Fetched 0-d numbers by frame.
        segments: Calls of ops that are launched as one, by their `Node.id`; see `Graph`.
        errors: The newest failures.
        notes: Ops that are computed otherwise than asked for, blobs that are copied or sent: the newest of these.
        build: Makes plans ready to run; see `build_with`.
        instrumentation: Makes spans of frames, if that is wanted; see `Graph.instrument`.
        turns: Threads that run the graph by `Graph.run_sync`.
        stream_count: Streams that were made, running or not.
        batchers: The open batchers by number: they are numbered from 0 in the order of their opening.
    """

    def __init__(
        self,
        graph: Graph,
        make_dispatcher: Callable[[asyncio.AbstractEventLoop], Dispatcher] = Dispatcher,
        shared_device: Callable[[Place], Device] | None = None,
    ) -> None:
        self.graph = graph
        self.resources = resources = Resources(graph, make_dispatcher, shared_device)
        self.queue = resources.queue
        self.observer = Observer(resources)
        self.frames = self.observer.counts
        self.trace, self.profile, self.scalars = resources.trace, resources.profile, resources.scalars
        self.errors = resources.errors
        self.segments = resources.segments
        self.next_number = graph._first_frame
        self.notes: deque[NodeNote] = deque(maxlen=10_000)
        self.instrumentation: Instrumentation | None = None
        self._noted: set[NodeNote] = set()
        self.build: Callable[[Plan, Resources], Steps[Program]] = building
        self._fuses = graph.options.fuse
        self._programs: dict[_Key, Program] = {}
        self._newest: Program | None = None  # the last of them
        self._planned: dict[_Key, Plan] = {}  # plans that programs will be made of, made ahead of time
        self._habits = _Habits(graph.size)
        self._axes: dict[tuple[tuple[Any, ...] | None, tuple[Blob, ...]], OpenAxes | None] = {}
        self._sources: set[Blob | str] = set()  # blobs that no op writes, and their names
        self._is_open = False  # whether it has open axes anywhere
        self._is_shared = True  # with other ranks, until the graph's world has been asked
        self._revision = self._order = -1
        self._starting: dict[asyncio.Task[Any], bool] = {}  # and whether somebody waits for its frame
        self._streams: weakref.WeakSet[FrameStream] = weakref.WeakSet()
        self.stream_count = 0
        self.batchers: weakref.WeakValueDictionary[int, Batcher] = weakref.WeakValueDictionary()
        self._batcher_count = 0
        self.turns = Turns()
        forget_in_child(self)
        graph._engine = self  # whole: other threads look for it there

    @property
    def not_finite(self) -> NotFiniteError | None:
        """The finding of a check that pauses; see `Graph.not_finite`."""
        return self.resources.not_finite

    @property
    def monitor(self) -> Monitor | None:
        """States of the nodes, while they are watched; see `Resources.watch`."""
        return self.resources.monitor

    @property
    def running(self) -> list[Frame]:
        """The frames in flight, oldest first."""
        return sorted(self.resources.running, key=lambda frame: frame.number)

    # -- programs ------------------------------------------------------------------------------------------------------

    def plan(self, fetch: Fetch, axes: Mapping[str, int] | None = None) -> Plan:
        """Check and plan the part of the graph that ``fetch`` needs; see `Graph.compile`."""
        key = self._asked(fetch, axes)
        plan = at_once(self._planning(*key))
        if key[2] is not None:
            self._planned[key] = plan
        return plan

    def _asked(self, fetch: Fetch, axes: Mapping[str, int] | None) -> _Key:
        self._notice()
        targets = None if fetch is None else tuple(fetch)
        known, lengths = self._open_axes(targets) if self._is_open else None, None
        if known is not None or axes:
            lengths = (known or OpenAxes(self.graph.name, (), ())).checked(axes or {})
        return targets, self.graph._check_here(), lengths, (), (), False

    async def warm_up(self, fetch: Fetch, axes: Mapping[str, int] | None, timeout_s: float | None) -> bool:
        """Make ahead all that the first runs would wait for; see `Graph.warm_up`."""
        async with asyncio.timeout(timeout_s):
            key = self._asked(fetch, axes)
            revision, plan = self.graph.revision, await in_slices(self._planning(*key))
            if revision == self.graph.revision:
                self._planned[key] = plan
            if not _is_unfelt(plan):
                return False
            specs = {blob: plan.slots[slot].spec for blob, slot in plan.feeds.items()}
            feeds = {blob: np.zeros(spec.shape, spec.dtype) for blob, spec in specs.items()}
            for _ in range(_WARM_RUNS):
                await self.run(feeds, key[0])
        return True

    def program(self, fetch: Fetch, feeds: Feeds) -> Program:
        """The plan for ``fetch``, and for the lengths that feeds have, made ready to run.

        Raises:
            FeedError, ShapeError: if the feeds do not say the lengths of open axes.
        """
        key = self._key(fetch, feeds)
        return self._known(key) or at_once(self._making(key))

    def _key(self, fetch: Fetch, feeds: Feeds, lengths: Lengths | None = None, is_partial: bool = False) -> _Key:
        """Key of a program; at most ``max_plans`` programs are kept, until the graph changes.

        Args:
            lengths: The lengths that the ranks have agreed on, if they had to.
            is_partial: Whether a failure is confined to ops that depend on it.
        """
        if self._revision != self.graph.revision or self._order != self.resources.order:
            self._notice()
        targets = None if fetch is None else tuple(fetch)
        fed: tuple[Blob, ...] = ()
        if (type(feeds) is not dict or not self._sources.issuperset(feeds)) and isinstance(feeds, Mapping):
            fed = self.between(feeds)
        axes = self._open_axes(targets, fed) if self._is_open else None
        taps = self.resources.taps
        tapped = taps.due(self.next_number, self._now_s()) if taps.open else ()
        if axes is not None and not lengths:
            try:
                lengths = axes.of(feeds)
            except FeedError:
                for key in checked_feeds(feeds):  # a name that is misspelled says more than a length that is missing
                    if self.graph._find(key) not in fed:
                        check_unneeded(self.graph, key)
                raise
        return targets, self.graph._check_here(), None if axes is None else lengths, tapped, fed, is_partial

    def between(self, keys: Iterable[Any]) -> tuple[Blob, ...]:
        """The fed blobs that ops would write, and that ops read.

        Raises:
            FeedError: for a blob that is computed inside a branch or a loop.
        """
        found = set()
        for key in keys if self.graph.world.size == 1 else ():
            blob = self.graph._find(key)
            if not isinstance(blob, Blob) or isinstance(blob, Variable) or not blob.producers or not blob.consumers:
                continue  # a source, or wrong, as `Program.feed` says
            if blob.graph.body is not None:
                name = blob.graph.body.scope.name
                raise FeedError(f"cannot feed blob {blob.name!r}: it is computed in each call of {name!r}")
            if type(blob.producers[0].operation) is not Constant:
                found.add(blob)
        return tuple(sorted(found, key=lambda blob: blob.id))

    def _common_axes(self, fetch: Fetch) -> OpenAxes | None:
        """The open axes, if there are any that all ranks must agree on the lengths of."""
        self._notice()
        axes = self._open_axes(None if fetch is None else tuple(fetch)) if self._is_open else None
        return axes if axes is not None and axes.crosses_ranks else None

    def _notice(self) -> None:
        """Forget the programs of a graph that has changed since."""
        resources = self.resources
        if self._revision != self.graph.revision or self._order != resources.order:
            self._forget()
            self._revision, self._order = self.graph.revision, resources.order
            self._is_shared = self.graph.world.size > 1
            self._notice_growth()
            # Asked once: to look at all operations of a large graph would be felt, and lengths come from blobs.
            blobs = self.graph.blobs
            kinds = {type(length) for blob in blobs for length in blob.spec.shape}
            self._is_open = any(issubclass(kind, Length) for kind in kinds)
            sources = [blob for blob in blobs if not blob.producers]
            self._sources = {*sources, *[blob.name for blob in sources]}
            resources.common_budget()
            resources.forget_constants()
            if resources.monitor is not None and len(resources.monitor.states) < self.graph.size:
                resources.monitor = Monitor(self.graph.size)

    def _notice_growth(self) -> None:
        """Say, once, that ops are made again and again, as in the handler of a request: plans are made anew then."""
        before, self._habits.size = self._habits.size, self.graph.size
        if self._habits.size > before:
            self._habits.growths += 1
            if self._habits.growths == _MOST_GROWTHS:
                newest = self.graph.ops[-1]
                _log.warning(
                    "graph %r got new ops between its runs %d times, and was planned anew each time: make ops once, "
                    "and run them often; the newest is %r\n  created at %s\n(more: actorflow docs slow)",
                    self.graph.name,
                    self._habits.growths,
                    newest.name,
                    newest.site,
                )

    def _forget(self) -> None:
        self._programs, self._newest = {}, None
        self._planned.clear()
        self._axes.clear()
        self._habits.evicted.clear()

    def _owners(self) -> list[dict[str, Any]]:
        """The attributes of operations, where kernels keep derived arrays."""
        return [getattr(each, "__dict__", {}) for op in self.graph.ops for each in (op.operation, op.own)]

    def trim(self) -> None:
        """Give up all that can be made again; see `Graph.trim`."""
        self._forget()
        self.resources.forget_constants()
        for own in self._owners():
            own.pop(KEPT, None)
        forget_scratch()
        for device in self.resources.devices.values():
            for pool in device.pools:
                pool.trim()
        give_back_to_system()

    def _open_axes(self, targets: tuple[Any, ...] | None, fed: tuple[Blob, ...] = ()) -> OpenAxes | None:
        """The open axes of the part that targets need; None if there are none."""
        key = targets, fed
        if key not in self._axes:
            ops, fetched = chosen(self.graph, self._resolved(targets), fed)
            crosses = self.graph.world.size > 1 and bool(ranks_of_edges(ops, fetched, frozenset()))
            axes = OpenAxes(self.graph.name, ops, fetched, crosses, fed)
            if len(self._axes) >= self.graph.options.max_plans:
                self._axes.clear()
            self._axes[key] = axes if axes.names else None
        return self._axes[key]

    def _resolved(self, targets: tuple[Any, ...] | None) -> list[Blob | Op | Graph] | None:
        return None if targets is None else [self.graph.resolve(target) for target in targets]

    def _planning(
        self,
        targets: tuple[Any, ...] | None,
        check: FiniteCheck | None,
        lengths: Lengths | None,
        tapped: tuple[Blob, ...],
        fed: tuple[Blob, ...],
        is_partial: bool,
    ) -> Steps[Plan]:
        fuse = self._fuses and check is None and not is_partial
        plan = yield from planning(
            self.graph,
            self._resolved(targets),
            fuse=fuse,
            lengths=lengths,
            tapped=tapped,
            fed=fed,
            at_home=self.resources.are_shared,
        )
        plan.check, plan.is_partial = check, is_partial
        if check is not None or is_partial:
            plan.segments = ()  # what was captured is launched without a look at each op
        return plan

    def _now_s(self) -> float:
        return self.resources.dispatcher.loop.time()

    def _known(self, key: _Key) -> Program | None:
        program = self._programs.get(key)
        if program is not None and program is not self._newest:
            self._newest = self._programs[key] = self._programs.pop(key)  # the one that was used last comes last
        return program

    def _making(self, key: _Key) -> Steps[Program]:
        program = self._programs.get(key)
        try:
            if program is not None:  # it was made meanwhile
                return program
            plan = self._planned.pop(key, None)
            self._note_again(key)
            if plan is None:
                plan = yield from self._planning(*key)
            yield look_at(plan.slots)
            self._note(plan)
            yield look_at(plan.slots)
            program = yield from self.build(plan, self.resources)
            yield look_at(plan.slots)
            if len(self._programs) >= self.graph.options.max_plans:
                oldest = next(iter(self._programs))
                del self._programs[oldest]
                if len(self._habits.evicted) >= _MOST_EVICTED:
                    self._habits.evicted.clear()
                self._habits.evicted.add(hash(oldest))
            self._newest = self._programs[key] = program
            return program
        finally:  # lanes that were opened for it count as used until here, whatever became of it
            self._expect_work()

    def _note_again(self, key: _Key) -> None:
        """Log, once, that plans are made that were there before, and had to go for others."""
        if hash(key) in self._habits.evicted:
            self._habits.evicted.discard(hash(key))
            self._habits.made_again += 1
            if self._habits.made_again == _MANY_AGAIN:
                _log.warning(
                    "graph %r makes plans again that it had to give up for others, which may take longer than its ops: "
                    "it keeps max_plans=%d, and gets more combinations of lengths and fetch than that "
                    "(more: actorflow docs axes)",
                    self.graph.name,
                    self.graph.options.max_plans,
                )

    def _expect_work(self) -> None:
        lanes = self.lanes()
        self.resources.expect_work(lanes, lanes - self.lanes(FunctionActor))

    def lanes(self, kind: type[OpActor] | None = None) -> set[Lane]:
        """The lanes that ops of its programs use, or ops of a kind."""
        ops = chain.from_iterable([program.ops for program in self._programs.values()])
        return {op.lane for op in ops if op.uses_lane and (kind is None or isinstance(op, kind))}

    def _making_one(self, key: _Key) -> Steps[Program | None]:
        """A program that is then known; None once the graph has changed or was closed meanwhile."""
        programs, graph, resources = self._programs, self.graph, self.resources
        revision, order = graph.revision, resources.order
        with closing(self._making(key)) as work:
            while programs is self._programs and revision == graph.revision and order == resources.order:
                try:
                    step = next(work)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                yield step
        return None

    def build_with(self, build: Callable[[Plan, Resources], Steps[Program]], *, fuse: bool = True) -> None:
        """Build programs anew, and otherwise; frames in flight end as they began.

        Args:
            build: Makes plans ready to run.
            fuse: Whether plans join ops, if the graph's options do not forbid it.
        """
        self.build = build
        self._fuses = fuse and self.graph.options.fuse
        self._forget()

    def _note(self, plan: Plan) -> None:
        """Log, once, an unexpected choice of a plan, and keep it for watchers."""
        for text, names in plan.notes.items():
            new = [name for name in names if self._is_new(NodeNote(self.graph[name].id, text))]
            if new:
                _log.info("graph %r: %s (%s)", self.graph.name, text, listed(new))
        for op in plan.ops:
            if isinstance(op.operation, Transfer):
                self._is_new(NodeNote(op.site.id, f"copied {op.operation}, lane {op.lane}"))
            elif op.parts:
                shown = listed([part.site.name for part in op.parts])
                for part in op.parts:
                    self._is_new(NodeNote(part.site.id, f"computed in one pass: {shown}"))
            elif isinstance(op.operation, Send | Receive):
                self._is_new(NodeNote(op.site.id, f"{op.operation.kind.lower()} {op.operation}"))

    def _is_new(self, note: NodeNote) -> bool:
        if note in self._noted:
            return False
        self._noted.add(note)
        self.notes.append(note)
        return True

    # -- frames --------------------------------------------------------------------------------------------------------

    async def run(
        self,
        feeds: Feeds | None,
        fetch: Fetch,
        timeout_s: float | None = None,
        atomic: bool = False,
        is_partial: bool = False,
    ) -> Result:
        """One frame from start to end; see `Graph.run`."""
        dispatcher = self.resources.home
        if dispatcher is None or not dispatcher.claim():
            dispatcher = self.resources.claim()
        try:
            if feeds is None:
                feeds = {}
            program = self._ready_now(feeds, fetch, is_partial)
            if program is not None:
                frame = self.start(program, feeds, atomic)
                if timeout_s is None and self.instrumentation is None and program.exchange is None:
                    dispatcher.run_now()  # as `_begun`, of which each call would be felt
                else:
                    self._begun(program, frame, timeout_s, True)
            elif self.graph.world.size > 1:
                program, frame = await self._begin_among_ranks(feeds, fetch, atomic, timeout_s)
            else:
                begun = self.begin(feeds, fetch, atomic, timeout_s, awaited=True, is_partial=is_partial)
                program, frame = await begun
            if frame.has_ended and frame.state is FINISHED and not program.looks_on:
                return program.result(frame)
            return await program.outcome(frame)
        finally:
            dispatcher.release()

    def _ready_now(self, feeds: Feeds, fetch: Fetch, is_partial: bool) -> Program | None:
        """A program that is there, if a frame of it can start without waiting for anything, or asking other ranks."""
        if self.queue.closed or (self._is_shared and self._common_axes(fetch) is not None):
            return None
        if within.get() is not None and not self._is_shared and turns_to_wait():
            return None
        program = self._known(self._key(fetch, feeds, None, is_partial))
        if program is None or program.draws:
            return None
        if program.exchange is None and not program.per_item:
            return program
        if program.exchange is None:
            return None  # which `begin` refuses
        exchange = program.exchange
        is_ready = not self.resources.rank_turns.closed and exchange.peers.are_ready(exchange)
        return program if is_ready else None

    async def begin(
        self,
        feeds: Feeds,
        fetch: Fetch,
        atomic: bool,
        timeout_s: float | None = None,
        *,
        awaited: bool = False,
        streamed: bool = False,
        permit: Permit | None = None,
        requesters: Sequence[Span] = (),
        turn: Ticket | None = None,
        is_partial: bool = False,
    ) -> tuple[Program, Frame]:
        """Start a frame, when it may start, which it may at once by a permit; its time runs from now on.

        Where its program has to be made first, that takes slices of the loop's time, and those that come later wait.
        A frame that other ranks start, too, has its turn behind earlier calls, or is given that. Its span is linked
        with those of the requests that it computes. If the caller will do nothing but await it, its first slice is run
        at once.
        """
        if within.get() is not None and not self._is_shared:  # other ranks would have come to something else
            for _ in range(turns_to_wait()):
                await asyncio.sleep(0)
        permitted = self.queue.holds(permit)
        if turn is None and not permitted:
            turn = self._turn_among_ranks(feeds, fetch)
        with turn or nullcontext():
            asks = self._is_shared and (permitted or turn is not None)
            lengths = await self._agree_with_ranks(feeds, fetch, turn) if asks else None
            key = self._key(fetch, feeds, lengths, is_partial)
            program = self._known(key)
            if program is None and self.queue.pause is not None:  # what is wrong is told now
                program = at_once(self._making(key))
            if program is not None:
                _check_streamed(program, streamed)
            ticket = None
            if program is None or (not self.queue.holds(permit) and (self.queue.closed or program.draws)):
                ticket = self.queue.enter()  # before the next has its turn
            else:
                frame = self.start(program, feeds, atomic)
                if permit is not None:
                    self.queue.spend(permit)
        if ticket is not None:
            with ticket:  # given back whatever happens, also where no coroutine has begun
                how = atomic, is_partial, lengths
                starting = partial(self._begin_in_turn, feeds, fetch, *how, ticket, streamed)
                program, frame = await self._begin_in_time(starting, timeout_s)
        assert program is not None
        return self._begun(program, frame, None if ticket is not None else timeout_s, awaited, streamed, requesters)

    def _begun(
        self,
        program: Program,
        frame: Frame,
        timeout_s: float | None,
        awaited: bool,
        streamed: bool = False,
        requesters: Sequence[Span] = (),
    ) -> tuple[Program, Frame]:
        """Let a frame go on that was started; it is given up if that fails, as nobody will know of it."""
        try:
            if timeout_s is not None:
                limit_time(frame, timeout_s, timeout_s)
            if self.instrumentation is not None:
                frame.ends_quietly = False
                self.instrumentation.begin(frame, streamed=streamed, requesters=requesters)
        except BaseException:
            frame.cancel()
            raise
        if awaited and program.exchange is None:  # by a caller that does nothing but await it: its first slice is run
            self.resources.dispatcher.run_now()
        else:
            frame.wake()
        return program, frame

    async def _begin_among_ranks(
        self, feeds: Feeds, fetch: Fetch, atomic: bool, timeout_s: float | None
    ) -> tuple[Program, Frame]:
        """Start a frame that other ranks start, too.

        If its caller goes before, it is refused in its turn: the others would wait for it, or take the next for it.
        """
        turn = self._turn_among_ranks(feeds, fetch)
        starting = asyncio.create_task(self._begin_claimed(feeds, fetch, atomic, turn))
        self._starting[starting] = True
        starting.add_done_callback(self._has_started)
        if turn is not None:
            starting.add_done_callback(lambda _: turn.leave())  # it may be cancelled before it begins
        try:
            return await self._begin_in_time(partial(asyncio.shield, starting), timeout_s)
        except BaseException:
            if not starting.done():
                self._starting[starting] = False
            elif not starting.cancelled() and starting.exception() is None:
                starting.result()[1].leave()
            raise
        finally:
            del starting  # whose error, if it has one, refers to this call

    async def _begin_claimed(
        self, feeds: Feeds, fetch: Fetch, atomic: bool, turn: Ticket | None
    ) -> tuple[Program, Frame]:
        claim = self.resources.claim()
        try:
            return await self.begin(feeds, fetch, atomic, awaited=True, turn=turn)
        finally:
            claim.release()

    def _has_started(self, starting: asyncio.Task[tuple[Program, Frame]]) -> None:
        del self._starting[starting]
        if not starting.cancelled():
            starting.exception()  # seen, though its caller may have gone

    async def _begin_in_time(
        self, start: Callable[[], Awaitable[tuple[Program, Frame]]], timeout_s: float | None
    ) -> tuple[Program, Frame]:
        """Await the start of a frame, which then has the time that is left."""
        try:
            async with asyncio.timeout(timeout_s) as limit:
                program, frame = await start()
                due_s = limit.when()
        except TimeoutError:
            if not limit.expired():
                raise
            why = self.queue.pause or "not paused: its plan was being made, or that of a run before it"
            if self.graph.world.size > 1:
                why = f"{why}, or the other ranks have not come to it"
            raise RunTimeoutError(
                f"a run timed out after {timeout_s:g} s before its frame started; graph {self.graph.name!r} is {why}"
            ) from None
        finally:
            del limit  # which refers to the task, as what the task is cancelled with refers to this call
        if timeout_s is not None and due_s is not None:
            limit_time(frame, timeout_s, due_s - asyncio.get_running_loop().time())
        return program, frame

    def _turn_among_ranks(self, feeds: Feeds, fetch: Fetch) -> Ticket | None:
        """The turn of a run that other ranks start, too, as far as that is known; None if they do not.

        All ranks are to ask each other, and to start their frames, in the order of the calls, however long each of
        them takes for the ops between.
        """
        axes = self._common_axes(fetch) if self._is_shared else None
        if not self._is_shared:
            return None
        program = None if axes is not None else self._programs.get(self._key(fetch, feeds))
        return self.resources.rank_turns.enter() if program is None or program.exchange is not None else None

    async def _agree_with_ranks(self, feeds: Feeds, fetch: Fetch, turn: Ticket | None) -> Lengths | None:
        """In its turn, have a program for a run that is there, and that all ranks agree on; returns their lengths."""
        if turn is not None:
            await turn.come()
        axes = self._common_axes(fetch)
        lengths = None if axes is None else await self.resources.peers.agree_on_lengths(axes, feeds)
        while await self._ready(feeds, fetch, lengths) is None:
            pass
        return lengths

    async def _begin_in_turn(
        self,
        feeds: Feeds,
        fetch: Fetch,
        atomic: bool,
        is_partial: bool,
        lengths: Lengths | None,
        ticket: Ticket,
        streamed: bool,
    ) -> tuple[Program, Frame]:
        """Start a frame behind the calls before it, when it has a program and the graph is not paused."""
        program = None
        while program is None:
            await ticket.come()
            program = await self._ready(feeds, fetch, lengths, is_partial, ticket)
        _check_streamed(program, streamed)
        frame = self.start(program, feeds, atomic)
        self.queue.spend()
        return program, frame

    async def _ready(
        self,
        feeds: Feeds,
        fetch: Fetch,
        lengths: Lengths | None,
        is_partial: bool = False,
        ticket: Ticket | None = None,
    ) -> Program | None:
        """The program that a frame can start with now; None when something had to be awaited: look again."""
        key = self._key(fetch, feeds, lengths, is_partial)  # now, as the graph may have changed meanwhile
        program = self._known(key)
        if program is None:
            if not await prepared(ticket):
                await in_slices(self._making_one(key))
            return None
        if program.draws:
            await program.draw()
            return None
        exchange = program.exchange
        waiting = None if exchange is None else exchange.peers.prepare(exchange)
        if waiting is not None:
            await waiting
            return None
        return program

    def start(self, program: Program, feeds: Feeds, atomic: bool = False) -> Frame:
        """Start a frame; it goes on by itself once the dispatcher is told (`Frame.wake`)."""
        try:
            if self._starting and (task := asyncio.current_task()) and not self._starting.get(task, True):
                raise asyncio.CancelledError("its run was cancelled or timed out before")
            call = outer = within.get()
            if call is not None:
                outer = check_turns(self.graph.name, program.ops, program.uses, self.resources.turnstiles.values())
            values = program.feed(feeds)
        except BaseException as error:
            if program.exchange is not None:
                program.exchange.refuse(self.next_number, error)
                self.next_number += 1  # as on the ranks that start it
            raise
        branches = program.branches
        if branches is not None:
            if branches.left <= 0 and branches.look():
                self._expect_work()
            branches.left -= 1
        frame = program.frame(self.next_number, values, self.observer, atomic)
        if outer is not call:
            frame.context.run(within.set, outer)
        self.next_number += 1
        if not self.resources.running:
            self.resources.rests += 1
        self.frames.started += 1
        if program.tapped:
            self.resources.taps.begin(frame, program, self._now_s())
        try:
            if self.observer.limits.are_set:
                self.observer.limits.begin(frame, frame.loop)
            program.begin(frame)
        except BaseException as error:  # noqa: BLE001  as `Frame.guarded`, of which the call would be felt
            leave_loop(error)
            frame.fail(None, error)
        return frame

    def cancel_frames(self, number: int | None, reason: str) -> list[int]:
        """End frames with an error for their callers; see `Graph.cancel`."""
        frames = [
            frame for frame in self.running if frame.state is FrameState.RUNNING and frame not in self.frames.apart
        ]
        if number is not None:
            known = ", ".join(str(frame.number) for frame in frames) or "none"
            frames = [frame for frame in frames if frame.number == number]
            if not frames:
                raise GraphError(f"frame {number} of graph {self.graph.name!r} is not in flight; in flight: {known}")
        for frame in frames:
            frame.cancel(RunCancelledError(self.graph.name, frame.number, reason, frame.updated))
        return [frame.number for frame in frames]

    async def aclose(self) -> None:
        """Cancel all frames, wait until nothing runs any more, and stop the lanes. A later frame starts anew."""
        resources = self.resources
        for frame, op in callers():
            if frame in resources.running:
                raise GraphError(f"op {op.what!r} of graph {self.graph.name!r} cannot close the graph that runs it")
        claim = resources.claim()  # moves here from a loop that was closed, which does not tell of the ends of threads
        try:
            for batcher in list(self.batchers.values()):
                batcher.abort("ends with its graph, which was closed")
            self.queue.dismiss()
            resources.rank_turns.dismiss()
            tasks: set[asyncio.Task[Any]] = {*self._starting}
            for starting in tasks:
                end(starting)
            for frame in list(resources.running):
                frame.cancel()
                tasks |= frame.tasks
            await wait_out(tasks)
            await resources.leave_peers(GRACE_S)
            await self.observer.rest()
        finally:
            if not resources.running:  # then nothing of it takes time, however often the caller is cancelled
                self.observer.limits.close()
                resources.close()
                self._forget()
            claim.release()

    def forget_parent(self) -> None:
        """Make programs anew in the child of a fork."""
        self._forget()
        self.frames.apart.clear()
        self.turns = Turns()

    # -- streams -------------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[FrameStream]:
        """The streams that run, oldest first."""
        return sorted((stream for stream in self._streams if stream.is_running), key=lambda stream: stream.number)

    def register(self, stream: FrameStream) -> int:
        """Know of a stream, for watchers; returns its number."""
        self._streams.add(stream)
        self.stream_count += 1
        return self.stream_count - 1

    def open_batcher(self, batcher: Batcher) -> int:
        """Know of a batcher until it is removed from `batchers`; returns its number."""
        number, self._batcher_count = self._batcher_count, self._batcher_count + 1
        self.batchers[number] = batcher
        return number

    def tap(self, blobs: Sequence[Blob], every: int, interval_s: float, in_a_row: int, trace: bool) -> Tap:
        """Look at values of frames from now on; see `Graph.tap`."""
        taps = self.resources.taps
        tap = Tap(taps, blobs, every, interval_s, in_a_row, self.trace if trace else None)
        taps.add(tap)
        return tap

    # -- new weights ---------------------------------------------------------------------------------------------------

    async def swap(self, values: Mapping[Variable, npt.NDArray[Any]]) -> None:
        """Give variables copies of arrays of their types, between two frames; see `Model.swap`."""
        resources, graph = self.resources, self.graph
        for frame, op in callers():
            if frame in resources.running:
                raise GraphError(f"op {op.what!r} of graph {graph.name!r} cannot await new weights of its own graph")
        kept: set[Any] = {own[KEPT] for own in self._owners() if KEPT in own}
        is_done = False
        claim = resources.claim()
        try:
            making = asyncio.ensure_future(in_thread(partial(_made, values, kept)))
            making.add_done_callback(ended_with)
            await wait_out([making])
            count = len(resources.running)
            if graph.world.size > 1 and count:
                where = f"graph {graph.name!r}, which {graph.world.size} ranks run,"
                raise GraphError(f"{where} cannot be given weights with frames in flight, it has {count}: await them")
            made = {variable: resources.uploaded(variable, value) for variable, value in making.result().items()}
            before = [frame.ended for frame in resources.running]
            for variable, value in made.items():
                resources.swap(variable, value)
            is_done = True
            if before:
                await asyncio.wait(before)  # they read the weights that they began with
        finally:
            for each in kept:
                each.settle(renewed=is_done)
            claim.release()

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self, variables: Sequence[Variable]) -> tuple[int, asyncio.Task[list[Any]]]:
        """The values that variables have between the frames started so far and later ones.

        Frames go on meanwhile, and none waits for this. It is a frame itself, but has no number of its own, so that
        random streams are the same with it and without it.

        Returns:
            Number of the first frame that is not contained, and what gives the values: the arrays, wherever they are.
            Awaiting that raises GraphError if one of the frames before has failed or was cancelled, so that some of
            its updates may be missing.
        """
        claim = self.resources.claim()
        try:
            number, before = self.next_number, [frame for frame in self.running if frame.turns]
            started = None
            if variables:
                program = self.program(tuple(variables), {})
                frame = self.start(program, {})
                self.next_number, apart = number, self.frames.apart
                self.frames.started -= 1
                apart &= self.resources.running  # those of a closed loop have not told of their end
                apart.add(frame)
                frame.ended.add_done_callback(lambda _: apart.discard(frame))
                frame.wake()
                started = program, frame
            return number, asyncio.ensure_future(self._snapshot(started, before, variables))
        finally:
            claim.release()  # a frame keeps the graph on its loop by itself

    async def _snapshot(
        self, started: tuple[Program, Frame] | None, before: Sequence[Frame], variables: Sequence[Variable]
    ) -> list[Any]:
        values: list[Any] = []
        if started is not None:
            program, frame = started
            await frame.wait()
            result = program.result(frame)
            values = [result[variable] for variable in variables]
        unfinished = [earlier.ended for earlier in before if not earlier.ended.done()]
        if unfinished:
            await asyncio.wait(unfinished)
        for earlier in before:
            if earlier.state is not FrameState.FINISHED:
                raise GraphError(
                    f"frame {earlier.number} of graph {self.graph.name!r} ended as {earlier.state.name}: "
                    "some of its updates may be missing"
                )
        return values


async def prepared(ticket: Ticket | None = None) -> bool:
    """Prepare the host in a thread unless it is, as that would hold the loop for 100 ms; returns whether it was not."""
    is_new = not are_loaded("cpu", device_kind("cpu").libraries)
    if is_new:
        loading = in_thread(prepare_host)
        await (loading if ticket is None else ticket.during(loading))
    return is_new


#: Forks wait for it: a child would wait forever for a module that a thread of its parent was importing.
_preparing = held_at_fork(Lock(), is_outer=True)


def prepare_host() -> None:
    """Have the kernels of processors registered and BLAS found, which takes some 50 ms once; in a thread."""
    with _preparing:
        load_libraries("cpu", device_kind("cpu").libraries)
        team.prepare()


def _made(values: Mapping[Variable, npt.NDArray[Any]], kept: Iterable[Any]) -> dict[Variable, npt.NDArray[Any]]:
    """Copies of values that variables will have, and of arrays that kernels derive from these; in a thread."""
    made = {variable: np.array(value, order="C") for variable, value in values.items()}
    renewed = {id(variable._value): value for variable, value in made.items()}
    for each in kept:
        each.renew(renewed)
    return made


def _is_unfelt(plan: Plan) -> bool:
    """Return whether nothing but its results says that a frame was run: no function of the user's was called, no
    variable and no random stream has gone on, no other rank takes part.
    """
    fed = [plan.slots[slot].spec for slot in plan.feeds.values()]
    return not (
        plan.updates
        or plan.graph.world.size > 1
        or any(spec.is_object for spec in fed)
        or any(op.kernel is None or op.kernel.random or isinstance(op.operation, Function) for op in plan.ops)
    )


def _check_streamed(program: Program, streamed: bool) -> None:
    """Check that each fetched blob is there once in a frame, where it must be."""
    if program.per_item and program.is_partial:
        raise GraphError(
            f"graph {program.graph.name!r} computes {program.per_item[0]!r} for each item of an op that emits, which "
            "partial=True cannot leave out: join the items by af.collect, or run it without partial"
        )
    if program.per_item and not streamed:
        names = listed([repr(name) for name in program.per_item])
        raise GraphError(
            f"graph {program.graph.name!r} computes {names} for each item of an op that emits: take the results by "
            "graph.stream(), or join the items by af.collect, and fetch what that gives"
        )
