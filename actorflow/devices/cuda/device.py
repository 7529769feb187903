"""CUDA devices: the device with streams of `actorflow.devices.stream`, by CuPy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.devices import segment
from actorflow.devices.base import DeviceOptions, Fence
from actorflow.devices.cpu import WorkerLane
from actorflow.devices.cuda import memory, transfer
from actorflow.devices.cuda.availability import check_cuda, load_cupy
from actorflow.devices.cuda.memory import LateRelease
from actorflow.devices.cuda.stream import CudaEvent, CudaStream, EventPool, is_idle
from actorflow.devices.cuda.transfer import as_device_array
from actorflow.devices.segment import SegmentState
from actorflow.devices.stream import StreamDevice, StreamLane
from actorflow.errors import DeviceError
from actorflow.place import Place
from actorflow.spec import TensorSpec

_HIGHEST_PRIORITY = -1000  # beyond that of any device: CUDA takes its highest
_COPIES = ("inbound", "outbound")
_LEGACY = (0, 1)  # handles of CUDA's legacy default stream


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions(DeviceOptions):
    """Options of one CUDA device.

    Args:
        timing: Whether the profile knows the time of ops on the device. It costs two timed events per turn of the
            dispatcher instead of one without; a trace turns it on in any case.

    Example:
        >>> options = {"cuda:0": af.devices.CudaOptions(memory_budget=1 << 30, timing=False)}
        >>> graph = af.Graph("g", devices=options)  # the device is asked for when the graph runs
    """

    timing: bool = True


class CudaSegment(segment.Segment):
    """Work of one lane on fixed buffers, as a CUDA graph, launched as one: ``lane.submit(segment, ...)``.

    Its kernels only launch: nothing reads a value back, synchronizes or copies from or to pageable memory. Its
    lane, operations, kernels, shapes and buffers are the same every time; values that change from call to call are
    copied into these buffers in front of the segment, and out of them behind it. It has no kernel that returns
    arrays of its own (``returns``) and no function, whose arrays would be overwritten; no kernel whose result
    depends on the host, like ``random`` ones, which are told the frame's number; and no call of cuBLAS, cuSOLVER,
    cuSPARSE or cuRAND through CuPy, which refuses them while a stream is captured.

    Memory that kernels allocate for themselves comes from a pool of the segment, so a replay overwrites no other.

    Args:
        name: Its name, for messages.
        place: The device.
        works: Launch the work; see `actorflow.devices.segment.Segment`.
        is_warm: Whether the work has been launched before, so that the first call captures it.
    """

    def __init__(
        self, name: str, place: Place, works: Sequence[Callable[[Any], object]], is_warm: bool = False
    ) -> None:
        super().__init__(name, works, is_warm)
        self._cupy = load_cupy(place)
        self._graph: Any | None = None
        self._stream: Any | None = None
        self._pool = self._cupy.cuda.MemoryPool()

    def check_stream(self) -> None:
        stream = self._cupy.cuda.get_current_stream()
        if self._stream is None:
            self._stream = stream
        elif stream != self._stream:
            raise DeviceError(f"segment {self.name!r} belongs to {self._stream}, the current stream is {stream}")

    def launch(self, argument: Any) -> None:
        if self.state is SegmentState.REFUSED:
            super().launch(argument)
        else:
            with self._cupy.cuda.using_allocator(self._pool.malloc):
                super().launch(argument)

    def capture(self, argument: Any) -> None:
        stream, runtime = self._stream, self._cupy.cuda.runtime
        assert stream is not None
        stream.begin_capture()
        try:
            self.launch(argument)
        except BaseException:
            with suppress(runtime.CUDARuntimeError):  # it says that the capture is invalid
                stream.end_capture()  # or the stream would go on capturing
            raise
        self._graph = stream.end_capture()

    def replay(self) -> None:
        assert self._graph is not None
        self._graph.launch(self._stream)


class CudaDevice(StreamDevice):
    """One NVIDIA GPU: CuPy arrays, and CUDA streams as lanes.

    Streams do not synchronize with CUDA's default stream, where the application's own work goes; what it feeds is
    waited for on the device (`adopt`), and what it gets is complete and may be dropped at any time
    (`actorflow.devices.cuda.memory`).

    Attributes:
        cupy: The module.
        index: The device's index, as in ``CUDA_VISIBLE_DEVICES``.
    """

    libraries = ("cudnn", "cupy") if find_spec("cudnn") else ("cupy",)
    options_type = CudaOptions
    is_staged = True
    runs_functions = True
    captures = True
    compiles = True

    def __init__(self, place: Place, options: DeviceOptions | None = None) -> None:
        self.cupy = load_cupy(place)
        self.index = place.device
        self._late = LateRelease(self._current_stream, self._marks)
        super().__init__(place, options)
        self._events = EventPool(self.cupy, self.index)
        # Page-locked memory of the host; copies from and to it run without the host.
        self._staging = memory.PinnedPool(partial(memory.allocate_pinned, self.cupy, self.index), self._copy_lanes)
        self._service: CudaStream | None = None
        self._compiler = WorkerLane(f"{place}-compiler", computes=False)
        self._compiler_stream: CudaStream | None = None  # current in its thread alone
        self._reached: set[int] = set()
        self._adopted: list[CudaEvent] = []  # behind work that the application may still do on its feeds

    @classmethod
    def check(cls, place: Place) -> None:
        check_cuda(place)

    def make_stream(self, name: str) -> CudaStream:
        stream = self._new_stream(_HIGHEST_PRIORITY if name in _COPIES else 0)
        for mark in self._still_computed():
            stream.wait(mark)
        return stream

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        super().bind(loop)
        self._compiler.bind(loop)

    def launch_aside(
        self, lane: StreamLane, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None]
    ) -> Fence:
        # Not on the lane's own stream: the loop may capture the work given to that.
        if self._compiler_stream is None:
            self._compiler_stream = self._new_stream(0)
            self._compiler_stream.timed = False
        assert isinstance(lane.stream, CudaStream)
        launch = partial(self._launch_aside, self._compiler_stream, self._mark(lane.stream.raw), work)
        return self._compiler.submit(launch, argument, passed, urgent=True)

    def _launch_aside(
        self, stream: CudaStream, mark: CudaEvent | None, work: Callable[[Any], None], argument: Any
    ) -> None:
        """Launch work on a stream behind a mark, and wait for its end; in a thread."""
        with stream.current(), np.errstate(all="ignore"):  # as on the loop
            if mark is not None:
                stream.wait(mark)
            try:
                work(argument)
                stream.record().synchronize()
            finally:  # the lanes have no use for memory kernels have allocated for themselves
                self.cupy.get_default_memory_pool().free_all_blocks(stream=stream.raw)

    def make_segment(self, name: str, works: Sequence[Callable[[Any], object]]) -> CudaSegment:
        return CudaSegment(name, self.place, works, is_warm=True)

    def whereabouts(self, array: Any) -> Hashable:
        return array.data.ptr, array.strides

    def watch_closely(self, detailed: bool) -> None:
        super().watch_closely(detailed)
        for stream in self._streams():
            stream.timed = self._is_timed

    def close(self) -> None:
        super().close()
        self._compiler.close()

    def forget_parent(self) -> None:
        super().forget_parent()
        self._compiler.forget_parent()

    def join(self) -> None:
        super().join()
        self._compiler.join()
        pool = self.cupy.get_default_memory_pool()
        with self.cupy.cuda.Device(self.index):
            others = [stream for stream in (self._service, self._compiler_stream) if stream is not None]
            streams = [*self._streams(), *others]
            for stream in streams:
                with suppress(DeviceError):  # the ops have failed with it
                    stream.synchronize()
            with suppress(DeviceError):
                self._late.close()
            for stream in streams:
                pool.free_all_blocks(stream=stream.raw)  # of no use to any other stream

    def allocate(self, spec: TensorSpec) -> Any:
        return memory.allocate(self.cupy, self.index, spec, self._late)

    def lend(self, value: Any) -> None:
        """The application is given an array of this device: its work on it ends before the memory is used again.

        Buffers of `memory` need no word; arrays that functions and kernels make for themselves do.
        """
        self._late.watch(value)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.cupy.ndarray) and value.data.device_id == self.index

    def copy_in(self, source: npt.NDArray[Any], target: Any) -> None:
        transfer.copy_in(self.cupy, source, target)

    def copy_out(self, source: Any, target: npt.NDArray[Any]) -> None:
        transfer.copy_out(self.cupy, source, target)

    def copy_peer(self, source: Any, target: Any) -> None:
        other = source.data.device_id
        if other not in self._reached:
            self._reached.add(other)
            transfer.reach(self.cupy, self.index, other)
        transfer.copy_peer(self.cupy, source, target)

    def adopt(self, value: Any) -> Any | None:
        """A value whose memory is on this device, of any library with DLPack or the CUDA array interface.

        Work that the application still does on it on its current stream, or the library on its own, is waited for by
        all lanes, on the device. A value that is not C-contiguous is copied, on the application's current stream. The
        application may drop it at any time.
        """
        array = as_device_array(self.cupy, self.index, value)
        if array is None:
            return None
        self._late.sweep()
        self._late.watch(array)
        mark = self._mark(self._current_stream())
        if mark is not None:
            self._adopted = [*self._still_computed(), mark]
            for lane_stream in self._streams():
                lane_stream.wait(mark)
        return array

    def upload(self, value: npt.NDArray[Any]) -> Any:
        stream = self._service_stream()
        with stream.current():
            array = self.allocate(TensorSpec(value.shape, value.dtype))
            self.copy_in(value, array)
            stream.synchronize()
        self._late.watch(array)
        return array

    def download(self, value: Any) -> npt.NDArray[Any]:
        target = np.empty(value.shape, value.dtype)
        stream = self._service_stream()
        with stream.current():
            self.copy_out(value, target)
            stream.synchronize()
        return target

    @property
    def _is_timed(self) -> bool:
        is_wanted = isinstance(self.options, CudaOptions) and self.options.timing
        return is_wanted or self._is_watched_closely

    def _new_stream(self, priority: int) -> CudaStream:
        try:
            return CudaStream(self._events, priority, self._is_timed)
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"device {str(self.place)!r} gives no stream: {error}") from error

    def _service_stream(self) -> CudaStream:
        """The stream of copies that the host waits for."""
        if self._service is None:
            self._service = self._new_stream(_HIGHEST_PRIORITY)
            self._service.timed = False
        return self._service

    def _make_pool(self) -> memory.CudaPool:
        return memory.CudaPool(self.allocate, self._all_lanes, self._late)

    def _streams(self) -> list[CudaStream]:
        streams = [lane.stream for lane in self._all_lanes()]
        return [stream for stream in streams if isinstance(stream, CudaStream)]

    def _current_stream(self) -> Any:
        return self.cupy.cuda.get_current_stream(self.index)

    def _marks(self, streams: Iterable[Any]) -> list[CudaEvent]:
        """Marks behind the pending work of the lanes, of the application by default, and of some more streams."""
        lanes = [stream.raw for stream in self._streams()]
        found = map(self._mark, dict.fromkeys([*lanes, self.cupy.cuda.Stream.null, *streams]))
        return [mark for mark in found if mark is not None]

    def _mark(self, stream: Any) -> CudaEvent | None:
        """A mark in a stream, the application's or a lane's; None if the stream is known to be idle.

        A mark in the legacy default stream is behind all that the application's blocking streams do. Whether a question
        to it is, CUDA does not say, so it is not asked.
        """
        runtime = self.cupy.cuda.runtime
        try:
            with self.cupy.cuda.Device(self.index):  # the legacy stream is that of the current device
                if stream.ptr not in _LEGACY and is_idle(runtime, stream.ptr):
                    return None
                raw = self._events.take(timed=False)
                runtime.eventRecord(raw.ptr, stream.ptr)
        except runtime.CUDARuntimeError as error:
            raise DeviceError(f"device {str(self.place)!r} failed: {error}") from error
        return CudaEvent(self._events, raw, None, None)

    def _still_computed(self) -> list[CudaEvent]:
        self._adopted = [mark for mark in self._adopted if not mark.query()]
        return self._adopted

    def _copy_lanes(self) -> Sequence[StreamLane]:
        lanes = [self._lanes.get(name) for name in _COPIES]
        return [lane for lane in lanes if isinstance(lane, StreamLane)]
