"""As much of CuPy as `actorflow.devices.cuda` calls, on NumPy: streams run what they were given when a test says so."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

NOT_READY, ILLEGAL_ADDRESS, OUT_OF_MEMORY = 600, 700, 2


class FakeCUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}")
        self.status = status


class FakeOutOfMemoryError(MemoryError):
    pass


class FakeStream:
    """Tasks in order; `step` runs the next one that may run.

    What a blocking stream is given comes behind all that its device's legacy stream was given before.
    """

    def __init__(
        self, machine: FakeCupy, device_id: int, pointer: int, priority: int = 0, is_blocking: bool = False
    ) -> None:
        self._machine = machine
        self.device_id = device_id
        self.ptr = pointer
        self.priority = priority
        self.is_blocking = is_blocking
        self.tasks: deque[tuple[str, Any, int]] = deque()
        self.done = 0
        self.capturing: list[tuple[str, Any, int]] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __enter__(self) -> Self:
        machine = self._machine
        if self.device_id >= 0 and machine.device != self.device_id:
            raise RuntimeError(f"stream of device {self.device_id} while device {machine.device} is current")
        machine.stacks[machine.device].append(self)
        machine.entered.append(machine.device)
        return self

    def __exit__(self, *exception: object) -> None:
        machine = self._machine
        assert machine.device == machine.entered.pop(), "CuPy would make the wrong device's stream current"
        machine.stacks[machine.device].pop()

    def launch(self, kernel: Callable[[], object]) -> None:
        self.add("work", kernel)

    def add(self, what: str, argument: Any, version: int = 0) -> None:
        (self.tasks if self.capturing is None else self.capturing).append((what, argument, version))
        self._machine.added()

    def synchronize(self) -> None:
        self._machine.run()

    def step(self) -> bool:
        if not self.tasks:
            return False
        what, argument, version = self.tasks[0]
        if what == "wait" and argument.passed < version:
            return False
        self.tasks.popleft()
        if what == "work":
            argument()
        elif what == "record":
            argument.passed = version
            argument.time_ms = self._machine.clock_ms
        return True

    def stand_behind(self, other: FakeStream) -> None:
        """Make later work wait for all that another stream has to do."""
        if other.tasks:
            mark = FakeEvent(self._machine, False, False)
            mark.recorded = 1
            other.tasks.append(("record", mark, 1))
            self.tasks.append(("wait", mark, 1))

    def record(self, event: FakeEvent) -> FakeEvent:
        self._machine.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self._machine.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self) -> None:
        self.capturing = []

    def end_capture(self) -> FakeGraph:
        captured, self.capturing = self.capturing, None
        assert captured is not None
        if self._machine.invalid_capture:
            raise FakeCUDARuntimeError(901)
        return FakeGraph(captured)


class FakeLegacyStream(FakeStream):
    """The legacy default stream of one device: what it is given stands between all that blocking streams are given."""

    def add(self, what: str, argument: Any, version: int = 0) -> None:
        blocking = [s for s in self._machine.streams.values() if s.is_blocking and s.device_id == self.device_id]
        for stream in blocking:
            self.stand_behind(stream)
        super().add(what, argument, version)
        for stream in blocking:
            stream.stand_behind(self)


class FakeNullStream(FakeStream):
    """``Stream.null``: the legacy stream of whatever device is current."""

    def add(self, what: str, argument: Any, version: int = 0) -> None:
        self._machine.legacy[self._machine.device].add(what, argument, version)


class FakeGraph:
    def __init__(self, tasks: list[tuple[str, Any, int]]) -> None:
        self.tasks = tasks

    def launch(self, stream: FakeStream) -> None:
        for task in self.tasks:
            stream.add(*task)


class FakeEvent:
    def __init__(self, machine: FakeCupy, block: bool, timed: bool) -> None:
        self.block, self.timed = block, timed
        self.device_id = machine.device
        self.recorded = self.passed = 0
        self.time_ms = 0.0
        self.ptr = len(machine.events) + 1000
        machine.events.append(self)


class FakeMemory:
    """Memory that an array of CuPy and its views share; it goes back to the pool when nothing refers to it."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values


class FakeArray:
    """An array in the memory of a device: NumPy does not take it for one of its own."""

    __array_ufunc__ = None

    def __init__(self, values: Any, device: Any, memory: Any = None, strides: Any = None, base: Any = None) -> None:
        """Make it of NumPy's values and a device, or, as CuPy, of a shape, a dtype, a pointer to memory, strides."""
        device_id = device
        if memory is not None:
            device_id, extent = memory.mem.device_id, memory.mem.size
            raw = (ctypes.c_char * extent).from_address(memory.mem.pointer)
            values = np.ndarray(values, device, raw, 0, strides)
        self._values = values
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self.strides, self.flags = values.strides, values.flags
        self.data = SimpleNamespace(ptr=values.ctypes.data, device_id=device_id, mem=FakeMemory(values))
        self.base = base

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """Values for tests to read; the package has no such attribute."""
        return self._values


class FakePool:
    def __init__(self) -> None:
        self.freed: list[Any] = []

    def malloc(self, size: int) -> None: ...

    def free_all_blocks(self, stream: Any = None) -> None:
        self.freed.append(stream)

    def total_bytes(self) -> int:
        return 5_000

    def get_limit(self) -> int:
        return 6_000


class FakeCupy:
    """The module, and its ``cuda.runtime``. Use it as ``sys.modules["cupy"]``."""

    __version__ = "14.0"
    ndarray = FakeArray
    CUDARuntimeError = FakeCUDARuntimeError
    memcpyHostToDevice = 1  # noqa: N815  these are CuPy's names
    memcpyDeviceToHost = 2  # noqa: N815

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.device = 0
        self.events: list[FakeEvent] = []
        self.legacy = [FakeLegacyStream(self, index, 0) for index in range(devices)]
        self.streams: dict[int, FakeStream] = {}  # by their handles, which are none of 0 to 2
        self.stacks: list[list[FakeStream]] = []
        self.entered: list[int] = []
        self.failure = 0
        self.last_error = 0
        self.clock_ms = 0.0
        self.room: int | None = None
        self.allocated_on: list[FakeStream] = []
        self.allocators: list[Any] = []
        self.kept: list[Any] = []
        self.invalid_capture = False
        self.peers: list[tuple[int, int]] = []
        self.reached: list[tuple[int, int]] = []
        self.pool = FakePool()
        null = FakeNullStream(self, -1, 0)
        self.stacks = [[null] for _ in range(devices)]
        stream_class = self._make_stream
        stream_class.null = null  # type: ignore[attr-defined]
        self.cuda = SimpleNamespace(
            runtime=self,
            Stream=stream_class,
            Event=self._make_event,
            Device=self._on_device,
            MemoryPool=FakePool,
            get_current_stream=lambda device=-1: self.stacks[self.device if device < 0 else device][-1],
            alloc_pinned_memory=self._alloc_pinned,
            using_allocator=self._using_allocator,
            UnownedMemory=lambda pointer, size, owner, device: SimpleNamespace(
                pointer=pointer, size=size, owner=owner, device_id=device
            ),
            MemoryPointer=lambda memory, offset: SimpleNamespace(mem=memory),
            memory=SimpleNamespace(OutOfMemoryError=FakeOutOfMemoryError),
        )

    # -- for tests ----------------------------------------------------------------------------------------------

    def run(self, *streams: FakeStream) -> None:
        """Let streams run as far as they can; all streams unless some are named."""
        chosen = streams or (*self.legacy, *self.streams.values())
        moved = True
        while moved:
            moved = False
            for stream in chosen:
                moved |= stream.step()

    def added(self) -> None:
        """Called when a stream was given something to do."""

    # -- cupy ---------------------------------------------------------------------------------------------------

    def empty(self, shape: tuple[int, ...], dtype: Any) -> FakeArray:
        values = np.full(shape, 99).astype(dtype)
        if self.room is not None and values.nbytes > self.room:
            raise FakeOutOfMemoryError
        self.allocated_on.append(self.stacks[self.device][-1])
        self.kept.append(values)  # as CuPy's arenas keep what was dropped
        return FakeArray(values, self.device)

    def ascontiguousarray(self, array: FakeArray) -> FakeArray:
        if array.flags.c_contiguous:
            return array
        copy = self.empty(array.shape, array.dtype)
        self.stacks[self.device][-1].launch(lambda: np.copyto(copy.values, array.values))
        return copy

    def from_dlpack(self, value: Any) -> FakeArray:
        return value.__dlpack__(stream=self.stacks[self.device][-1])

    def get_default_memory_pool(self) -> FakePool:
        return self.pool

    # -- cupy.cuda ----------------------------------------------------------------------------------------------

    @property
    def _make_stream(self) -> Any:
        def make(*, non_blocking: bool = False, priority: int = 0) -> FakeStream:
            stream = FakeStream(self, self.device, len(self.streams) + 100, priority, is_blocking=not non_blocking)
            self.streams[stream.ptr] = stream
            return stream

        return make

    def _stream(self, pointer: int) -> FakeStream:
        """The stream of a handle; 0 is the legacy one of the current device."""
        return self.streams[pointer] if pointer else self.legacy[self.device]

    def _make_event(self, *, block: bool = False, disable_timing: bool = False) -> FakeEvent:
        self._check()
        return FakeEvent(self, block, not disable_timing)

    @contextmanager
    def _on_device(self, index: int) -> Iterator[None]:
        before, self.device = self.device, index
        try:
            yield
        finally:
            self.device = before

    @contextmanager
    def _using_allocator(self, allocator: Any) -> Iterator[None]:
        self.allocators.append(allocator)
        try:
            yield
        finally:
            self.allocators.pop()

    def _alloc_pinned(self, size: int) -> Any:
        if self.room is not None and size > self.room:
            raise FakeCUDARuntimeError(OUT_OF_MEMORY)
        return memoryview(bytearray(size))

    # -- cupy.cuda.runtime --------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.check_status(self.failure)

    def check_status(self, status: int) -> None:
        if status:
            self.last_error = 0
            raise FakeCUDARuntimeError(status)

    def getDevice(self) -> int:  # noqa: N802
        return self.device

    def setDevice(self, index: int) -> None:  # noqa: N802
        self.device = index

    def getDeviceCount(self) -> int:  # noqa: N802
        self._check()
        return self.devices

    def getDeviceProperties(self, index: int) -> dict[str, Any]:  # noqa: N802
        return {"name": b"Fake GPU", "totalGlobalMem": 8 << 30}

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return 12_090

    def pointerGetAttributes(self, pointer: int) -> Any:  # noqa: N802
        return SimpleNamespace(device=1)

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return 1_000, 9_000

    def _event(self, pointer: int) -> FakeEvent:
        return self.events[pointer - 1000]

    def _ask(self, is_done: bool) -> int:
        status = self.failure or (0 if is_done else NOT_READY)
        self.last_error = status or self.last_error
        return status

    def eventQuery(self, pointer: int) -> int:  # noqa: N802
        event = self._event(pointer)
        return self._ask(event.passed == event.recorded)

    def streamQuery(self, pointer: int) -> int:  # noqa: N802
        # Whether blocking streams count for the legacy one is nowhere written.
        return self._ask(not self._stream(pointer).tasks)

    def eventRecord(self, pointer: int, stream: int) -> None:  # noqa: N802
        self._check()
        event = self._event(pointer)
        assert event.device_id == self._stream(stream).device_id, "CUDA would refuse this"
        event.recorded += 1
        self._stream(stream).add("record", event, event.recorded)

    def eventSynchronize(self, pointer: int) -> None:  # noqa: N802
        self._check()
        self.run()

    def eventElapsedTime(self, begin: int, end: int) -> float:  # noqa: N802
        first, second = self._event(begin), self._event(end)
        assert first.timed
        assert second.timed
        return second.time_ms - first.time_ms

    def streamWaitEvent(self, stream: int, pointer: int) -> None:  # noqa: N802
        self._check()
        event = self._event(pointer)
        self._stream(stream).add("wait", event, event.recorded)

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802
        self._check()
        self.run()

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self._check()
        self._stream(stream).launch(lambda: ctypes.memmove(target, source, size))

    def memcpyPeerAsync(  # noqa: N802
        self, target: int, target_device: int, source: int, source_device: int, size: int, stream: int
    ) -> None:
        self._check()
        self.peers.append((source_device, target_device))
        self._stream(stream).launch(lambda: ctypes.memmove(target, source, size))

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:  # noqa: N802
        return 1

    def deviceEnablePeerAccess(self, peer: int) -> None:  # noqa: N802
        if (self.device, peer) in self.reached:
            raise FakeCUDARuntimeError(704)
        self.reached.append((self.device, peer))
