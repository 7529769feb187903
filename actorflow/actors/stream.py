"""Ops at run time whose lane is a stream: their work is launched on the loop and runs later, on the device.

An input that lives on the op's own device is given back as soon as the work is launched: its buffer carries its uses,
and the device's pool orders them (`actorflow.devices.stream`). Memory that the host or another device uses again, and
all inputs under a memory budget or where a call may be repeated, are given back when the loop has seen the work end.

Where a first launch compiles, a thread makes it and waits for its end (`StreamDevice.launch_aside`), so that the loop
goes on meanwhile. The call is begun on the lane afterwards, with nothing left to launch: only from then on does
anything follow it, and errors of the thread are raised there.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from sys import getrefcount
from typing import Any, ClassVar

from actorflow.actors.blob import BlobActor
from actorflow.actors.frame import Frame
from actorflow.actors.op import FunctionActor, KernelActor, OpActor, Wiring
from actorflow.core import UNSHARED, FrameState, clock_ns, release
from actorflow.devices.base import Device, Fence
from actorflow.devices.stream import StreamBucket, StreamDevice, StreamLane
from actorflow.errors import DTypeError, GraphError, ShapeError

#: Most frames in flight that have buffers of their own in turn.
_MOST_IN_TURN = 16


class _First:
    """The first call of a kernel, which a thread launches."""

    __slots__ = ("inputs", "number", "outputs")

    def __init__(self, inputs: list[Any], outputs: list[Any] | None, number: int) -> None:
        self.inputs = inputs
        self.outputs = outputs  # None until there are some, for a kernel that returns its results
        self.number = number

    def clear(self) -> None:
        """Let go of all arrays: the thread's fence keeps the call."""
        self.inputs.clear()
        self.outputs = None


class _OnStream(OpActor):
    """Base of ops on streams.

    Class attributes:
        compiles: Whether its first call compiles kernels, where the device does so.

    Attributes:
        late: Buffers that are given back when it has ended.
    """

    # No slots: a class cannot have those of two bases.
    lane: StreamLane
    compiles: ClassVar[bool] = False
    #: Of the call that begins now, if a thread has launched it: the op it came to, and what that has raised.
    _outcome: tuple[StreamKernelActor, BaseException] | tuple[None, None] | None = None

    def __init__(
        self, wiring: Wiring, *, device: StreamDevice, label: str, early: tuple[BlobActor, ...], **computation: Any
    ) -> None:
        super().__init__(wiring._replace(inline_ns=-1), **computation)  # nothing is launched but on the lane
        self.device = device  # whose stream it is
        self.label = label  # what the device's own messages call it
        self.early = early  # inputs, and outputs that nothing reads, that are given back once the work is launched
        self.late = tuple([blob for blob in wiring.freed if blob not in early])
        self._is_new = self.compiles and device.compiles

    def begin(self, frame: Frame) -> int:
        if not self._is_new or self._is_known(frame):
            return super().begin(frame)
        self._launch_aside(frame, self._kernels())
        return clock_ns()

    def _is_known(self, frame: Frame) -> bool:
        """Return whether its work for a frame was launched before, for another op."""
        return False

    def _kernels(self) -> Iterator[StreamKernelActor]:
        raise NotImplementedError

    def _launch_aside(self, frame: Frame, kernels: Iterator[StreamKernelActor]) -> None:
        """Have a thread launch the kernels, each when the one before has ended; behind the last one, begin."""
        kernel = None if frame.halted else next(kernels, None)
        if kernel is None:
            self._is_new = self._is_new and frame.halted
            self._begin_launched(frame, (None, None))
            return
        try:
            with self.lane.stream.current():  # buffers are made for that stream
                first = kernel.prepare(frame)
            passed = partial(self._launched, frame, kernel, kernels)
            fence = self.device.launch_aside(self.lane, kernel.run, first, passed)
        except BaseException as error:  # noqa: BLE001  as in `OpActor.begin`
            self._begin_launched(frame, (kernel, error))
        else:
            frame.outstanding[self] = fence

    def _launched(
        self, frame: Frame, kernel: StreamKernelActor, kernels: Iterator[StreamKernelActor], fence: Fence
    ) -> None:
        """Go on behind a kernel that a thread has launched; all that it does has ended."""
        try:
            kernel.take(frame, fence)
            if fence.error is not None:
                self._begin_launched(frame, (kernel, fence.error))
                return
            if kernel is not self and not frame.halted:  # else `compute` does it, or the frame gives up all
                release(kernel.early, frame)
                release(kernel.unread, frame)
            self._launch_aside(frame, kernels)
        except BaseException as failure:  # noqa: BLE001  as in `_passed`
            frame.fail(self, failure)
            frame.settle(self)

    def _begin_launched(
        self, frame: Frame, outcome: tuple[StreamKernelActor, BaseException] | tuple[None, None]
    ) -> None:
        frame.outstanding.pop(self, None)
        self._outcome = outcome
        try:
            super().begin(frame)
        finally:
            self._outcome = None
        frame.wake()  # what follows: this is no turn of the dispatcher's

    @abstractmethod
    def launch(self, frame: Frame) -> None:
        """Read the inputs' values, launch the work, keep the outputs."""

    def compute(self, frame: Frame) -> None:
        self.lane.stream.label = self.label
        self.launch(frame)
        if self.early:
            release(self.early, frame)
        if self.unread:
            release(self.unread, frame)

    def _follows(self, fence: Fence) -> bool:
        # A device that hangs hangs in what is in front, so that counts for a timeout, too.
        return fence.lane is self.lane or self.lane.wait(fence)

    def _take_end(self, frame: Frame, fence: Fence) -> None:
        # A frame that has stopped early gives up all that it holds when it ends.
        if self.late and fence.error is None and (not frame.halted or frame.state is FrameState.FINISHED):
            release(self.late, frame)
        super()._take_end(frame, fence)

    def _again(self, inputs: list[Any], call: Callable[[], Any]) -> Any:
        if any(value is None for value in inputs):
            raise GraphError(
                f"op {self.what!r} on {self.device.place} cannot be replayed: the buffers of its inputs have been "
                "used again; with retries=1 or a memory budget they are kept until it has ended"
            )
        stream = self.lane.stream
        with stream.current():
            stream.label = self.label
            result = call()
            event = stream.record()
        event.synchronize()
        event.query()
        return result


class StreamKernelActor(_OnStream, KernelActor):
    """An op with a kernel that launches work on a stream."""

    compiles = True

    def launch(self, frame: Frame) -> None:
        if self._outcome is None:
            self._call(frame)
        elif self._outcome[1] is not None:
            raise self._outcome[1]

    def prepare(self, frame: Frame) -> _First:
        """All that a thread needs to launch a call."""
        inputs = [*self.read(frame.values)]
        return _First(inputs, self._take_buffers(inputs), frame.number)

    def run(self, first: _First) -> None:
        """Launch a call; in a thread."""
        first.outputs = self._compute_into(first.outputs, first.inputs, first.number)

    def take(self, frame: Frame, fence: Fence) -> None:
        """Keep the outputs of a call that a thread has launched, if that went well."""
        first: _First = fence.argument
        outputs = first.outputs
        if fence.error is None and outputs is not None and not frame.halted:
            self._is_new = False
            self.device.compiled.add(self._signature(first.inputs))
            for blob, value in zip(self.outputs, outputs, strict=True):
                if self.kernel.returns and value.base is None:
                    self.device.lend(value)  # its memory is that of another stream
                frame.values[blob.slot] = value
        first.clear()

    def _is_known(self, frame: Frame) -> bool:
        self._is_new = self._signature([*self.read(frame.values)]) not in self.device.compiled
        return not self._is_new

    def _kernels(self) -> Iterator[StreamKernelActor]:
        yield self

    def _signature(self, inputs: list[Any]) -> Hashable:
        """Equal for calls that compile the same."""
        types = tuple([(each.shape, each.strides, each.dtype) for each in inputs])
        signature = (self.kernel.function, self.operation, types, self.specs)
        try:
            hash(signature)
        except TypeError:  # an operation with parameters that cannot be hashed
            return id(self)
        return signature


class CopyActor(KernelActor):
    """A copy by the host: to memory that a device copies from, or to or from a device without streams."""

    __slots__ = ("_is_there",)

    joins = False

    def __init__(self, wiring: Wiring, *, is_there: Callable[[Any], bool], **kernel: Any) -> None:
        super().__init__(wiring, **kernel)
        self._is_there = is_there  # for what was fed as an array of the target, and stays what it is

    def compute(self, frame: Frame) -> None:
        (source,) = self.read(frame.values)
        if not self._is_there(source):
            del source  # or its buffer, still referred to, would not go back to the pool
            super().compute(frame)
        else:
            frame.values[self.outputs[0].slot] = source
            release(self.freed, frame)


class _Rotation:
    """Has frames take one buffer after the other, and then the first again: as many as there are frames in flight.

    Otherwise each copy takes any that is free, and the ops behind it hardly ever meet the same set of addresses twice.

    Args:
        device: Where the buffers are.
        bucket: Source of the buffers.
    """

    def __init__(self, device: StreamDevice, bucket: StreamBucket) -> None:
        self._device = device
        self._bucket = bucket
        self._length = 1
        self._homes: dict[int, Hashable] = {}  # where the buffers are, by the number of the frame modulo the length
        self._frames: deque[weakref.ref[Frame]] = deque(maxlen=_MOST_IN_TURN)

    def take(self, frame: Frame) -> Any:
        """The buffer for a frame whose turn it is, if that is free; else another."""
        frames = self._frames
        while self._length <= len(frames) and self._length < _MOST_IN_TURN and _runs(frames[-self._length]()):
            self._length *= 2  # not one by one: updated variables are in two places in turn, too
        frames.append(weakref.ref(frame))
        at, homes, whereabouts = frame.number % self._length, self._homes, self._device.whereabouts
        home = homes.pop(at, None)
        others = set(homes.values())
        buffer = None if home is None else self._bucket.find(lambda free: whereabouts(free) == home)
        if buffer is None:
            buffer = self._bucket.find(lambda free: whereabouts(free) not in others)
        if buffer is None:
            buffer = self._bucket.make()
        homes[at] = whereabouts(buffer)
        return buffer


def _runs(frame: Frame | None) -> bool:
    return frame is not None and not frame.has_ended


class TransferActor(StreamKernelActor):
    """A copy between two devices. An array that was fed as an array of the target already stays as it is."""

    compiles = False

    def __init__(self, wiring: Wiring, *, target: Device, for_segments: bool, **kernel: Any) -> None:
        super().__init__(wiring, **kernel)
        self.target = target  # where the copy goes
        (bucket,) = self.buckets
        self._rotation = None
        if for_segments and isinstance(bucket, StreamBucket) and isinstance(target, StreamDevice):
            self._rotation = _Rotation(target, bucket)

    def launch(self, frame: Frame) -> None:
        (source,) = self.read(frame.values)
        if self.target.is_array(source) and not self.target.is_host:
            frame.values[self.outputs[0].slot] = source
        elif self._rotation is None:
            self._call(frame)
        else:
            buffers = [self._rotation.take(frame)]
            (frame.values[self.outputs[0].slot],) = self._compute_into(buffers, [source], frame.number)


class StreamFunctionActor(_OnStream, FunctionActor):
    """An op with a plain function that launches work on a stream; it gets and gives arrays of the device."""

    def __init__(self, wiring: Wiring, **function: Any) -> None:
        super().__init__(wiring, **function)
        self.only_slot = None  # the quick check is one for NumPy arrays
        self.freed = ()  # with `store`, the work has only been launched

    def launch(self, frame: Frame) -> None:
        result = frame.context.copy().run(self.fn, *self.read(frame.values))
        self.store(frame, (result,) if len(self.specs) == 1 else result)

    def keep(self, frame: Frame, position: int, value: Any) -> None:
        spec = self.specs[position]
        if not self.device.is_array(value):
            got = f"{type(value).__module__}.{type(value).__qualname__}"
            raise DTypeError(f"result {position}: expected an array on {self.device.place}, got {got}")
        if value.shape != spec.shape:
            raise ShapeError(f"result {position}: expected shape {spec.shape}, got {value.shape}")
        if value.dtype != spec.dtype:
            raise DTypeError(f"result {position}: expected dtype {spec.dtype}, got {value.dtype}")
        frame.values[self.outputs[position].slot] = value


class StreamViewActor(BlobActor):
    """A slot of a device with streams whose value may be a view of another slot's."""

    __slots__ = ()

    is_usual = False

    def drop(self, frame: Frame) -> None:
        values = frame.values
        value = values[self.slot]
        values[self.slot] = None
        owner = value if value.base is None else value.base
        del value
        if self.bucket is not None and getrefcount(owner) == UNSHARED:
            self.bucket.give_back(owner)
        if frame.budget is not None:
            frame.budget.freed.append((frame, self.slot))
