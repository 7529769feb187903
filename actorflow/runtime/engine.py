"""Runs graphs: wires plans, actors and devices, starts frames, and hands out their results."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.frame import Frame, FrameState
from actorflow.actors.nesting import callers, within
from actorflow.devices import Fence, Lane
from actorflow.errors import GraphError, OpError, RunCancelledError, RunTimeoutError, text_of
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.loop import wait_out
from actorflow.plan.float_errors import traps_here, with_traps
from actorflow.plan.plan import Plan
from actorflow.plan.planner import make_plan
from actorflow.ranks.edges import ChannelLane
from actorflow.ranks.peers import Peers
from actorflow.ranks.watching import Watching
from actorflow.runtime.limits import GRACE_S, Supervisor, limit_time
from actorflow.runtime.notes import Notes
from actorflow.runtime.pause import StartQueue
from actorflow.runtime.program import Program, Result
from actorflow.runtime.resources import Claim, Equipment
from actorflow.runtime.snapshots import Snapshots
from actorflow.runtime.stream import FrameStream
from actorflow.trace.counters import FailureRecord, FrameCounts, Monitor, NodeNote, OpProfile, Scalars, SegmentProfile
from actorflow.trace.ring import Trace

if TYPE_CHECKING:
    from actorflow.runtime.pause import Permit
    from actorflow.trace.spans import Instrumentation

_log = logging.getLogger("actorflow")

Feeds = Mapping[Any, npt.ArrayLike]

#: Plans kept per graph; one is needed for each different ``fetch``.
_MAX_PROGRAMS = 64


class Engine(Equipment):
    """What runs one graph: programs, frames in flight, and what is known of the past.

    Args:
        graph: A root graph.
        make_dispatcher: Called with the loop; tests bring dispatchers that try other orders.

    Attributes:
        frames: How many frames started, finished, failed and were cancelled.
        next_number: Number of the next frame, which names its random streams; a checkpoint sets it.
        profile: Calls and times by `Node.id` of the op.
        scalars: Fetched 0-d numbers by frame.
        trace: The newest calls, failed ones among them.
        errors: The newest failures.
        segments: What became of the calls of ops that are launched as one, by their `Node.id`; see `Graph`.
        monitor: States of the nodes, while somebody watches; see `watch`.
        queue: Where runs wait while the graph is paused.
        instrumentation: Makes spans of frames, if that is wanted; see `Graph.instrument`.
        make_program: Makes a plan ready to run; see `build_with`.
    """

    def __init__(
        self, graph: Graph, make_dispatcher: Callable[[asyncio.AbstractEventLoop], Dispatcher] = Dispatcher
    ) -> None:
        super().__init__(graph, make_dispatcher)
        self.make_program: Callable[[Plan, Engine], Program] = Program
        self.frames = FrameCounts()
        self.next_number = 0
        self.profile: dict[int, OpProfile] = {}
        self.segments: dict[tuple[int, ...], SegmentProfile] = {}
        self.scalars = Scalars()
        self.trace = Trace(graph.options.trace_capacity)
        self.errors: deque[FailureRecord] = deque(maxlen=50)
        self.monitor: Monitor | None = None
        self._watchers = 0
        self._programs: dict[Any, Program] = {}
        self._notes = Notes(graph)
        self._revision = -1
        self._running: set[Frame] = set()
        self._peers: Peers | None = None
        self._watching: Watching | None = None
        self.queue = StartQueue(graph.name)
        self.instrumentation: Instrumentation | None = None
        self._streams: weakref.WeakSet[FrameStream] = weakref.WeakSet()
        self._stream_count = 0
        self._snapshots = Snapshots(self)
        self._supervisor = Supervisor(graph, self.queue)
        self._idle: asyncio.Event | None = None

    @property
    def notes(self) -> deque[NodeNote]:
        """How ops are computed otherwise than asked for, where blobs are copied or sent to."""
        return self._notes.newest

    # -- plans --------------------------------------------------------------------------------------------------

    def plan(self, fetch: Iterable[Blob | Op | Graph | str] | None) -> Plan:
        """Check and plan the part of the graph that ``fetch`` needs; see `Graph.compile`."""
        if fetch is None:
            return make_plan(self.graph, None)
        return make_plan(self.graph, [self.graph.resolve(target) for target in fetch])

    def program(self, fetch: Iterable[Blob | Op | Graph | str] | None) -> Program:
        """The plan for ``fetch``, made ready to run; kept until the graph changes."""
        if self._revision != self.graph.revision:
            self._programs.clear()
            self._revision = self.graph.revision
            self.common_budget()
            if self.monitor is not None and len(self.monitor.states) < self.graph.size:
                self.monitor = Monitor(self.graph.size)
        targets, traps = None if fetch is None else tuple(fetch), traps_here()
        key = (targets, traps)
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _MAX_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            plan = self.plan(targets)
            self._notes.take(plan)
            if traps is not None:
                plan = with_traps(plan, traps)
            program = self._programs[key] = self.make_program(plan, self)
        return program

    def build_with(self, make_program: Callable[[Plan, Engine], Program]) -> None:
        """Make programs anew, and otherwise; frames in flight end as they began."""
        self.make_program = make_program
        self._programs.clear()

    @property
    def running(self) -> list[Frame]:
        """The frames in flight, oldest first."""
        return sorted(self._running, key=lambda frame: frame.number)

    @property
    def peers(self) -> Peers:
        """What is exchanged with the other ranks."""
        if self._peers is None:
            self._peers = Peers(self.graph.name, self.graph.world)
            self._watching = Watching(self, self._peers)
            self._peers.bind(self.dispatcher.loop)
            self._peers.handlers["paused"] = self.queue.heard
            self.queue.tell_with(self._peers.tell_paused)
            if self.monitor is not None:
                self._watching.start()
        return self._peers

    # -- frames -------------------------------------------------------------------------------------------------

    async def run(
        self,
        feeds: Feeds | None,
        fetch: Iterable[Blob | Op | Graph | str] | None,
        timeout_s: float | None = None,
        atomic: bool = False,
    ) -> Result:
        """One frame from start to end; see `Graph.run`."""
        claim = self.claim()
        try:
            program, frame = await self._begin({} if feeds is None else feeds, fetch, atomic, timeout_s)
            if self.instrumentation is not None:
                self.instrumentation.begin(frame, streamed=False)
            return await self.outcome(program, frame)
        finally:
            claim.release()

    def stream(
        self,
        feeds: AsyncIterable[Feeds] | Iterable[Feeds],
        fetch: Iterable[Blob | Op | Graph | str] | None,
        in_flight: int,
        atomic: bool = False,
    ) -> FrameStream:
        """One frame per feed; see `Graph.stream`."""
        targets = None if fetch is None else tuple(fetch)

        def start(feed: Feeds, step: Permit | None) -> Awaitable[tuple[Program, Frame]]:
            begun = self._begin(feed, targets, atomic, step=step)
            return begun if self.instrumentation is None else self._with_spans(begun)

        made = FrameStream(self, start, feeds, in_flight, self._stream_count)
        self._stream_count += 1
        self._streams.add(made)
        return made

    async def _with_spans(self, begun: Awaitable[tuple[Program, Frame]]) -> tuple[Program, Frame]:
        program, frame = await begun
        if self.instrumentation is not None:
            self.instrumentation.begin(frame, streamed=True)
        return program, frame

    @property
    def streams(self) -> list[FrameStream]:
        """The streams that run, oldest first."""
        return sorted((made for made in self._streams if made.is_running), key=lambda made: made.number)

    def end_stream(self) -> None:
        """A stream has ended, early or not: so must those of the other ranks."""
        if self._peers is not None:
            self._peers.end_stream()

    def start(self, program: Program, feeds: Feeds, atomic: bool = False) -> Frame:
        """Start a frame; it goes on by itself."""
        try:
            if within.get() is not None:
                program.check_turns()
            values = program.feed(feeds)
        except BaseException as error:
            if program.exchange is not None:
                program.exchange.refuse(self.next_number, error)
                self.next_number += 1  # as on the ranks that start it
            raise
        dispatcher = self.dispatcher
        frame = program.frame(self.next_number, values, self._ended, atomic)
        self.next_number += 1
        self.frames.started += 1
        self._running.add(frame)
        frame.guarded(self._set_out, program, frame)
        dispatcher.wake()
        return frame

    def _set_out(self, program: Program, frame: Frame) -> None:
        if self._watchdog is not None:
            self._watchdog.start(self.dispatcher.loop)
        self._supervisor.begin(frame, self.dispatcher.loop)
        program.begin(frame)

    def snapshot(self, variables: Sequence[Variable]) -> tuple[int, asyncio.Task[list[Any]]]:
        """The values that variables have between the frames started so far and those to come; see `Snapshots.take`."""
        return self._snapshots.take(variables)

    async def outcome(self, program: Program, frame: Frame) -> Result:
        """Wait for a frame's end and return what it fetched."""
        await self.end_of(frame)
        result = program.result(frame)
        for name, value in program.scalars(result):
            self.scalars.add(name, frame.number, value)
        return result

    async def end_of(self, frame: Frame) -> None:
        """Wait for a frame's end; stop it where that wait is cancelled, and raise what it has failed with."""
        try:
            await frame.ended
        except GeneratorExit:  # whoever waits was dropped, with a loop that was closed, say: nothing can be awaited
            if not frame.ended.get_loop().is_closed():
                frame.cancel()
            raise
        except BaseException:
            try:
                await self.cancel([frame])
            finally:
                self._supervisor.stopped(frame, self.dispatcher.loop)
            raise

    async def cancel(self, frames: Iterable[Frame]) -> None:
        """Stop frames: returns when their async functions have ended. Work in a thread ends there by itself."""
        tasks: set[asyncio.Task[Any]] = set()
        for frame in frames:
            frame.cancel()
            tasks |= frame.tasks
        await wait_out(tasks)

    def cancel_frames(self, number: int | None, reason: str) -> list[int]:
        """End frames with an error for whoever awaits them; see `Graph.cancel`."""
        frames = [frame for frame in self.running if frame.state is FrameState.RUNNING and frame not in self._snapshots]
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
        for frame, op in callers():
            if frame in self._running:
                raise GraphError(f"op {op.what!r} of graph {self.graph.name!r} cannot close the graph that runs it")
        claim = self.claim()  # moves here from a loop that was closed: it tells nobody of the ends of threads
        try:
            self.queue.dismiss()
            await self.cancel(list(self._running))
            if self._peers is not None and self._watching is not None:
                self._watching.close()
                await self._peers.settle(GRACE_S)
            if self._running:
                self._idle = asyncio.Event()
                await self._idle.wait()
                self._idle = None
            self._close()
            self._forget_order()
            self._programs.clear()
        finally:
            claim.release()

    def claim(self) -> Claim:
        """Keep the graph on the running loop, and move it there if it is on no other: until the claim is released.

        Raises:
            GraphError: if it is in use on another loop, of another thread, say.
        """
        loop = asyncio.get_running_loop()
        with self._moving:
            if self._dispatcher is None or self._dispatcher.loop is not loop:
                self._move_to(loop)
            claim = self._claim
            claim.count += 1
        return claim

    async def _begin(
        self,
        feeds: Feeds,
        fetch: Iterable[Blob | Op | Graph | str] | None,
        atomic: bool,
        timeout_s: float | None = None,
        step: Permit | None = None,
    ) -> tuple[Program, Frame]:
        """Start a frame, when it may start, which it may at once by a step that was kept; its time runs from now on."""
        program = self.program(fetch)
        if program.exchange is not None:
            waiting = program.exchange.peers.prepare(program.exchange)
            if waiting is not None:
                await waiting
        if self.queue.closed and not self.queue.holds(step):
            return await self._begin_in_turn(feeds, fetch, atomic, timeout_s)
        frame = self.start(program, feeds, atomic)
        if step is not None:
            self.queue.spend(step)
        if timeout_s is not None:
            limit_time(frame, timeout_s, timeout_s, self.dispatcher.loop)
        return program, frame

    async def _begin_in_turn(
        self, feeds: Feeds, fetch: Iterable[Blob | Op | Graph | str] | None, atomic: bool, timeout_s: float | None
    ) -> tuple[Program, Frame]:
        """Start a frame behind those that came before, when the graph is not paused."""
        queue, loop = self.queue, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                with queue.queue() as turn:
                    while True:
                        await turn.come()
                        program = self.program(fetch)  # now, as the graph may have changed meanwhile
                        exchange = program.exchange
                        waiting = None if exchange is None else exchange.peers.prepare(exchange)
                        if waiting is None:
                            break
                        await waiting
                    frame = self.start(program, feeds, atomic)
                    queue.spend()
        except TimeoutError:
            if not limit.expired():
                raise
            why = queue.pause or "not paused any more"
            raise RunTimeoutError(
                f"a run timed out after {timeout_s:g} s before its frame started; graph {self.graph.name!r} is {why}"
            ) from None
        if timeout_s is not None:
            due_s = limit.when()
            assert due_s is not None
            limit_time(frame, timeout_s, due_s - loop.time(), loop)
        return program, frame

    def lanes_at_work(self) -> set[Lane]:
        """Lanes with work whose end the loop has not seen; messages are no work, they end on the loop."""
        running = (running for frame in self._running for running in frame.outstanding.values())
        lanes = {fence.lane for fence in running if isinstance(fence, Fence)}
        return {lane for lane in lanes if not isinstance(lane, ChannelLane)}

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._dispatcher is not None and (self._running or self._claim.count):
            if not self._dispatcher.loop.is_closed():
                raise GraphError(
                    f"graph {self.graph.name!r} is in use on another event loop: it runs on one loop, of one thread, "
                    "at a time; make a graph for each"
                )
            # That loop was closed in the middle of a run: nobody waits for those frames any more.
            self._claim = Claim()
            self.queue.forget()
            for frame in list(self._running):
                frame.abandon()
            self._forget_order()
            self._programs.clear()
        self._bind_to(loop)
        if self._peers is not None:
            self._peers.bind(loop)
        adopt = getattr(loop, "adopt", None)  # a loop with a clock of its own asks for `lanes_at_work`
        if adopt is not None:
            adopt(self)

    def forget_parent(self) -> None:
        super().forget_parent()
        for frame in self._running:
            frame.state, frame.halted = FrameState.CANCELLED, True
        self.frames.cancelled += len(self._running)
        self._running, self._idle, self._revision = set(), None, -1
        self._programs.clear()
        self._peers = self._watching = None
        self.queue.forget()
        for made in [*self._streams]:
            made.forget_parent()
        self._snapshots = Snapshots(self)
        self._supervisor = Supervisor(self.graph, self.queue)

    def fault(self, frame: Frame, error: BaseException) -> None:
        """Something went wrong at a frame outside the ops' own code: a fault of this package.

        The order that frames share may be wrong from here on, so that one could wait for ever. All others end, too,
        and the next one finds everything as in the beginning.
        """
        what = f"since frame {frame.number} has met a fault of actorflow: {type(error).__name__}: {text_of(error)}"
        _log.error("graph %r: frames in flight end, %s", self.graph.name, what, exc_info=error)
        self._programs.clear()
        self._turnstiles.clear()
        for variable in self._variables.values():
            variable.forget_turns()
        for other in self.running:
            if other is not frame:
                other.cancel(RunCancelledError(self.graph.name, other.number, what, other.updated))

    def _ended(self, frame: Frame) -> None:
        self._running.discard(frame)
        self._supervisor.ended(frame)
        if frame.spans is not None:
            frame.spans.end(frame)
        if frame.state is FrameState.FINISHED:
            self.frames.finished += 1
        elif frame.state is FrameState.FAILED:
            self.frames.failed += 1
            assert frame.error is not None
            op_id = frame.error.op.id if isinstance(frame.error, OpError) else None
            self.errors.append(FailureRecord(time.time(), frame.number, op_id, str(frame.error)))
        else:
            self.frames.cancelled += 1
        if self._idle is not None and not self._running:
            self._idle.set()

    # -- watching -----------------------------------------------------------------------------------------------

    def watch(self) -> Monitor:
        """Keep states per op from the next frame on, for as long as somebody watches; `unwatch` when done."""
        self._watchers += 1
        if self.monitor is None:
            self.monitor = Monitor(self.graph.size)
            self._time_each(True)
            if self._watching is not None:
                self._watching.start()
        return self.monitor

    def unwatch(self) -> None:
        """One watcher less."""
        self._watchers -= 1
        if not self._watchers:
            self.monitor = None
            self._time_each(False)
            if self._watching is not None:
                self._watching.stop()
