"""Async functions at run time: tasks on the loop, and the calls that code is part of."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextvars import Context, ContextVar
from typing import Any, Protocol, TypeAlias, runtime_checkable

from actorflow.actors.frame import Frame
from actorflow.actors.op import FunctionActor, OpActor, Wiring
from actorflow.core import clock_ns
from actorflow.devices.base import Fence
from actorflow.trace.counters import NodeState

#: A call of an async function.
Call: TypeAlias = tuple[Frame, OpActor]
#: The call that the current code is part of.
within: ContextVar[Call | None] = ContextVar("actorflow_within", default=None)

_RUNNING = int(NodeState.RUNNING)


def callers(context: Context | None = None) -> Iterator[Call]:
    """The calls that the current code, or that of a context, is part of, from the inside out."""
    call = within.get() if context is None else context.get(within)
    while call is not None:
        yield call
        call = call[0].context.get(within)


@runtime_checkable
class RunsFrames(Protocol):
    """An async function that does nothing but await frames, of another graph."""

    def inside(self, call: Call) -> list[Frame]:
        """Frames that a call awaits now."""


class AsyncActor(FunctionActor):
    """An op with an ``async def`` function: a task on the loop."""

    is_async = True
    is_work = uses_lane = False

    __slots__ = ()

    def __init__(self, wiring: Wiring, **function: Any) -> None:
        super().__init__(wiring._replace(inline_ns=-1), **function)  # always a task

    def _follows(self, fence: Fence) -> bool:
        return False  # a task cannot wait for a lane

    def coroutine(self, frame: Frame) -> Coroutine[Any, Any, Any]:
        """The coroutine that computes the result."""
        values = frame.values
        begun: Coroutine[Any, Any, Any] = self.fn(*self.read(values))
        return begun

    def inside(self, frame: Frame) -> list[Frame]:
        fn = getattr(self.node.operation, "fn", None)
        return fn.inside((frame, self)) if isinstance(fn, RunsFrames) else []

    def begin(self, frame: Frame) -> int:
        if frame.monitor is not None:
            self.show(frame, _RUNNING)
        start = clock_ns()
        context = frame.context.copy()
        context.run(within.set, (frame, self))
        if frame.spans is not None:
            frame.spans.enter(self, context)
        try:
            coroutine = self.coroutine(frame)
        except BaseException as error:  # noqa: BLE001  for instance arguments that do not fit
            if frame.spans is not None:
                frame.spans.leave(self, error)
            self.failed(frame, error, 0, start, self.key)
            self.leave()
            return start
        task = asyncio.get_running_loop().create_task(coroutine, name=self.node.name, context=context)
        frame.outstanding[self] = task
        task.add_done_callback(lambda task: self._finished(frame, task, start))
        if self.attempts is not None:
            self.attempts.begin(frame, task)
        return clock_ns()

    def _finished(self, frame: Frame, task: asyncio.Task[Any], start: int) -> None:
        error: BaseException | None
        try:
            # Not raised here, where its traceback would refer to this call, and so to the task, which has the error.
            error = task.exception()
            if error is None and not frame.halted:
                self.store(frame, task.result())
        except BaseException as failure:  # noqa: BLE001  whatever it is becomes the frame's OpError
            error = failure
        try:
            if frame.spans is not None:
                frame.spans.leave(self, error)
            end = clock_ns()
            self._conclude(frame, error, end - start, end)
        except BaseException as failure:  # noqa: BLE001  nothing may hang, whatever goes wrong here
            frame.fail(self, failure)
        finally:
            del error  # whose traceback refers to this call
        frame.settle(self)

    def _leave_loop(self, frame: Frame, error: BaseException) -> None:
        task = frame.outstanding.get(self)
        if isinstance(task, asyncio.Task) and not task.cancelled() and task.exception() is error:
            return  # it has raised that on the loop; a second time would cut off what the program does at its end
        super()._leave_loop(frame, error)
