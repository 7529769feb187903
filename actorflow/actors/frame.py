"""One activation of a graph: its mailboxes, its values, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from actorflow.actors.dispatcher import leave_loop
from actorflow.errors import ActorflowError, GraphError, OpError, RunCancelledError, text_of
from actorflow.graph.nodes import PACKAGE

if TYPE_CHECKING:
    from actorflow.actors.blob import BlobActor, UpdateActor
    from actorflow.actors.budget import Budget
    from actorflow.actors.dispatcher import Dispatcher
    from actorflow.actors.op import OpActor
    from actorflow.actors.variable import Turn
    from actorflow.devices.base import Fence
    from actorflow.trace.counters import Monitor
    from actorflow.trace.ring import Trace
    from actorflow.trace.spans import FrameSpans

#: Ops that an error names of each sort; a large graph has very many that wait.
_SHOWN = 10


class FrameListener(Protocol):
    """What is told that a frame will come, and if it will not."""

    def expect(self, frame: Frame) -> None:
        """The frame has started."""

    def skip(self, frame: Frame) -> None:
        """The frame has stopped before its end."""


class FrameState(Enum):
    """Where a frame is in its life: RUNNING -> FINISHED, or RUNNING -> FAILED | CANCELLED."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Frame:
    """All state of one run.

    A mailbox is a count in ``pending``: how many messages its op still waits for. Messages that carry a fence leave it
    in ``fences``. Everything is touched on the loop's thread only, but for ``values`` and ``readers`` of a slot, which
    the op that runs uses from its lane's thread, and ``halted``.

    Attributes:
        number: Frames of a graph are numbered from 0 in the order of their start.
        pending: Messages that each op waits for, by index of the op.
        values: Value of each slot; None before it is written and after its last reader.
        readers: Per slot with several readers, a token per reader; whoever pops the first one, the only one that is not
            0, is the last reader: a pop is atomic, counting down is not. None for slots with one reader.
        fences: Unpassed fences that came with the messages to an op.
        open: Ends that the frame still waits for: ops that nothing in the frame follows, and variables' turns.
        outstanding: Ops on a lane, or running as a task, that have not reported their end.
        resting: Ops whose call has failed and will be repeated when a timer ends.
        halted: Whether nothing more of it may be started: it has stopped, or an op has failed on a lane's thread and
            the loop has not been told yet.
        ready: Where actors of the frame that are ready are put; `wake` afterwards, unless an actor does it as it fires.
        turns: The turns that this frame takes at the variables it may update.
        turnstiles: Where this frame is expected: at the ops that take their frames in order, and at channels.
        serial: Number among the frames that exchange messages with other ranks.
        ops: The program's ops, by index.
        budget: The memory that its ops must be admitted to, if there is a limit.
        atomic: Whether all updates are committed together, at the end.
        updates: Updates that wait for the end of an atomic frame.
        updated: Names of the variables updated so far.
        spans: What makes spans of it, if somebody wants them.
        ended: Resolved when the frame has ended and nothing of it runs any more; without waiting for threads when the
            caller must be told at once.
    """

    __slots__ = (
        "atomic",
        "budget",
        "context",
        "ended",
        "error",
        "fences",
        "halted",
        "monitor",
        "number",
        "on_end",
        "on_fault",
        "open",
        "ops",
        "outstanding",
        "pending",
        "readers",
        "ready",
        "resting",
        "serial",
        "spans",
        "state",
        "trace",
        "turns",
        "turnstiles",
        "updated",
        "updates",
        "values",
        "wake",
    )

    def __init__(
        self,
        number: int,
        pending: list[int],
        values: list[Any],
        readers: list[bytearray | None],
        open_ends: int,
        dispatcher: Dispatcher,
        ended: asyncio.Future[None],
        on_end: Callable[[Frame], None],
        on_fault: Callable[[Frame, BaseException], None],
        monitor: Monitor | None,
        trace: Trace,
        turnstiles: Sequence[FrameListener],
        ops: list[OpActor],
        atomic: bool,
        budget: Budget | None,
    ) -> None:
        self.number = number
        self.pending = pending
        self.values = values
        self.readers = readers
        self.open = open_ends
        self.ready = dispatcher.ready
        self.wake = dispatcher.wake
        self.ended = ended
        self.on_end = on_end
        self.on_fault = on_fault
        self.monitor = monitor
        self.trace = trace
        self.context = contextvars.copy_context()
        self.fences: dict[OpActor, list[Fence]] = {}
        self.turns: list[Turn] = []
        self.turnstiles = turnstiles
        self.outstanding: dict[OpActor, Fence | asyncio.Task[Any]] = {}
        self.resting: dict[OpActor, asyncio.TimerHandle] = {}
        self.halted = False
        self.spans: FrameSpans | None = None
        self.serial = -1
        self.state = FrameState.RUNNING
        self.error: ActorflowError | None = None
        self.atomic = atomic
        self.budget = budget
        self.updates: list[UpdateActor] = []
        self.updated: list[str] = []
        self.ops = ops

    def close_end(self) -> None:
        """One of the frame's open ends is closed; the last one finishes it."""
        self.open -= 1
        if not self.open and not self.halted:
            for update in self.updates:
                update.commit(self)
            self._stop(FrameState.FINISHED)

    def fail(self, actor: OpActor | None, error: BaseException) -> None:
        """Something failed that is not an op's own code: a fault of this package.

        The frame ends all the same, and so do those that share its order with it (`Engine`).

        Args:
            actor: The op that it happened at; None where that is not known.
            error: What was raised.
        """
        if actor is not None:
            self.op_failed(actor, error)
        elif self.state is FrameState.RUNNING:
            failure = GraphError(f"frame {self.number} failed with {type(error).__name__}: {text_of(error)}")
            failure.__cause__ = error
            self.stop_with(failure)
        self.on_fault(self, error)

    def guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step of the frame. Whatever it raises ends the frame, which would otherwise wait for ever."""
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001
            leave_loop(error)
            self.fail(None, error)

    def op_failed(self, actor: OpActor, cause: BaseException) -> None:
        """A call failed. The first failure wins; nothing further is started, the frame ends when all is at rest."""
        if self.state is FrameState.RUNNING:
            _trim(cause)
            inputs = [self.values[blob.slot] for blob in actor.inputs]
            self.stop_with(OpError.of(actor.node, cause, partial(actor.replay, inputs, self.number)))

    def stop_with(self, error: ActorflowError, at_once: bool = False) -> None:
        """Fail for a reason; ``at_once`` tells the caller without waiting for threads."""
        if self.state is FrameState.RUNNING:
            self.error = error
            if isinstance(error, OpError):
                error.updated = tuple(self.updated)
            self._stop(FrameState.FAILED)
            if at_once:
                self._resolve()

    def cancel(self, error: RunCancelledError | None = None) -> None:
        """Start nothing further and cancel the async functions; the frame ends when all is at rest.

        With an error the caller gets that at once, instead of CancelledError.
        """
        if self.state is FrameState.RUNNING:
            self.error = error
            self._stop(FrameState.CANCELLED)
            if error is not None:
                self._resolve()

    def abandon(self) -> None:
        """The frame's loop was closed, so its tasks never go on: count it as cancelled, and call nothing there."""
        if self.state is FrameState.RUNNING:
            self.state = FrameState.CANCELLED
            self.halted = True
        self.outstanding = {
            actor: work for actor, work in self.outstanding.items() if not isinstance(work, asyncio.Task)
        }
        if not self.outstanding:
            self._end()

    @property
    def tasks(self) -> set[asyncio.Task[Any]]:
        """Async functions that run."""
        return {running for running in self.outstanding.values() if isinstance(running, asyncio.Task)}

    def settle(self, actor: OpActor) -> None:
        """A lane's work or a task has reported its end; the last one ends a stopped frame."""
        self.outstanding.pop(actor, None)
        if not self.outstanding and self.state is not FrameState.RUNNING:
            self._end()

    def _stop(self, state: FrameState) -> None:
        self.state = state
        self.halted = True
        try:
            for turn in self.turns:
                turn.leave()
            if state is not FrameState.FINISHED:
                for turnstile in self.turnstiles:
                    turnstile.skip(self)
                for actor, timer in self.resting.items():
                    timer.cancel()
                    assert actor.attempts is not None
                    actor.attempts.give_up(self)
                self.resting.clear()
                for task in self.tasks:
                    task.cancel()
        except BaseException as error:  # noqa: BLE001  whoever stops the frame must not be told of it, and it must end
            self.on_fault(self, error)
        if not self.outstanding:
            self._end()

    def _end(self) -> None:
        try:
            self.on_end(self)
        except BaseException as error:  # noqa: BLE001  likewise
            self.on_fault(self, error)
        if self.state is not FrameState.FINISHED:
            self.values = []  # nothing reads them any more, and an exception may keep the frame alive
        self._resolve()

    def _resolve(self) -> None:
        if self.ended.done() or self.ended.get_loop().is_closed():  # a cancelled `run` has cancelled it
            return
        if self.error is not None:
            self.ended.set_exception(self.error)
        elif self.state is FrameState.CANCELLED:
            self.ended.cancel()
        else:
            self.ended.set_result(None)


def _trim(error: BaseException) -> None:
    """Drop this package's frames from the top of a traceback, so that the user's lines stand out."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(PACKAGE):
        traceback = traceback.tb_next
    if traceback is not None:
        BaseException.with_traceback(error, traceback)  # a class may refuse the assignment; a frozen dataclass does


def what_it_waits_for(frame: Frame) -> str:
    """Which ops run, and which wait for how many messages, from whom."""
    lines = [f"running: {_listing([actor.what for actor in frame.outstanding])}"]
    writers: dict[BlobActor, OpActor] = {blob: actor for actor in frame.ops for blob in actor.outputs}
    waiting = [actor for actor in frame.ops if frame.pending[actor.index] > 0 and actor not in frame.outstanding]
    for actor in waiting[:_SHOWN]:
        count = frame.pending[actor.index]
        unfinished = [
            writer.what
            for writer in (writers.get(blob) for blob in actor.inputs)
            if writer is not None and (frame.pending[writer.index] > 0 or writer in frame.outstanding)
        ]
        source = f"op {_listing(unfinished)}" if unfinished else "an earlier frame's turn at a variable"
        lines.append(f"  op {actor.what!r} waits for {count} of {len(actor.inputs)} inputs: {source}")
    if len(waiting) > _SHOWN:
        lines.append(f"  and {len(waiting) - _SHOWN} more ops wait")
    return "\n".join(lines)


def _listing(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (shown or "nothing") + more
