"""Ops at run time: they fire when their mailbox's count is met."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.spec import TensorSpec
from actorflow.trace import NodeState, OpProfile

if TYPE_CHECKING:
    from actorflow.actors.blob import BlobActor
    from actorflow.actors.frame import Frame
    from actorflow.devices.base import Fence, Lane
    from actorflow.devices.memory import Bucket
    from actorflow.node import Op
    from actorflow.ops.operation import Operation
    from actorflow.ops.registry import Kernel

__all__ = ["INLINE_NS", "AsyncActor", "FunctionActor", "KernelActor", "OpActor"]

#: An op that takes less runs on the loop: a round trip through a thread costs about as much.
INLINE_NS = 100_000

_UNKNOWN_NS = 1 << 62
_RUNNING, _DONE, _FAILED = int(NodeState.RUNNING), int(NodeState.DONE), int(NodeState.FAILED)


class OpActor(ABC):
    """One op of a program.

    Attributes:
        index: Of its mailbox in a frame.
        node: The op; errors name it.
        node_id: `Node.id` of what it shows up as: the op, or the blob whose terms it sums.
        inputs: Blobs that it reads.
        outputs: Blobs that it writes.
        unread: Those outputs that nobody reads.
        ends: Whether nothing in the frame follows it.
        lane: Where it runs when it is not short.
        cost_ns: Expected time of a call. The smaller one of the last two times: one slow call (a page fault, another
            thread's turn) does not send an op to a lane, and two do.
    """

    __slots__ = (
        "cost_ns",
        "ends",
        "index",
        "inputs",
        "lane",
        "last_ns",
        "node",
        "node_id",
        "outputs",
        "profile",
        "unread",
    )

    def __init__(
        self,
        index: int,
        node: Op,
        node_id: int,
        inputs: tuple[BlobActor, ...],
        outputs: tuple[BlobActor, ...],
        lane: Lane,
        profile: OpProfile,
    ) -> None:
        self.index = index
        self.node = node
        self.node_id = node_id
        self.inputs = inputs
        self.outputs = outputs
        self.unread: tuple[BlobActor, ...] = ()
        self.ends = False
        self.lane = lane
        self.profile = profile
        self.cost_ns = self.last_ns = _UNKNOWN_NS

    @abstractmethod
    def compute(self, frame: Frame) -> None:
        """Read the inputs' values, write the outputs', release the inputs. On the loop's or the lane's thread."""

    def fire(self, frame: Frame) -> int:
        """All inputs are announced: run now, go to the lane, or wait for what the lane cannot wait for.

        Returns:
            The time, `perf_counter_ns`, at the end.
        """
        if frame.halted:
            return 0
        if frame.fences:
            fences = frame.fences.pop(self, None)
            if fences is not None:
                fences = [fence for fence in fences if not fence.done]
                if fences:
                    return self._fire_behind(frame, fences)
        if self.cost_ns > INLINE_NS:
            return self._submit(frame)
        start = perf_counter_ns()
        try:
            self.compute(frame)
        except Exception as error:  # noqa: BLE001  whatever a kernel raises becomes the frame's OpError
            self._failed(frame, error)
            return perf_counter_ns()
        end = perf_counter_ns()
        self._account(frame, end - start)
        for blob in self.outputs:
            blob.deliver(frame, None)
        if self.ends:
            frame.close_end()
        return end

    def _fire_behind(self, frame: Frame, fences: list[Fence]) -> int:
        """Some inputs are still being computed."""
        lane = self.lane
        elsewhere = [fence for fence in fences if fence.lane is not lane and not lane.wait(fence)]
        if not elsewhere:
            return self._submit(frame)
        self._await(frame, elsewhere)
        if len(elsewhere) < len(fences):
            frame.fences[self] = [fence for fence in fences if fence.lane is lane]
        return perf_counter_ns()

    def _await(self, frame: Frame, fences: list[Fence]) -> None:
        """Fire again when the loop has seen all of ``fences`` pass."""
        frame.pending[self.index] = len(fences)

        def passed() -> None:
            left = frame.pending[self.index] - 1
            frame.pending[self.index] = left
            if not left:
                frame.ready.append((self, frame))
                frame.wake()

        for fence in fences:
            fence.add_waiter(passed)

    def _submit(self, frame: Frame) -> int:
        frame.outstanding += 1
        fence = self.lane.submit(self._work, frame, self._passed, self.ends)
        for blob in self.outputs:
            blob.deliver(frame, fence)
        return perf_counter_ns()

    def _work(self, frame: Frame) -> None:
        """On the lane's thread."""
        if frame.halted:
            return
        if frame.monitor is not None:
            frame.monitor.states[self.node_id] = _RUNNING
            frame.monitor.dirty[self.node_id] = 1
        try:
            self.compute(frame)
        except BaseException:
            frame.halted = True  # what is queued behind must not run on missing inputs
            raise

    def _passed(self, fence: Fence) -> None:
        """The loop has seen the end of the work on the lane."""
        frame: Frame = fence.argument
        if fence.error is not None:
            self._failed(frame, fence.error)
        elif not frame.halted:
            self._account(frame, fence.elapsed_ns)
            if self.ends:
                frame.close_end()
        frame.settle()

    def _account(self, frame: Frame, elapsed_ns: int) -> None:
        last = self.last_ns
        self.cost_ns = elapsed_ns if elapsed_ns < last else last  # noqa: FURB136  min() costs twice as much
        self.last_ns = elapsed_ns
        profile = self.profile
        profile.calls += 1
        profile.total_ns += elapsed_ns
        profile.last_ns = elapsed_ns
        monitor = frame.monitor
        if monitor is not None:
            monitor.states[self.node_id] = _DONE
            monitor.dirty[self.node_id] = 1

    def _failed(self, frame: Frame, error: BaseException) -> None:
        if frame.monitor is not None:
            frame.monitor.states[self.node_id] = _FAILED
            frame.monitor.dirty[self.node_id] = 1
        frame.fail(self, error)


class KernelActor(OpActor):
    """An op with a registered kernel."""

    __slots__ = ("buckets", "kernel", "operation")

    def __init__(self, *args: Any, operation: Operation, kernel: Kernel, buckets: tuple[Bucket, ...]) -> None:
        super().__init__(*args)
        self.operation = operation
        self.kernel = kernel
        self.buckets = buckets

    def compute(self, frame: Frame) -> None:
        self._call(frame)
        # After the call's own references are gone: only an unshared buffer goes back to the pool.
        for blob in self.inputs:
            blob.release(frame)
        for blob in self.unread:
            blob.release(frame)

    def _call(self, frame: Frame) -> None:
        values = frame.values
        inputs = [values[blob.slot] for blob in self.inputs]
        kernel = self.kernel
        outputs = None if kernel.returns else [bucket.take() for bucket in self.buckets]
        if kernel.random:
            returned = kernel.function(self.operation, inputs, outputs, frame.number)
        else:
            returned = kernel.function(self.operation, inputs, outputs)
        for blob, value in zip(self.outputs, returned if outputs is None else outputs, strict=True):
            values[blob.slot] = value


class FunctionActor(OpActor):
    """An op with a plain Python function."""

    __slots__ = ("fn", "single", "specs")

    def __init__(self, *args: Any, fn: Callable[..., Any], specs: tuple[TensorSpec, ...]) -> None:
        super().__init__(*args)
        self.fn = fn
        self.specs = specs
        self.single = specs[0] if len(specs) == 1 else None

    def compute(self, frame: Frame) -> None:
        values = frame.values
        # A copy: a context cannot be entered by two threads at a time.
        result = frame.context.copy().run(self.fn, *[values[blob.slot] for blob in self.inputs])
        self.store(frame, result)

    def store(self, frame: Frame, result: Any) -> None:
        """Check and keep what the function returned, and release the inputs.

        Raises:
            ShapeError, DTypeError, GraphError: if it does not fit the declared outputs.
        """
        values = frame.values
        spec = self.single
        if spec is not None:
            values[self.outputs[0].slot] = _checked(result, spec, "the result")
        elif self.outputs:
            if not isinstance(result, tuple | list) or len(result) != len(self.specs):
                got = f"{len(result)} values" if isinstance(result, tuple | list) else repr(type(result).__name__)
                raise GraphError(f"the function must return {len(self.specs)} values in a tuple or list, got {got}")
            for i, (blob, item) in enumerate(zip(self.outputs, result, strict=True)):
                values[blob.slot] = _checked(item, self.specs[i], f"result {i}")
        for blob in self.inputs:
            blob.release(frame)
        for blob in self.unread:
            blob.release(frame)


class AsyncActor(FunctionActor):
    """An op with an ``async def`` function: a task on the loop."""

    __slots__ = ()

    def fire(self, frame: Frame) -> int:
        """Start the task once all inputs have been computed."""
        if frame.halted:
            return 0
        fences = [fence for fence in frame.fences.pop(self, ()) if not fence.done]
        if fences:
            self._await(frame, fences)
            return perf_counter_ns()
        if frame.monitor is not None:
            frame.monitor.states[self.node_id] = _RUNNING
            frame.monitor.dirty[self.node_id] = 1
        start = perf_counter_ns()
        values = frame.values
        context = frame.context.copy()
        coroutine = self.fn(*[values[blob.slot] for blob in self.inputs])
        task = asyncio.get_running_loop().create_task(coroutine, name=self.node.name, context=context)
        frame.outstanding += 1
        frame.tasks.add(task)
        task.add_done_callback(lambda task: self._finished(frame, task, start))
        return perf_counter_ns()

    def _finished(self, frame: Frame, task: asyncio.Task[Any], start: int) -> None:
        frame.tasks.discard(task)
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None and not frame.halted:
            try:
                self.store(frame, task.result())
            except Exception as failure:  # noqa: BLE001  whatever it is becomes the frame's OpError
                error = failure
        if not frame.halted:
            if error is not None:
                self._failed(frame, error)
            else:
                self._account(frame, perf_counter_ns() - start)
                for blob in self.outputs:
                    blob.deliver(frame, None)
                if self.ends:
                    frame.close_end()
        frame.settle()
        frame.wake()


def _checked(value: Any, spec: TensorSpec, what: str) -> Any:
    """A function's result as an array of its declared type."""
    if type(value) is np.ndarray and value.dtype == spec.dtype and value.shape == spec.shape:
        return value
    if spec.is_object:
        return value
    array = np.asarray(value)
    if array.shape != spec.shape:
        raise ShapeError(f"{what} must have shape {spec.shape}, got {array.shape}")
    # Python numbers have no dtype of their own; arrays and NumPy scalars do, and changing it must be asked for.
    rule: Literal["safe", "same_kind"] = "safe" if isinstance(value, np.ndarray | np.generic) else "same_kind"
    if not np.can_cast(array.dtype, spec.dtype, rule):
        raise DTypeError(f"{what} must have dtype {spec.dtype}, got {array.dtype}")
    return array.astype(spec.dtype, copy=False)
