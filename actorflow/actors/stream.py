"""Ops at run time whose lane is a stream: their work is launched on the loop and runs later, on the device.

An input that lives on the op's own device is given back as soon as the work is launched: its buffer carries its uses,
and the device's pool orders them (`actorflow.devices.stream`). What the host or another device uses again, and
all inputs under a memory budget or where a call may be repeated, are given back when the loop has seen the work end.
"""

from __future__ import annotations

from abc import abstractmethod
from sys import getrefcount
from typing import Any

import numpy as np

from actorflow.actors.blob import BlobActor
from actorflow.actors.frame import Frame, FrameState
from actorflow.actors.function import FunctionActor
from actorflow.actors.op import KernelActor, OpActor, Wiring
from actorflow.core import UNSHARED, release
from actorflow.devices.base import Device, Fence
from actorflow.devices.stream import StreamLane
from actorflow.errors import DTypeError, GraphError, ShapeError


class _OnStream(OpActor):
    """Base of ops on streams.

    Attributes:
        late: Those that are given back when it has ended.
    """

    # No slots: a class cannot have those of two bases.
    lane: StreamLane

    def __init__(
        self, wiring: Wiring, *, device: Device, label: str, early: tuple[BlobActor, ...], **computation: Any
    ) -> None:
        super().__init__(wiring._replace(inline_ns=-1), **computation)  # nothing is launched but on the lane
        self.device = device  # whose stream it is
        self.label = label  # what the device's own messages call it
        self.early = early  # inputs, and outputs that nothing reads, that are given back once the work is launched
        self.late = tuple([blob for blob in wiring.freed if blob not in early])

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

    def _again(self, inputs: list[Any], call: Any) -> Any:
        """Repeat a call, alone, and wait for its end."""
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

    def launch(self, frame: Frame) -> None:
        self._call(frame)

    def replay(self, inputs: list[Any], number: int) -> Any:
        return self._again(inputs, lambda: self._run_kernel(inputs, number))


class StagingActor(KernelActor):
    """A copy to host memory that a device can copy from. What was fed as an array of the device stays what it is."""

    __slots__ = ()

    joins = False

    def compute(self, frame: Frame) -> None:
        (source,) = self.read(frame.values)
        if isinstance(source, np.ndarray):
            del source  # or its buffer, still referred to, would not go back to the pool
            super().compute(frame)
        else:
            frame.values[self.outputs[0].slot] = source
            release(self.freed, frame)


class WorkerTransferActor(KernelActor):
    """A copy to or from a device without streams. What was fed as an array of the target already stays what it is."""

    __slots__ = ("target",)

    joins = False

    def __init__(self, wiring: Wiring, *, target: Device, **kernel: Any) -> None:
        super().__init__(wiring, **kernel)
        self.target = target  # where the copy goes

    def compute(self, frame: Frame) -> None:
        (source,) = self.read(frame.values)
        if self.target.is_host or not self.target.is_array(source):
            del source  # as above
            super().compute(frame)
        else:
            frame.values[self.outputs[0].slot] = source
            release(self.freed, frame)


class TransferActor(StreamKernelActor):
    """A copy between two devices. An array that was fed as an array of the target already stays what it is."""

    def __init__(self, wiring: Wiring, *, target: Device, **kernel: Any) -> None:
        super().__init__(wiring, **kernel)
        self.target = target  # where the copy goes

    def launch(self, frame: Frame) -> None:
        (source,) = self.read(frame.values)
        if self.target.is_array(source) and not self.target.is_host:
            frame.values[self.outputs[0].slot] = source
        else:
            self._call(frame)


class StreamFunctionActor(_OnStream, FunctionActor):
    """An op with a plain function that launches work on a stream; it gets and gives arrays of the device."""

    def __init__(self, wiring: Wiring, **function: Any) -> None:
        super().__init__(wiring, **function)
        self.only_slot = None  # the quick check is one for NumPy arrays
        self.freed = ()  # with `store`, the work has only been launched

    def launch(self, frame: Frame) -> None:
        result = frame.context.copy().run(self.fn, *self.read(frame.values))
        self.store(frame, (result,) if len(self.specs) == 1 else result)

    def replay(self, inputs: list[Any], number: int) -> Any:
        return self._again(inputs, lambda: self.fn(*inputs))

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
