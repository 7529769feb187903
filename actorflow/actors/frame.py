"""One activation of a graph: its mailboxes, its values, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from actorflow import core
from actorflow.actors.dispatcher import ENDS_PROGRAM, leave_loop
from actorflow.core import FrameState
from actorflow.devices.base import Fence
from actorflow.errors import ActorflowError, GraphError, OpError, RunCancelledError, listed, text_of
from actorflow.graph.nodes import PACKAGE
from actorflow.loop import end, wait_out, waits
from actorflow.spec import said

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from actorflow.actors.blob import BlobActor, Turn, UpdateActor, VariableActor
    from actorflow.actors.budget import Budget
    from actorflow.actors.dispatcher import Dispatcher
    from actorflow.actors.op import OpActor
    from actorflow.core import Turnstile
    from actorflow.devices.base import Device
    from actorflow.graph.nodes import Op
    from actorflow.spec import Lengths
    from actorflow.trace.counters import Monitor
    from actorflow.trace.ring import Trace
    from actorflow.trace.spans import FrameSpans

#: The name of the compiled core's source in tracebacks.
_CORE = "actorflow/core/compiled.pyx"
#: Ops that an error names of each sort; a large graph has very many that wait.
_SHOWN = 10


class FrameListener(Protocol):
    """Notified when a frame starts, and when it stops before its end."""

    def expect(self, frame: Frame) -> None:
        """The frame has started."""

    def skip(self, frame: Frame) -> None:
        """The frame has stopped before its end."""


class FrameObserver(Protocol):
    """Keeps account of a graph's frames; each frame tells its observer of its end, once."""

    def ended(self, frame: Frame) -> None:
        """The frame has ended, and nothing of it runs any more."""

    def abandoned(self, frame: Frame) -> None:
        """The stopped frame is no longer waited for; calls of it may still run in threads."""

    def fault(self, frame: Frame, error: BaseException) -> None:
        """Something failed at the frame that is not an op's own code."""


#: In Python 3.11 to look a member up takes as long as a call.
RUNNING, FINISHED = FrameState.RUNNING, FrameState.FINISHED


class FrameStart(core.Start):
    """Counts, queue and callbacks that all frames of a program begin with, and share.

    Args:
        pending, readers, open_ends: As of `core.Start`; ends are those of ops that nothing in the frame follows,
            and of variables' turns.
        dispatcher: Fires the actors.
        budget: Memory that ops must be admitted to, if there is a limit.
        monitor: States of nodes, while they are watched.
        trace: The newest calls of the graph.
        observer: Is told of the end of each frame.
        listeners: Where a frame that stops has to be expected no longer: ops that take their frames in order, channels.
        turnstiles: The former.
        first: Ops that wait for a frame's start alone.
        weights: Slots that hold variables' values on devices with streams, with the device.
        ops: The program's ops, by index.
        node_ids: `Node.id` of the node that each shows up as.
        lengths: Lengths of the open axes.
    """

    def __init__(
        self,
        pending: Sequence[int],
        readers: Sequence[int],
        open_ends: int,
        dispatcher: Dispatcher,
        budget: Budget | None,
        monitor: Monitor | None,
        trace: Trace,
        *,
        observer: FrameObserver,
        listeners: Sequence[FrameListener],
        turnstiles: tuple[Turnstile, ...],
        first: tuple[OpActor, ...],
        weights: Sequence[tuple[int, Device]],
        ops: Sequence[OpActor],
        node_ids: npt.NDArray[np.intp],
        lengths: Lengths,
    ) -> None:
        # The frames of other ranks count theirs, and memory is given back where it is counted.
        quietly = len(listeners) == len(turnstiles) and budget is None and not weights
        queue = dispatcher.ready, dispatcher.wake
        super().__init__(pending, readers, open_ends, *queue, budget, monitor, trace, turnstiles, first, quietly)
        self.dispatcher = dispatcher
        self.observer = observer
        self.listeners = listeners
        self.weights = weights
        self.ops = ops
        self.node_ids = node_ids
        self.lengths = lengths


#: Turns, updates and the like of a frame that has none; to be replaced before one is added.
_NONE: Any = MappingProxyType({})


class Frame(core.Frame):
    """All state of one run.

    Everything is touched on the loop's thread only, but for counts, values and ``halted``, which lanes' threads use as
    well, and for ``outstanding``, where they note the work that they hand over.

    Attributes that most frames never need are the class's until they are set: a frame is quickly made.

    Args:
        start: The program's counts, listeners and queue.
        number: Frames of a graph are numbered from 0 in the order of their start.
        values: Value of each slot; None before it is written and after its last reader.
        context: In which its functions are called, each in a copy.

    Attributes:
        atomic: Whether all updates are committed together, at the end.
        turns: Turns that this frame takes at the variables it may update.
        resting: Ops whose call has failed and will be repeated when a timer ends.
        updates: Updates that wait for the end of an atomic frame.
        updated: Names of the variables updated so far.
        error: Error that it has failed with, until the frame has ended and the caller has it: by its traceback an error
            refers to its frame, so that one that kept it would live on, with all that was fed, until the garbage
            collector comes.
        failures: In a frame that goes on without failed ops, the error of each op that has, by its name, and of
            each slot that has no value for it; None in others, which a failure ends.
        items: Results of a frame that has one for each item of an op that emits; None where it has one result.
        serial: Number among the frames that exchange messages with other ranks.
        spans: Makes spans of it, if wanted.
    """

    start: FrameStart
    trace: Trace
    atomic = False
    turns: dict[VariableActor, Turn] = _NONE
    resting: dict[OpActor, asyncio.TimerHandle] = _NONE
    updates: list[UpdateActor] = _NONE
    updated: list[str] = _NONE
    error: ActorflowError | None = None
    #: Resolved when it has ended, once somebody has asked for it: most frames have ended before anybody waits.
    _ended: asyncio.Future[None] | None = None
    failures: dict[int | str, OpError] | None = None
    items: Any = None
    _is_told = False  # whether the caller has the error, or does not want it any more
    serial = -1
    spans: FrameSpans | None = None

    @property
    def ops(self) -> Sequence[OpActor]:
        """The program's ops, by index."""
        return self.start.ops

    @property
    def lengths(self) -> Lengths:
        """Lengths of the open axes."""
        return self.start.lengths

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it runs on."""
        return self.start.dispatcher.loop

    @property
    def ended(self) -> asyncio.Future[None]:
        """Resolved when the frame has ended, in whatever way, and nothing of it runs any more.

        Without waiting for threads when the caller must be told at once.
        """
        if self._ended is None:
            self.ends_quietly = False
            self._ended = self.loop.create_future()
            if self.has_ended:
                self._ended.set_result(None)
        return self._ended

    def announce(self, followers: Iterable[OpActor], fence: Fence | None) -> None:
        """Send ops a message: a value that they read is there, or will be when ``fence`` has passed."""
        if fence is not None:
            for actor in followers:
                self.fences.setdefault(actor, []).append(fence)
        self.send(followers)

    def finish(self) -> None:
        for update in self.updates:
            update.commit(self)
        self._stop(FINISHED)

    @property
    def at_work(self) -> list[tuple[OpActor, Fence | asyncio.Task[Any]]]:
        """The ops that are on a lane, or run as a task, as far as the loop knows, each with that work.

        Of ops that a lane's thread calls one after the other that is the one that it has come to. With an op that
        computes branches or loops, or emits, come the ops inside, whose work is a frame.
        """
        found: list[tuple[OpActor, Any]] = []
        for actor, work in [*self.outstanding.items()]:  # lanes' threads may note others meanwhile
            shift = None if isinstance(work, asyncio.Task) else work.argument
            found.append((shift.at if isinstance(shift, core.Shift) else actor, work))
            if isinstance(work, _INSIDE):
                found += work.at_work
        return found

    @property
    def is_on_a_lane(self) -> bool:
        """True while a lane has work of it that has not ended."""
        return any(not work.done for work in [*self.outstanding.values()] if isinstance(work, Fence))

    @property
    def position(self) -> tuple[Any, ...]:
        """How far it has come: another value if it has come further, or a frame that one of its ops awaits has."""
        inside: list[Any] = []
        for actor, work in [*self.outstanding.items()]:
            inside += [work] if isinstance(work, _INSIDE) else actor.inside(self)
        return self.open, self.pending, [each.position for each in inside]

    def fail(self, actor: OpActor | None, error: BaseException) -> None:
        """End the frame for a fault of this package, not of an op's own code; so end the frames that share its order.

        Args:
            actor: The op that it happened at; None where that is not known.
            error: The exception.
        """
        if actor is not None:
            self.op_failed(actor, error)
        elif self.state is RUNNING:
            failure = GraphError(f"frame {self.number} failed with {type(error).__name__}: {text_of(error)}")
            failure.__cause__ = error
            self.stop_with(failure)
        self.start.observer.fault(self, error)

    def leave_loop(self, error: BaseException) -> None:
        """As `dispatcher.leave_loop`, for an exception that an op of the frame has raised."""
        leave_loop(error)

    def guarded(self, follow: Callable[..., None], *arguments: Any) -> None:
        """Call a function for the frame. Whatever it raises ends the frame, which would otherwise wait for ever."""
        try:
            follow(*arguments)
        except BaseException as error:  # noqa: BLE001
            leave_loop(error)
            self.fail(None, error)

    def op_failed(self, actor: OpActor, cause: BaseException, node: Op | None = None) -> None:
        """A call failed. The first failure wins; nothing further is started, the frame ends when all is at rest.

        Args:
            actor: Whose call it was.
            cause: The exception.
            node: The op that errors name, if it is not the actor's own.
        """
        if self.state is RUNNING:
            _trim(cause)
            inputs = [self.values[blob.slot] for blob in actor.inputs]
            self.stop_by(actor, actor.error_of(cause, inputs, self.number, node))

    def stop_by(self, actor: OpActor, error: OpError) -> None:
        """Fail with the error of an op, or go on without the ops that depend on it."""
        if self.failures is None or isinstance(error.__cause__, ENDS_PROGRAM):
            self.stop_with(error)
        elif self.state is RUNNING:
            self._locate(error)
            self.failures[error.op_name] = error
            self.go_on_without(actor, error)

    def go_on_without(self, actor: OpActor, error: OpError) -> None:
        """Tell the followers of an op that its outputs will not be there; each op that reads them leaves itself out."""
        assert self.failures is not None
        self.failures.update(dict.fromkeys([blob.slot for blob in actor.outputs], error))
        self.announce(actor.followers, None)
        if self.budget is not None:
            self.budget.ended(self, actor)
        if actor.ends:
            self.close_end()
        self.wake()

    def _locate(self, error: OpError) -> None:
        error.frame, error.updated = self.number, tuple(self.updated)
        error.add_note(f"in frame {self.number}")
        if self.lengths:
            error.args = (f"{error}\n  with {said(self.lengths)}",)

    def stop_with(self, error: ActorflowError, at_once: bool = False) -> None:
        """Fail for a reason; ``at_once`` tells the caller without waiting for threads."""
        if self.state is RUNNING:
            self.error = error
            if isinstance(error, OpError):
                self._locate(error)
            self._stop(FrameState.FAILED)
            if at_once:
                self._resolve()

    def cancel(self, error: RunCancelledError | None = None) -> None:
        """Start nothing further and cancel the async functions; the frame ends when all is at rest.

        With an error the caller gets that at once, instead of CancelledError.
        """
        if self.state is RUNNING:
            self.error = error
            self._stop(FrameState.CANCELLED)
            if error is not None:
                self._resolve()

    def abandon(self) -> None:
        """Count as cancelled, and call nothing on the frame's loop: it was closed, so tasks never go on."""
        if self.state is RUNNING:
            self.state = FrameState.CANCELLED
            self.halted = True
        self.outstanding = {
            actor: work for actor, work in self.outstanding.items() if not isinstance(work, asyncio.Task)
        }
        if not self.outstanding:
            self._end()

    async def wait(self) -> None:
        """Wait for the end; stop the frame where that wait is cancelled, and raise the error of a failed one, once.

        It returns when its async functions have ended. Work in a thread ends there by itself.
        """
        error = None
        try:
            if self.has_ended or self.ready:  # what ends the program leaves the loop first; a slice comes in this turn
                await asyncio.sleep(0)
            if not self.has_ended:
                await self.ended
            if self.state is not FINISHED:
                error = self.error
                raise asyncio.CancelledError if error is None else error
        except GeneratorExit:  # the waiting task was dropped, as with a closed loop: nothing can be awaited
            if not self.ended.get_loop().is_closed():
                self.leave()
            raise
        except BaseException:
            try:
                self.leave()
                await wait_out(self.tasks)
            finally:
                self.start.observer.abandoned(self)
            raise
        finally:
            del error  # whose traceback refers to this call

    def leave(self) -> None:
        """Cancel it, as nobody waits for it any more; its error, also a later one, is dropped."""
        self.cancel()
        self._is_told = True
        if not self.outstanding:  # else the observer has yet to be told of it
            self.error = self.failures = None

    @property
    def tasks(self) -> set[asyncio.Task[Any]]:
        """Async functions that run, also inside of ops."""
        found: set[asyncio.Task[Any]] = set()
        for work in self.outstanding.values():
            if isinstance(work, asyncio.Task):
                found.add(work)
            elif isinstance(work, _INSIDE):
                found |= work.tasks
        return found

    def settle(self, actor: OpActor) -> None:
        """Count the end of a lane's work or a task; the last one ends a stopped frame."""
        self.outstanding.pop(actor, None)
        if not self.outstanding and self.state is not RUNNING:
            self._end()

    def _stop(self, state: FrameState) -> None:
        self.state = state
        self.halted = True
        if state is not FINISHED or self.turns or self.outstanding:
            try:
                self._let_go()
            except BaseException as error:  # noqa: BLE001  the code that stops the frame must not be told of it, and it must end
                self.start.observer.fault(self, error)
        if not self.outstanding:
            self._end()

    def _let_go(self) -> None:
        for turn in self.turns.values():
            if not turn.passed:
                turn.leave()
        if self.state is not FINISHED:
            for listener in self.start.listeners:
                listener.skip(self)
            for actor, timer in self.resting.items():
                timer.cancel()
                assert actor.attempts is not None
                actor.attempts.give_up(self)
            self.resting = _NONE
            for running in [*self.outstanding.values()]:
                if isinstance(running, asyncio.Task):
                    end(running)
                else:
                    running.stop()
        for running in [*self.outstanding.values()]:  # what has ended, or will, without the loop's knowing
            if not isinstance(running, asyncio.Task):
                running.hurry()

    def _end(self) -> None:
        start = self.start
        try:
            try:
                if self.budget is not None or start.weights:
                    self._give_back()
            finally:
                start.observer.ended(self)
        except BaseException as error:  # noqa: BLE001  likewise
            start.observer.fault(self, error)
        self._resolve()
        if self.state is not FINISHED:
            # An exception may keep the frame alive: nothing that it has is to keep anything else alive, or itself.
            self.values = [None] * len(self.values)  # of that length, as a call of it may yet write its results
            self.fences = {}
            self.spans = None
            if self._is_told:
                self.error = self.failures = None

    def _give_back(self) -> None:
        if self.budget is not None:
            self.budget.close(self)
        if self.state is not FINISHED and self.values:
            # It may be the last to hold an old value that another frame's work still reads on the device.
            for slot, device in self.start.weights:
                if self.values[slot] is not None:
                    device.memory.retire(self.values[slot])

    def _resolve(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        ended = self._ended
        if ended is not None and waits(ended):  # a cancelled `run` has cancelled it
            ended.set_result(None)


#: Work of an op that is frames inside of that of the op.
_INSIDE: Any = Frame, core.Emitter


def _trim(error: BaseException) -> None:
    """Drop this package's frames from the top of a traceback, so that the user's lines stand out."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith((PACKAGE, _CORE)):
        traceback = traceback.tb_next
    if traceback is not None:
        BaseException.with_traceback(error, traceback)  # a class may refuse the assignment; a frozen dataclass does


def what_it_waits_for(frame: Frame) -> str:
    """Say which ops run, and which wait for how many messages, from whom."""
    running = [actor for actor, _ in frame.at_work]
    lines = [f"running: {listed([repr(actor.what) for actor in running]) or 'nothing'}"]
    writers: dict[BlobActor, OpActor] = {blob: actor for actor in frame.ops for blob in actor.outputs}
    waiting = [actor for actor in frame.ops if frame.waits(actor.index) > 0 and actor not in running]
    for actor in waiting[:_SHOWN]:
        count = frame.waits(actor.index)
        unfinished = [
            repr(writer.what)
            for writer in (writers.get(blob) for blob in actor.inputs)
            if writer is not None and (frame.waits(writer.index) > 0 or writer in running)
        ]
        source = f"op {listed(unfinished)}" if unfinished else "an earlier frame's turn at a variable"
        lines.append(f"  op {actor.what!r} waits for {count} of {len(actor.inputs)} inputs: {source}")
    if len(waiting) > _SHOWN:
        lines.append(f"  and {len(waiting) - _SHOWN} more ops wait")
    return "\n".join(lines)
