"""Resources of a graph: devices, variables and whatever else its frames share."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any, NamedTuple

from actorflow.actors.blob import VariableActor
from actorflow.actors.budget import Budget
from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.frame import Frame
from actorflow.core import FrameState, Turnstile
from actorflow.devices import Device, Fence, Lane, open_device
from actorflow.devices.cpu import CPU
from actorflow.devices.team import team
from actorflow.errors import GraphError, NotFiniteError, OpError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Op, Variable
from actorflow.ops.function import Function
from actorflow.place import Place
from actorflow.plan.order import lane_names
from actorflow.ranks.edges import ChannelLane
from actorflow.ranks.peers import Peers
from actorflow.ranks.watching import Watching
from actorflow.runtime.pause import StartQueue
from actorflow.runtime.taps import Taps
from actorflow.threads import forget_in_child, held_at_fork
from actorflow.trace.counters import (
    FailureRecord,
    FrameCounts,
    Monitor,
    NodeState,
    NotFiniteRecord,
    OpProfile,
    Scalars,
    SegmentProfile,
)
from actorflow.trace.ring import Trace

_log = logging.getLogger("actorflow")


class KeptCall(NamedTuple):
    """A call with a result that is not finite, with all that it read."""

    frame: int
    op_id: int
    to_graph: Callable[[], Graph]  # as `OpError.to_graph`
    rests: int  # how often no frame had been in flight before


class Resources:
    """Opened on first use, shared by all programs of a graph, and moved from one event loop to the next.

    Args:
        graph: A root graph.
        make_dispatcher: Called with the loop.
        shared_device: Gives the device of a place, where devices are shared with others; they are not closed here.

    Attributes:
        are_shared: Whether they are. Feeds are then in the memory of the device where its blob lives.
    """

    def __init__(
        self,
        graph: Graph,
        make_dispatcher: Callable[[asyncio.AbstractEventLoop], Dispatcher] = Dispatcher,
        shared_device: Callable[[Place], Device] | None = None,
    ) -> None:
        self.graph = graph  # the root graph
        self.queue = StartQueue(graph.name)  # where runs and streams wait while the graph is paused
        self.rank_turns = StartQueue(graph.name)  # where what other ranks start, too, keeps the order of its calls
        self.running: set[Frame] = set()  # frames in flight
        self.frames = FrameCounts(self.running)
        # Constants of the programs that are kept; see `constants_of`.
        self.constants: defaultdict[Place, weakref.WeakValueDictionary[Any, Any]] = defaultdict(
            weakref.WeakValueDictionary
        )
        self.constant_ops: set[int] = set()  # `Node.id` of the ops that no frame computes
        self.order = 0  # how often the order of frames was begun anew; programs made before are not used any more
        self.budget: Budget | None = None  # memory that frames may take, if there is a limit
        self.profile: dict[int, OpProfile] = {}  # calls and times by `Node.id` of the op
        self.segments: dict[tuple[int, ...], SegmentProfile] = {}  # of ops that are launched as one, by `Node.id`
        self.trace = Trace(graph.options.trace_capacity)  # the newest calls, failed ones among them
        self.errors: deque[FailureRecord] = deque(maxlen=50)  # the newest failures
        self.not_finite: NotFiniteError | None = None  # see `Graph.not_finite`
        self.kept_call: KeptCall | None = None  # of which a check has found something
        self.rests = 0  # how often a frame has started when none was in flight
        self.scalars = Scalars()  # fetched 0-d numbers by frame
        self.monitor: Monitor | None = None  # states of the nodes, while they are watched
        self.taps = Taps()  # those who look at values of frames
        self._watchers = 0
        self._peers: Peers | None = None
        self._watching: Watching | None = None
        self._make_dispatcher = make_dispatcher
        self.home: Dispatcher | None = None  # of the loop that it runs on; None before the first
        self._shared_device = shared_device
        self.are_shared = shared_device is not None
        self.devices: dict[Place, Device] = {}  # the devices opened so far
        self._variables: dict[Variable, VariableActor] = {}
        self.turnstiles: dict[Op, Turnstile] = {}  # what keeps the frames of function ops in order
        self._function_lanes: dict[Op, str] = {}
        self._moving = held_at_fork(threading.Lock(), is_outer=True)
        # A graph that is dropped without aclose() leaves no threads behind.
        weakref.finalize(self, _close_all, self.devices, graph.options.deterministic)
        forget_in_child(self)

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher of the loop that runs now."""
        assert self.home is not None
        return self.home

    def device(self, place: Place) -> Device:
        """The device of a place, opened on first use."""
        if self._shared_device is not None:
            return self._shared_device(place)
        device = self.devices.get(place)
        if device is None:
            device = open_device(place, self.graph.options.devices.get(place))
            if self.graph.options.deterministic and not self.devices:
                team.keep_single()  # what closes the devices ends it
            self.devices[place] = device
            device.bind(self.dispatcher.loop)
            device.memory.budget_bytes = self.graph.budget_of(place)
            for pool in device.pools:
                pool.clock = partial(_clock_of, weakref.ref(self.frames))  # of which frames in flight are a part
            device.watch_closely(self.monitor is not None)
        return device

    def expect_work(self, lanes: Container[Lane], in_pieces: Container[Lane]) -> None:
        """Have cores shared out among the lanes that programs use: there is no work for others from here on."""
        for device in self.devices.values():
            device.expect(lanes, in_pieces)

    def variable_actor(self, variable: Variable) -> VariableActor:
        """The actor that orders the frames at a variable; one for all programs."""
        actor = self._variables.get(variable)
        if actor is None:
            actor = self._variables[variable] = VariableActor(variable, self.device(variable.place))
        return actor

    def uploaded(self, variable: Variable, value: Any) -> Any:
        """A host array as one of a variable's device, if frames read it there already."""
        actor = self._variables.get(variable)
        device = None if actor is None else self.device(variable.place)
        return value if device is None or device.is_host else device.upload(value)

    def swap(self, variable: Variable, value: Any) -> None:
        """Make an array the value of a variable; see `VariableActor.swap`."""
        actor = self._variables.get(variable)
        if actor is None:
            variable.commit(value)
        else:
            actor.swap(value)

    def turnstile(self, op: Op) -> Turnstile:
        """The turnstile of an op that calls functions; one for all programs."""
        turnstile = self.turnstiles.get(op)
        if turnstile is None:
            operation = op.operation
            # A lane keeps calls apart and in order, but for one that will be repeated: the lane is free meanwhile. What
            # computes functions by bodies does so for one frame after the other.
            limit = operation.concurrency if isinstance(operation, Function) else 1
            if isinstance(operation, Function) and not operation.is_async and op.attempts is not None:
                limit = 1
            turnstile = self.turnstiles[op] = Turnstile(limit)
        return turnstile

    def function_lane(self, op: Op, planned: str) -> str:
        """The lane of a function op in all programs: that of the plan that had it first.

        A lane keeps the calls of a function apart and in order. Plans of other fetches might spread them over two.
        """
        return self._function_lanes.setdefault(op, planned)

    def common_budget(self) -> Budget | None:
        """The budget, made if there is a limit, for others that take from it as well."""
        if self.budget is None and self.graph.options.has_budget:
            self.budget = Budget()
        return self.budget

    # -- failures, and what a check that pauses has found --------------------------------------------------------------

    def note_failure(self, frame: int | None, error: BaseException | None, *, paused: bool = False) -> None:
        """Remember a frame's failure, or the finding that has paused the graph, for watchers."""
        assert frame is not None
        op_id = error.op.id if isinstance(error, OpError) else None
        found = None
        if isinstance(error, NotFiniteError):
            self._keep_call(frame, error)
            held: Any = error.inputs, error.results
            found = NotFiniteRecord(held[0], held[1], paused)
        self.errors.append(FailureRecord(time.time(), frame, op_id, str(error), found))

    def found(self, error: NotFiniteError) -> None:
        """Take note of it. To be called from any thread."""
        loop = self.dispatcher.loop
        if asyncio._get_running_loop() is loop:
            self._found(error)
        else:
            loop.call_soon_threadsafe(self._found, error)

    def _found(self, error: NotFiniteError) -> None:
        _log.warning("graph %r: frame %s: %s (more: actorflow docs nan)", self.graph.name, error.frame, error)
        self.note_failure(error.frame, error, paused=True)
        if self.queue.pause is None or self.not_finite is None:
            self.not_finite = error
        if self.queue.pause is None:
            self.queue.close(f"as op {error.op_name!r} has made what is not finite")

    def _keep_call(self, frame: int, error: NotFiniteError) -> None:
        """Keep the first call whose result is not finite since no frame was in flight, as others may follow."""
        kept = self.kept_call
        if error._alone is not None and (kept is None or kept.rests != self.rests or frame < kept.frame):
            # Not the error: by its traceback it would keep all of the frame.
            self.kept_call = KeptCall(frame, error.op.id, error._alone, self.rests)

    # -- other ranks ---------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> Peers:
        """Counterparts of the graph on the other ranks."""
        if self._peers is None:
            self._peers = Peers(self.graph.name, self.graph.world)
            self._watching = Watching(self, self._peers)
            self._peers.bind(self.dispatcher.loop)
            self._peers.handlers["paused"] = self.queue.heard
            self._peers.are_held = self.queue.has_waiting
            self.queue.tell_with(self._peers.tell_paused)
            if self.monitor is not None:
                self._watching.start()
        return self._peers

    def end_stream(self) -> None:
        """A stream has ended, early or not: so must its parts on the other ranks."""
        if self._peers is not None:
            self._peers.end_stream()

    async def leave_peers(self, limit_s: float) -> None:
        """Report nothing more to the other ranks, and wait until they need nothing more from this one."""
        if self._peers is not None and self._watching is not None:
            self._watching.close()
            await self._peers.settle(limit_s)

    # -- watching ------------------------------------------------------------------------------------------------------

    def watch(self) -> Monitor:
        """Keep states per op from the next frame on, for as long as there is a watcher; `unwatch` when done."""
        self._watchers += 1
        if self.monitor is None:
            self.monitor = Monitor(self.graph.size)
            self.monitor.show(self.constant_ops, NodeState.CONSTANT)
            for device in self.devices.values():
                device.watch_closely(True)
            if self._watching is not None:
                self._watching.start()
        return self.monitor

    def unwatch(self) -> None:
        """One watcher less."""
        self._watchers -= 1
        if not self._watchers:
            self.monitor = None
            for device in self.devices.values():
                device.watch_closely(False)
            if self._watching is not None:
                self._watching.stop()

    # -- loops ---------------------------------------------------------------------------------------------------------

    def claim(self) -> Dispatcher:
        """Keep the graph on the running loop, and move it there if it is on no other, until that is released.

        Raises:
            GraphError: if it is in use on another loop, such as that of another thread.
        """
        home = self.home
        if home is not None and home.claim():
            return home
        with self._moving:
            loop = asyncio.get_running_loop()
            if self.home is None or self.home.loop is not loop:
                self._move_to(loop)
            home = self.dispatcher
            home.claims += 1
        return home

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        before = self.home
        try:
            if before is not None:
                before.is_open = False  # first: from here on, others that claim it wait for the lock
            if before is not None and (self.running or before.claims):
                if not before.loop.is_closed():
                    raise GraphError(
                        f"graph {self.graph.name!r} is in use on another event loop: it runs on one loop, of one "
                        "thread, at a time; make a graph for each"
                    )
                # That loop was closed in the middle of a run: nothing waits for those frames any more.
                self.queue.forget()
                self.rank_turns.forget()
                self.taps.forget()
                for frame in list(self.running):
                    frame.abandon()
                self._variables.clear()
                self.begin_order_anew()
            home = self._make_dispatcher(loop)
            home.is_open = False
            home.ready.running = self.running
            self.home = home
            for device in self.devices.values():
                device.bind(loop)
            if self._peers is not None:
                self._peers.bind(loop)
            adopt = getattr(loop, "adopt", None)  # a loop with a clock of its own asks for `lanes_at_work`
            if adopt is not None:
                adopt(self)
        finally:
            if self.home is not None:
                self.home.is_open = True

    def run_on(self, dispatcher: Dispatcher) -> None:
        """Have frames run by a dispatcher that belongs to no loop: by the thread that starts them."""
        self.home = dispatcher
        dispatcher.ready.running = self.running

    def lanes_like(self, lane: Lane) -> tuple[Lane, ...]:
        """The lanes that a plan may choose instead of one, itself among them; none where there are no others."""
        for device in self.devices.values():
            names = lane_names(device.parallel_lanes()) if isinstance(device, CPU) else []
            if len(names) > 1 and lane.name in names and device.lane(lane.name) is lane:
                return tuple([device.lane(name) for name in names])
        return ()

    def lanes_at_work(self) -> set[Lane]:
        """Lanes with work whose end the loop has not seen; messages do not count, they end on the loop."""
        running = (work for frame in self.running for _, work in frame.at_work)
        lanes = {work.lane for work in running if isinstance(work, Fence)}
        return {lane for lane in lanes if not isinstance(lane, ChannelLane)}

    def begin_order_anew(self) -> None:
        """Forget the turns at functions and variables: no frame that has one goes on."""
        self.order += 1
        self.turnstiles.clear()
        self._function_lanes.clear()
        self.forget_constants()
        for variable in self._variables.values():
            variable.forget_turns()

    def forget_constants(self) -> None:
        """Compute constants anew, for the programs that are built from now on."""
        self.constants.clear()
        self.constant_ops.clear()

    def show_constants(self, ops: Iterable[int]) -> None:
        """Let watchers know of ops that no frame computes, by `Node.id`."""
        self.constant_ops.update(ops)
        if self.monitor is not None:
            self.monitor.show(ops, NodeState.CONSTANT)

    def forget_parent(self) -> None:
        """Begin anew in the child of a fork: loop, devices and frames in flight are the parent's."""
        for frame in self.running:
            frame.state, frame.halted = FrameState.CANCELLED, True
        self.frames.cancelled += len(self.running)
        self.running.clear()
        self.budget = self.home = None
        self._peers = self._watching = None
        self.devices.clear()
        self._variables.clear()
        self.begin_order_anew()
        self.queue.forget()
        self.rank_turns.forget()

    def close(self) -> None:
        """Close the devices, which may be opened again, and wait for their threads."""
        devices = list(self.devices.values())
        _close_all(self.devices, self.graph.options.deterministic)
        for device in devices:
            device.join()
        self._variables.clear()
        self.begin_order_anew()


def _clock_of(counts: weakref.ref[FrameCounts]) -> tuple[int, int]:
    found = counts()
    return (0, 0) if found is None else found.clock()


def _close_all(devices: dict[Place, Device], deterministic: bool) -> None:
    if deterministic and devices:
        team.release_single()
    for device in devices.values():
        device.close()
    devices.clear()
