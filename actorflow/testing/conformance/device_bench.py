"""Bench on which a device is checked: devices to open and close, work that waits at a gate, ends that are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from actorflow.devices import Device, DeviceOptions, Fence, Lane, check_place, device_kind, open_device
from actorflow.devices.stream import StreamDevice, StreamLane
from actorflow.errors import DeviceUnavailableError
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.testing.conformance.report import Deviation, NotApplicable, expect
from actorflow.threads import start_thread

_T = TypeVar("_T")

SMALL = TensorSpec.of((5, 3), "float32")
#: 2 MiB: a copy of it takes a while.
LARGE = TensorSpec.of((1 << 19,), "float32")


class Planted(Exception):  # noqa: N818
    """Raised on purpose."""


class DeviceBench:
    """Bench on which one device is checked."""

    def __init__(
        self, place: Place, options: DeviceOptions | None, patience_s: float, fail: Callable[[Device], Any] | None
    ) -> None:
        self.place = place
        self.options = options
        self.patience_s = patience_s  # after how many seconds what has not happened counts as never happening
        self.fail = fail  # launches work that fails on the device, if such work is known
        self.kind = device_kind(place.kind)
        self._gates: list[Gate] = []
        self._kept: list[Any] = []

    async def check(self, check: Callable[..., Awaitable[None]]) -> None:
        """Check a requirement; its check takes the ``bench``, an open ``device``, or both."""
        asked = signature(check).parameters
        if "device" not in asked:
            await check(self)
            return
        async with self.device() as device:
            await (check(self, device) if "bench" in asked else check(device))

    @asynccontextmanager
    async def device(self, place: Place | None = None, **changes: Any) -> AsyncIterator[Device]:
        """An open device on the running loop, closed at the end; ``changes`` are to its options."""
        device = self.open(place, **changes)
        try:
            yield device
        except BaseException:
            self.open_gates()
            device.close()
            raise  # what join() would say is of no interest any more
        self.open_gates()
        await self.close(device)
        self._kept.clear()

    def open(self, place: Place | None = None, **changes: Any) -> Device:
        """As `device`, for checks that close it themselves."""
        device = open_device(place or self.place, self.changed(**changes) if changes else self.options)
        device.bind(asyncio.get_running_loop())
        return device

    async def close(self, device: Device) -> None:
        """Close a device, and wait for its end."""
        device.close()
        await self.in_thread(device.join, "join() after close()")

    def changed(self, **changes: Any) -> DeviceOptions:
        """The options with changes."""
        options = self.kind.options_type() if self.options is None else self.options
        return replace(options, **changes)

    def keep(self, *values: Any) -> None:
        """Hold on to arrays that work may still use, until the device is closed."""
        self._kept += values

    def gate(self) -> Gate:
        """A gate, opened at the latest when the device is closed."""
        gate = Gate(self.patience_s)
        self._gates.append(gate)
        return gate

    def open_gates(self) -> None:
        """Let all work pass."""
        for gate in self._gates:
            gate.open()
        self._gates.clear()

    def peer(self) -> Place:
        """The place of another device of the kind; the CPU's is the CPU; raises NotApplicable if there is none."""
        place = self.place
        if place.device >= 0:
            place = replace(place, device=place.device + 1)
        try:
            check_place(place)
        except DeviceUnavailableError as error:
            raise NotApplicable(f"there is no second device: {error}") from None
        return place

    def threads_only(self) -> None:
        """The check needs work that blocks; raises NotApplicable if the device launches its work on the loop."""
        if self.kind.is_stream:
            raise NotApplicable("work of a device with streams is launched on the loop, and must not block there")

    async def until(self, event: asyncio.Event, expected: str) -> None:
        """Wait for something that must happen; raises Deviation if it does not."""
        try:
            async with asyncio.timeout(self.patience_s):
                await event.wait()
        except TimeoutError:
            raise Deviation(expected, f"nothing of that within {self.patience_s:g} s") from None

    async def passes(self, fence: Fence, what: str = "work") -> None:
        """Wait for a fence, and check that its work went well."""
        told = asyncio.Event()
        fence.add_waiter(told.set)
        await self.until(told, f"a waiter on the fence of {what} is called")
        expect(fence.error is None, f"no error from {what}", repr(fence.error))

    async def in_thread(self, function: Callable[[], _T], what: str) -> _T:
        """Call a function that blocks, in a thread of its own; raises Deviation if it goes on blocking."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_T] = loop.create_future()

        def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
            if not outcome.done():
                set_outcome(value)

        def call() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001  raised where the result is awaited
                settled = partial(settle, outcome.set_exception, error)
            else:
                settled = partial(settle, outcome.set_result, result)
            try:
                loop.call_soon_threadsafe(settled)
            except RuntimeError:  # the check has failed, and its loop is closed
                return

        thread = start_thread(call, "actorflow-conformance")
        try:
            async with asyncio.timeout(self.patience_s):
                result = await outcome
        except TimeoutError:
            raise Deviation(f"{what} returns", f"it still blocks after {self.patience_s:g} s") from None
        thread.join()
        return result


class Gate:
    """Work that says when it begins and goes on when it may."""

    def __init__(self, patience_s: float) -> None:
        self.began = threading.Event()
        self._open = threading.Event()
        self._patience_s = patience_s

    def __call__(self, _: Any) -> None:
        self.began.set()
        if not self._open.wait(self._patience_s):
            raise TimeoutError("the gate was not opened: the thread that should have opened it is blocked")

    def open(self) -> None:
        """Let the work go on."""
        self._open.set()


class Ends:
    """The fences that the loop has been told of, in the order in which it was told."""

    def __init__(self, bench: DeviceBench) -> None:
        self._bench = bench
        self._thread = threading.get_ident()
        self._changed = asyncio.Event()
        self.told: list[Fence] = []
        self.strangers: set[str] = set()  # names of other threads than the loop's that have told it

    def __call__(self, fence: Fence) -> None:
        self.told.append(fence)
        if threading.get_ident() != self._thread:
            self.strangers.add(threading.current_thread().name)
        self._changed.set()

    async def until(self, *fences: Fence) -> None:
        """Wait until the loop has been told of all these; raises Deviation if it is not."""
        missing = {id(fence) for fence in fences}
        while missing := missing - {id(fence) for fence in self.told}:
            self._changed.clear()
            await self._bench.until(
                self._changed, f"passed() is called for {len(fences)} pieces of work (so far for {len(self.told)})"
            )


def nothing(_: Any) -> None:
    """Work that does nothing; also an end that nothing needs."""


async def turns(count: int = 20) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


def pattern(spec: TensorSpec, seed: int = 0) -> npt.NDArray[Any]:
    """An array in which neighbours differ, and other seeds give other elements."""
    numbers = (np.arange(251) * 7 + 13 * seed + 1) % 251  # which then come again
    if spec.dtype.kind == "b":
        numbers %= 2
    return np.resize(numbers.astype(spec.dtype), spec.shape)


async def follow(bench: DeviceBench, lane: Lane, fence: Fence) -> None:
    """Have the next work submitted to a lane run behind a fence, as the engine does."""
    if fence.lane is not lane and not lane.wait(fence):
        await bench.passes(fence)


def take(bench: DeviceBench, device: Device, spec: TensorSpec, lane: Lane) -> tuple[Any, Any]:
    """A bucket for one lane, which lives as long as the device, and a buffer of it; called as work of the lane."""
    if isinstance(device, StreamDevice):
        assert isinstance(lane, StreamLane)
        bucket = device.memory.bucket(spec, lane, (lane,))
    else:
        bucket = device.memory.bucket(spec)
    bench.keep(bucket)
    return bucket, bucket.take()
