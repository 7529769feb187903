"""Function ops at run time: plain functions, and async ones as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter_ns
from typing import Any, ClassVar

import numpy as np

from actorflow import core
from actorflow.actors.frame import Frame
from actorflow.actors.nesting import within
from actorflow.actors.op import OpActor, Wiring
from actorflow.core import Turnstile, release
from actorflow.devices.base import Fence
from actorflow.errors import GraphError
from actorflow.interchange import as_array, read_only
from actorflow.ops.function import NOT_RUN, check_has_run
from actorflow.spec import TensorSpec
from actorflow.trace.counters import NodeState

_RUNNING = int(NodeState.RUNNING)


class FunctionActor(OpActor):
    """An op with a plain Python function.

    It is given read-only arrays: others may read them, too, and what was fed is the caller's. What is fed, and what a
    function returns, is kept as such; of all else (`guarded`) each call gets a view.
    """

    is_async: ClassVar[bool] = False
    is_work = True

    __slots__ = ("fn", "only_dtype", "only_input", "only_shape", "only_slot", "specs")

    def __init__(
        self,
        wiring: Wiring,
        *,
        fn: Callable[..., Any],
        specs: tuple[TensorSpec, ...],
        turnstile: Turnstile,
        guarded: Sequence[int] = (),
    ) -> None:
        super().__init__(wiring, turnstile)
        self.fn = _guarded(fn, guarded) if guarded else fn
        self.specs = specs
        # Of the only output, where there is just one: what nearly all functions have, and the quickest to check.
        self.only_input = self.inputs[0].slot if len(self.inputs) == 1 else None
        self.only_slot = self.outputs[0].slot if len(specs) == 1 else None
        self.only_shape: tuple[int, ...] | None = specs[0].shape if len(specs) == 1 else None
        self.only_dtype: np.dtype[Any] | None = specs[0].dtype if len(specs) == 1 and not specs[0].is_object else None

    def compute(self, frame: Frame) -> None:
        # A copy: a context cannot be entered by two threads at a time.
        context = frame.context.copy()
        slot = self.only_input
        if slot is None:
            result = context.run(self.fn, *self.read(frame.values))
        else:
            result = context.run(self.fn, frame.values[slot])
        self.store(frame, result)

    def described(self) -> core.Described:
        kind = type(self)
        if (kind.compute, kind.store) != (FunctionActor.compute, FunctionActor.store) or self.only_dtype is None:
            return None
        return "function", self.fn, None, (self.only_dtype, self.only_shape)

    def replay(self, inputs: list[Any], number: int) -> Any:
        return self.fn(*inputs)

    def store(self, frame: Frame, result: Any) -> None:
        """Check and keep what the function returned, and release the inputs.

        Raises:
            ShapeError, DTypeError, GraphError: if it does not fit the declared outputs.
        """
        slot = self.only_slot
        if (
            slot is not None
            and type(result) is np.ndarray
            and result.dtype is self.only_dtype
            and result.shape == self.only_shape
        ):
            frame.values[slot] = read_only(result) if result.flags.writeable else result
        elif self.outputs or result is not None:
            self._keep_all(frame, result)
        release(self.freed, frame)

    def _keep_all(self, frame: Frame, result: Any) -> None:
        if type(result) in NOT_RUN:
            check_has_run((result,), self.specs, is_async=self.is_async)
        if self.only_slot is not None:
            self.keep(frame, 0, result)
        elif self.outputs:
            if not isinstance(result, tuple | list) or len(result) != len(self.specs):
                got = f"{len(result)} values" if isinstance(result, tuple | list) else repr(type(result).__name__)
                raise GraphError(f"the function must return {len(self.specs)} values in a tuple or list, got {got}")
            for position, item in enumerate(result):
                if type(item) in NOT_RUN:
                    check_has_run(result, self.specs, is_async=self.is_async)
                self.keep(frame, position, item)

    def keep(self, frame: Frame, position: int, value: Any) -> None:
        """Check one result, and convert it where nothing is lost."""
        what = "the result" if len(self.specs) == 1 else f"result {position}"
        frame.values[self.outputs[position].slot] = _checked(value, self.specs[position], what)


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

    def begin(self, frame: Frame) -> int:
        if frame.monitor is not None:
            self.show(frame, _RUNNING)
        start = perf_counter_ns()
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
        return perf_counter_ns()

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
            end = perf_counter_ns()
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


def _guarded(fn: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """The function, given read-only views of the arrays at some positions."""

    def call(*inputs: Any) -> Any:
        given = [*inputs]
        for i in positions:
            if type(given[i]) is np.ndarray:
                given[i] = view = given[i].view()
                view.setflags(False)  # as `read_only`
        return fn(*given)

    return call


def _checked(value: Any, spec: TensorSpec, what: str) -> Any:
    return value if spec.is_object else read_only(as_array(value, spec, what))
